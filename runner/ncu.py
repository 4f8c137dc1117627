"""`python -m runner.ncu`: ncu of runner/profiles."""

from runner.piped import until_closed
from runner.profiles.ncu import main

if __name__ == "__main__":
    raise SystemExit(until_closed(main))
