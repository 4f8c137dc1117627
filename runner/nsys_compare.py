"""`python -m runner.nsys_compare`: nsys_compare of runner/profiles."""

from runner.piped import until_closed
from runner.profiles.nsys_compare import main

if __name__ == "__main__":
    raise SystemExit(until_closed(main))
