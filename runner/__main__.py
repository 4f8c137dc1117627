"""`python -m runner`, and the console script `launchopt`."""

from __future__ import annotations

import gc
import sys

from runner.importing import uncollected


def main() -> None:
    """Run the application and end the process with its exit code."""
    try:
        with uncollected():
            from runner.cli import run
        code = run()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        code = 130
    gc.freeze()  # else the interpreter collects all objects as it ends, which takes 0.1 s
    sys.exit(code)


# A spawned child imports this module under another name. It must not start the application again.
if __name__ == "__main__":
    main()
