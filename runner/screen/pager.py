"""What the commands print: consoles, notices and tables. A pipe gets plain text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from launchopt.analysis.tables.columns import Column, T
    from runner.screen.fitted import FittedTable

PIPED_COLUMNS = 100  # width of tables without a terminal


def console(stderr: bool = False) -> Console:
    """Return a console on standard output, or on standard error. All text of tables and notes goes through it."""
    from runner.screen.fitted import SafeConsole

    stream = sys.stderr if stderr else sys.stdout
    return SafeConsole(file=stream, width=None if stream.isatty() else PIPED_COLUMNS, highlight=False, emoji=False)


@dataclass(slots=True)
class Voice:
    """Prints notices of the jobs of one command line. name: of the job, `job 3 (4 of 12)`; empty for a single run."""

    name: str = ""
    printed: set[str] = field(default_factory=set)

    def notices(self, notices: Sequence[str]) -> None:
        """Print a line for each notice, unwrapped. In a sweep each appears once."""
        for notice in notices:
            if notice not in self.printed:
                self.printed.add(notice)
                console().print(notice, soft_wrap=True, markup=False)


def drawn(
    columns: Sequence[Column[T]],
    lines: Iterable[Sequence[str]],
    title: str = "",
    caption: str = "",
    drops: Sequence[str] = (),
) -> FittedTable:
    """Return a table that fits the terminal. lines: the cells of each line.

    drops: headings of columns that a narrow terminal leaves out, the least important first.
    """
    from runner.screen.fitted import FittedTable, Heading

    order = {name: index for index, name in enumerate(drops, 1)}
    headings = [Heading(column.heading, column.is_text, order.get(column.heading, 0)) for column in columns]
    return FittedTable(headings, [list(line) for line in lines], title, caption)
