"""`python -m runner`, and the console script `launchopt`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the application and end the process with its exit code."""
    try:
        from runner.cli import run

        code = run()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)


# Children are spawned: they import this module under another name, and must not run it again.
if __name__ == "__main__":
    main()
