"""Tables of the page: headings with units, cells, sort keys and footnotes.

In: grids of the analysis (columns and texts). Out: a `Grid`, which the template writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from launchopt.analysis.tables.columns import Column, T
from launchopt.analysis.tables.frontier import Frontier
from launchopt.analysis.tables.frontier_markdown import frontier_grid
from launchopt.analysis.tables.markdown import grid, tokens_grid
from launchopt.analysis.tables.rows import Table
from launchopt.analysis.tables.strategies import StrategyTable
from launchopt.analysis.tables.strategies_markdown import strategies_grid
from launchopt.analysis.verdict.diagnosis import Diagnosis
from launchopt.analysis.verdict.markdown import diagnosis_grid

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
# Units of headings whose unit stands only in the legend of other outputs.
_UNITS = {
    "speed-up": "speed-up, x [95%]",
    "roofline": "roofline, % of a ceiling",
    "break-even": "break-even, commands (ms)",
    "share of copy BW": "share of copy BW, %",
    "launch reduction": "launch reduction, x",
    "headroom": "headroom, x",
    "predicted / measured": "predicted / measured, %",
    "batch size mean": "batch size mean, commands",
    "batch size p50 / p99": "batch size p50 / p99, commands",
    "goodput": "goodput, requests/s",
    "C++ loop": "C++ loop, x",
    "padded": "padded, commands",
}
# Columns of settings, with the text for the caption if all lines have one value.
_SETTINGS = {
    "configuration": "{}",
    "ordering": "ordering {}",
    "repeats": "{} repeats",
    "requests": "{} requests",
    "scheduler": "scheduler {}",
    "sampling": "sampling {}",
}


@dataclass(frozen=True, slots=True)
class Head:
    """A heading. A column of text is left-aligned and sorted by letter."""

    text: str
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its sort key; the key is None if the text is no number."""

    text: str
    number: float | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """A table with its caption and its footnotes."""

    caption: str
    heads: list[Head]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)


def leading_number(text: str) -> float | None:
    """Return the number that a cell begins with: 19.7 of `19.7x [19.7, 20.6]`."""
    found = _NUMBER.match(text)
    return float(found[0].replace(",", "")) if found else None


def make_grid(caption: str, heads: Sequence[Head], texts: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> Grid:
    """Return a grid of texts, with the numbers to sort by."""
    rows = [
        [Cell(text, None if head.is_text else leading_number(text)) for head, text in zip(heads, line, strict=True)]
        for line in texts
    ]
    return Grid(caption, list(heads), rows, list(notes))


def _of_columns(caption: str, columns: Sequence[Column[T]], cells: list[list[str]], notes: Sequence[str]) -> Grid:
    """Return a grid. Settings that all lines share are in its caption instead of a column."""
    shared = [
        at
        for at, column in enumerate(columns)
        if column.heading in _SETTINGS and len(cells) > 1 and len({line[at] for line in cells}) == 1
    ]
    settings = [_SETTINGS[columns[at].heading].format(cells[0][at]) for at in shared]
    kept = [at for at in range(len(columns)) if at not in shared]
    heads = [Head(_UNITS.get(columns[at].heading, columns[at].heading), columns[at].is_text) for at in kept]
    return make_grid(", ".join([caption, *settings]), heads, [[line[at] for at in kept] for line in cells], notes)


def remedies(table: StrategyTable) -> Grid:
    """Return all modes side by side: gains and costs."""
    columns, cells, notes = strategies_grid(table, "compact")
    first = [column.heading for column in columns].index("speed-up")
    after_mode = [column.heading for column in columns].index("mode") + 1
    # The speed-up comes early, so that the reader sees it without scrolling.
    order = [at for at in range(len(columns)) if at != first]
    order.insert(after_mode, first)
    moved = [[line[at] for at in order] for line in cells]
    return _of_columns("All modes, medians over repeats", [columns[at] for at in order], moved, notes)


def everything(table: Table) -> Grid:
    """Return every column of the report's tables."""
    columns, cells, notes = grid(table, "full")
    below = [*([str(table.peer)] if table.peer else []), *([table.history] if table.history else [])]
    return _of_columns("Configurations, latencies and C++ peers", columns, cells, [*notes, *below])


def tokens(table: Table) -> Grid | None:
    """Return tokens per second and their latencies; None for a stream without tokens."""
    if not table.has_tokens:
        return None
    return _of_columns("Tokens, medians over repeats", *tokens_grid(table, "full"), ())


def frontier(one: Frontier) -> Grid:
    """Return every point of a sweep."""
    return _of_columns("Every point of the sweep, medians over repeats", *frontier_grid(one, "full"), ())


def diagnosis(one: Diagnosis) -> Grid:
    """Return measured and predicted times, a line per mode."""
    return _of_columns("What each mode should take, and what it took", *diagnosis_grid(one), ())
