"""Standard output of the commands: plain text in a pipe, and a quiet end when the reader closes the pipe.

For example `head` closes it early: python -m runner.report DIR | head
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from rich.console import Console

CLOSED = 141  # exit code of a program that SIGPIPE ended, in a shell: 128 + 13
PIPED_COLUMNS = 200  # wide enough that no cell of a piped table is cut


def console(stderr: bool = False) -> Console:
    """Return a console on standard output, or on standard error. In a pipe it never wraps or cuts a line."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPED_COLUMNS, highlight=False)


def until_closed(main: Callable[[], int]) -> int:
    """Run `main` and return its exit code, or CLOSED, without a message, if standard output has no reader any more."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit writes there
        return CLOSED
    return code
