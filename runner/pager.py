"""Standard output of the commands: plain text in a pipe, and a quiet end when the reader closes the pipe.

For example `head` closes it early: launchopt report DIR | head
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from launchopt.analysis.tables.columns import Column, T

CLOSED = 141  # exit code of a program that SIGPIPE ended, in a shell: 128 + 13
PIPED_COLUMNS = 200  # wide enough that no cell of a piped table is cut


def console(stderr: bool = False) -> Console:
    """Return a console on standard output, or on standard error. In a pipe it never wraps or cuts a line."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPED_COLUMNS, highlight=False)


def drawn(
    columns: Sequence[Column[T]],
    lines: Iterable[Sequence[str]],
    title: str = "",
    caption: str = "",
    keeps_numbers: bool = False,
) -> Table:
    """Return a table for a terminal. lines: the cells of each line. keeps_numbers: a number is never folded.

    A status or a path may contain brackets, which are markup to rich, so all texts are escaped.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), caption=escape(caption), box=box.SIMPLE_HEAD)
    table.title_justify = table.caption_justify = "left"
    for column in columns:
        heading, is_whole = column.heading.replace(" ", "\n", 1), keeps_numbers and not column.is_text
        table.add_column(heading, justify="left" if column.is_text else "right", no_wrap=is_whole, overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line))
    return table


def until_closed(main: Callable[[], int]) -> int:
    """Run `main` and return its exit code, or CLOSED, without a message, if standard output has no reader any more."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit writes there
        return CLOSED
    return code
