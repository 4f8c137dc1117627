"""A report on a terminal: tables that fit its width, with notes below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from launchopt.analysis.frontier.markdown import frontier_answer, frontier_grid, frontier_title
from launchopt.analysis.frontier.points import Frontier
from launchopt.analysis.stream_rows import stream_subtitle, stream_title
from launchopt.analysis.tables.columns import Column, T, below_table
from launchopt.analysis.tables.markdown import grid, short_caption, tokens_grid
from launchopt.analysis.tables.rows import Table
from launchopt.analysis.tables.strategies import StrategyTable
from launchopt.analysis.tables.strategies_markdown import refusals, strategies_grid, strategies_subtitle
from launchopt.analysis.waterfall.markdown import (
    waterfall_grid,
    waterfall_notes,
    waterfall_sentence,
    waterfall_title,
)
from launchopt.analysis.waterfall.steps import Waterfall
from runner.screen.pager import drawn

# Columns that a narrow terminal leaves out, the least important first.
DROPS = (
    *("max rel error", "memory bandwidth, % of peak", "roofline", "flushes", "batch size p50 / p99"),
    *(
        "break-even",
        "CPU us per launch",
        "sampling us a token",
        "GPU ms",
        "launch calls",
        "latency p50 / p99 us",
        "p99 us",
    ),
    *("TTFT p50 / p99 ms", "verdict", "overloaded", "verified", "max_batch, timeout"),
)
# The axes of the frontier always stay.
FRONTIER_DROPS = (
    *("flushes", "batch size p50 / p99", "bounds of commands/s", "bounds of tokens/s", "bounds of p99 us"),
    *("overloaded", "verified"),
)


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Print the tables of a report."""
    for table in tables:
        columns, cells, notes = grid(table, "terminal")
        _print_table(console, table.title, short_caption(table), columns, cells)
        numbered = [f"({index}) {note}" for index, note in enumerate(notes, 1)]
        below = below_table(table.lines, columns)
        for note in [*numbered, *below, *([str(table.peer)] if table.peer else [])]:
            console.print(f"  {escape(note)}", style="dim")
        if table.has_tokens:
            _print_table(console, "tokens", "", *tokens_grid(table, "terminal"))


def print_frontiers(frontiers: Sequence[Frontier], console: Console) -> None:
    """Print a table per frontier, with its recommendation."""
    for one in frontiers:
        columns, cells = frontier_grid(one, "terminal")
        _print_table(console, frontier_title(one), stream_subtitle(one.stream), columns, cells, FRONTIER_DROPS)
        for answer in frontier_answer(one):
            console.print(f"  {escape(answer)}")


def print_strategies(tables: Sequence[StrategyTable], console: Console) -> None:
    """Print a table per workload, with its refusals."""
    for table in tables:
        columns, cells, notes = strategies_grid(table, "terminal")
        _print_table(console, stream_title(table.stream), strategies_subtitle(table), columns, cells)
        below = [*below_table((each.line for each in table.strategies), columns), *refusals(table)]
        for note in [*(f"({index}) {note}" for index, note in enumerate(notes, 1)), *below]:
            console.print(f"  {escape(note)}", style="dim")


def print_waterfalls(found: Sequence[Waterfall], console: Console) -> None:
    """Print a table per order, with its whole and the arms that are left out."""
    for one in found:
        columns, cells = waterfall_grid(one, "terminal")
        caption = f"{stream_subtitle(one.stream)}, {waterfall_title(one)}"
        _print_table(console, stream_title(one.stream), caption, columns, cells)
        console.print(f"  {escape(waterfall_sentence(one))}")
        for note in waterfall_notes(one):
            console.print(f"  {escape(note)}", style="dim")


def _print_table(
    console: Console,
    title: str,
    caption: str,
    columns: Sequence[Column[T]],
    cells: Sequence[Sequence[str]],
    drops: Sequence[str] = DROPS,
) -> None:
    console.print(drawn(columns, cells, title, caption, drops))
