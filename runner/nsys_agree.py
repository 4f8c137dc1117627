"""`python -m runner.nsys_agree`: nsys_agree of runner/profiles."""

from runner.piped import until_closed
from runner.profiles.nsys_agree import main

if __name__ == "__main__":
    raise SystemExit(until_closed(main))
