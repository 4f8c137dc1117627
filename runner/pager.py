"""A program whose reader may go away before it is done: `python -m runner.report DIR | head`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

CLOSED = 141  # as a shell has it of a program that SIGPIPE ended: 128 + 13


def until_closed(main: Callable[[], int]) -> int:
    """The exit code of `main`, which ends without a word where its standard output was closed."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left at exit goes nowhere
        return CLOSED
    return code
