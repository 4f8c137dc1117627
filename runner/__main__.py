"""`python -m runner`, and the entry of the console script `launchopt`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from launchopt.caches import ensure_home
from runner import commands
from runner.screen.pager import until_closed


def main() -> None:
    """Run the console script `launchopt`, and end the process with its exit code."""
    end(commands.main)


def end(program: Callable[[], int]) -> None:
    """Run `program`, and end the process with its exit code."""
    ensure_home()
    try:
        code = until_closed(program)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        code = 130
    gc.freeze()  # else the interpreter collects all objects as it ends, which takes 0.1 s
    sys.exit(code)


# A spawned child imports this module under another name. It must not start the application again.
if __name__ == "__main__":
    end(lambda: commands.dispatch(sys.argv[1:]))
