"""`python -m runner.trace`: trace of runner/profiles."""

from runner.piped import until_closed
from runner.profiles.trace import main

if __name__ == "__main__":
    raise SystemExit(until_closed(main))
