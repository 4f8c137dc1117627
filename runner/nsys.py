"""`python -m runner.nsys`: nsys of runner/profiles."""

from runner.piped import until_closed
from runner.profiles.nsys import main

if __name__ == "__main__":
    raise SystemExit(until_closed(main))
