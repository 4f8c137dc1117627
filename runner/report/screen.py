"""A report on a terminal: tables about 140 characters wide, with notes below."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table as RichTable

from launchopt.analysis.tables.columns import Column, T
from launchopt.analysis.tables.frontier import Frontier
from launchopt.analysis.tables.frontier_markdown import frontier_answer, frontier_grid, frontier_title
from launchopt.analysis.tables.markdown import grid, tokens_grid
from launchopt.analysis.tables.rows import Table, stream_subtitle, stream_title
from launchopt.analysis.tables.strategies import StrategyTable
from launchopt.analysis.tables.strategies_markdown import refusals, strategies_grid, strategies_subtitle


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Print the tables of a report."""
    for table in tables:
        columns, cells, notes = grid(table, "terminal")
        _print_table(console, table.title, table.subtitle, columns, cells)
        numbered = [f"({index}) {note}" for index, note in enumerate(notes, 1)]
        for note in [*numbered, *([str(table.peer)] if table.peer else [])]:
            console.print(f"  {escape(note)}", style="dim")
        if table.has_tokens:
            _print_table(console, "tokens", table.subtitle, *tokens_grid(table, "terminal"))


def print_frontiers(frontiers: Sequence[Frontier], console: Console) -> None:
    """Print a table per frontier, with its recommendation."""
    for one in frontiers:
        _print_table(console, frontier_title(one), stream_subtitle(one.stream), *frontier_grid(one, "terminal"))
        for answer in frontier_answer(one):
            console.print(f"  {escape(answer)}")


def print_strategies(tables: Sequence[StrategyTable], console: Console) -> None:
    """Print a table per workload, with its refusals."""
    for table in tables:
        columns, cells, notes = strategies_grid(table, "terminal")
        _print_table(console, stream_title(table.stream), strategies_subtitle(table), columns, cells)
        for note in [*(f"({index}) {note}" for index, note in enumerate(notes, 1)), *refusals(table)]:
            console.print(f"  {escape(note)}", style="dim")


def _print_table(
    console: Console, title: str, caption: str, columns: Sequence[Column[T]], cells: Sequence[Sequence[str]]
) -> None:
    # A status or a path may contain brackets, which are markup to rich.
    view = RichTable(title=escape(title), caption=escape(caption), box=box.SIMPLE_HEAD)
    view.title_justify = view.caption_justify = "left"
    for column in columns:
        side: JustifyMethod = "left" if column.is_text else "right"
        heading = column.heading.replace(" ", "\n", 1)
        view.add_column(heading, justify=side, no_wrap=not column.is_text, overflow="fold")
    for line in cells:
        view.add_row(*map(escape, line))
    console.print(view)
