"""Tables of the page: headings with units, cells, sort keys and footnotes.

In: grids of the analysis (columns and texts). Out: a `Grid`, which the template writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launchopt.analysis.frontier.markdown import frontier_grid
from launchopt.analysis.frontier.points import Frontier
from launchopt.analysis.tables.columns import AT_THE_PEAK, COLUMNS, FULL, NOTHING, Column, T, below_table, count, pair
from launchopt.analysis.tables.markdown import grid, tokens_grid
from launchopt.analysis.tables.rows import Table
from launchopt.analysis.tables.strategies import StrategyTable
from launchopt.analysis.tables.strategies_markdown import strategies_grid
from launchopt.analysis.verdict.diagnosis import Diagnosis
from launchopt.analysis.verdict.markdown import diagnosis_grid
from launchopt.analysis.verdict.roofline import recorded_launches
from launchopt.analysis.waterfall.markdown import waterfall_grid, waterfall_notes, waterfall_title
from launchopt.analysis.waterfall.steps import Waterfall
from launchopt.report.figures.base import ALL_MODES

_AS_NUMBERS = {AT_THE_PEAK: 100.0, "at once": 0.0}  # in % of the peak, and in commands
_MARKS = re.compile(r"( \(\d+\))+$")  # numbers of notes
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
# Units of headings whose unit stands only in the legend of other outputs.
_UNITS = {
    "speed-up": "speed-up, x [95%]",
    "roofline": "roofline, % of a ceiling",
    "break-even": "break-even, tokens or commands (ms)",
    "launch reduction": "launch reduction, x",
    "headroom": "headroom, x",
    "predicted / measured": "predicted / measured, %",
    "batch size mean": "batch size mean, commands",
    "batch size p50 / p99": "batch size p50 / p99, commands",
    "goodput": "goodput, requests/s",
    "C++ loop": "C++ loop, x",
    "brings us": "brings us [95%]",
    "share": "share of the whole, %",
    "padded": "padded, commands",
}
# Columns of settings, with the text for the caption if all lines have one value.
_SETTINGS = {
    "configuration": "{}",
    "ordering": "ordering {}",
    "repeats": "{} repeats of each mode",
    "requests": "{} requests",
    "scheduler": "scheduler {}",
    "sampling": "sampling {}",
}


# Columns of a wide table by importance. It shows the first MOST; a smaller table shows all, in its own order.
_FIRST = (
    *("run", "max_batch, timeout", "mode", "max_batch", "timeout us", "speed-up", "wall ms", "launch calls"),
    *("CPU us per launch", "measured ms", "predicted ms", "headroom", "bound", "p99 us", "roofline"),
    *("on the frontier", "commands/s", "tokens/s", "TTFT p50 / p99 ms", "TPOT p50 / p99 ms", "flushes", "overloaded"),
)
_LAST = "verified"  # is always shown
MOST = 8
TPOT = "TPOT p50 / p99 ms"
OF_LAYERS = ("tokens/s", "TTFT p50 / p99 ms", TPOT)  # columns that depend on the number of layers


@dataclass(frozen=True, slots=True)
class Head:
    """A heading. A column of text is left-aligned and sorted by letter. An extra column is shown on request."""

    text: str
    is_text: bool = False
    is_extra: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its sort key; the key is None if the text is no number."""

    text: str
    number: float | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """A table with its caption and its footnotes.

    links: an anchor per row that its first cell links to, or none. below: lines under the table that no cell refers to.
    """

    caption: str
    heads: list[Head]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)

    @property
    def extra(self) -> int:
        """Number of columns that are shown on request."""
        return sum(head.is_extra for head in self.heads)

    @property
    def is_few(self) -> bool:
        """Return whether the page shows few columns, which fit their box: longer cells wrap there."""
        return len(self.heads) - self.extra <= MOST


def leading_number(text: str) -> float | None:
    """Return the number that a cell begins with: 19.7 of `19.7x [19.7, 20.6]`; a word of `_AS_NUMBERS` has its own."""
    for word, number in _AS_NUMBERS.items():
        if _MARKS.sub("", text).endswith(word):
            return number
    found = _NUMBER.match(text)
    return float(found[0].replace(",", "")) if found else None


def make_grid(
    caption: str,
    heads: Sequence[Head],
    texts: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    links: Sequence[str] = (),
) -> Grid:
    """Return a grid of texts, with the numbers to sort by. A column without any value is left out."""
    empty = {at for at in range(1, len(heads)) if texts and all(line[at] in ("", NOTHING) for line in texts)}
    kept = [at for at in range(len(heads)) if at not in empty]
    rows = [[Cell(line[at], None if heads[at].is_text else leading_number(line[at])) for at in kept] for line in texts]
    return Grid(caption, [heads[at] for at in kept], rows, list(notes), list(links))


def _of_columns(
    caption: str, columns: Sequence[Column[T]], cells: list[list[str]], device: str, notes: Sequence[str] = ()
) -> Grid:
    """Return a grid. Settings that all lines share are in its caption instead of a column.

    Of more than `MOST` columns the most important are shown, and the others are extra ones.
    """
    texts = [column.heading for column in columns]
    shared = [
        at
        for at, heading in enumerate(texts)
        if heading in _SETTINGS and len(cells) > 1 and len({line[at] for line in cells}) == 1
    ]
    settings = [_setting(texts[at], cells[0][at]) for at in shared]
    kept = [at for at in range(len(columns)) if at not in shared]
    has_value = [at for at in kept if not all(line[at] == NOTHING for line in cells)]
    if len(has_value) > MOST:
        kept.sort(key=lambda at: _place(texts[at]))
        first = [at for at in kept if at in has_value and texts[at] != _LAST]
        shown = {*first[: MOST - 1], *(at for at in kept if texts[at] == _LAST)}
        kept.sort(key=lambda at: at not in shown)
    else:
        shown = set(kept)
    heads = [Head(_heading(texts[at], device), columns[at].is_text, is_extra=at not in shown) for at in kept]
    return make_grid(", ".join([caption, *settings]), heads, [[line[at] for at in kept] for line in cells], notes)


def _setting(heading: str, text: str) -> str:
    """Return the setting as the caption has it: `1 repeat of each mode`, `5 repeats of each mode`."""
    setting = _SETTINGS[heading].format(text)
    return setting.replace("1 repeats", "1 repeat").replace("1 requests", "1 request") if text == "1" else setting


def _place(heading: str) -> int:
    return _FIRST.index(heading) if heading in _FIRST else len(_FIRST) + (heading != _LAST)


def _heading(text: str, device: str) -> str:
    """Return the heading with its unit. Only a GPU's columns are named after it."""
    text = _UNITS.get(text, text)
    return text if device == "cuda" else text.replace("GPU", "CPU")


def modes(strategy: StrategyTable, table: Table) -> Grid:
    """Return every line with its gains and costs, and every other column of the report's tables as extra ones."""
    columns, cells, notes = strategies_grid(strategy, "compact")
    known = {column.heading for column in columns} | {"run", "configuration", "max_batch, timeout"}
    others = [column for column in COLUMNS if column.sets & FULL and column.heading not in known]
    more = [[column.cell(each.line) for column in others] for each in strategy.strategies]
    every: list[Column[Any]] = [*columns, *others]
    below = [
        *_packing(table),
        *([str(table.peer)] if table.peer else []),
        *([str(table.history)] if table.history else []),
        *below_table((each.line for each in strategy.strategies), columns),
    ]
    together = [[*line, *rest] for line, rest in zip(cells, more, strict=True)]
    found = _of_columns(ALL_MODES, every, together, table["device"], notes)
    return replace(found, below=below)


def _packing(table: Table) -> list[str]:
    """Return a line on modes whose launches take several calls: CPU us per launch counts such a launch once."""
    several = [
        f"{line['mode']} {count(launches)} of {count(calls)} calls"
        for line in table.lines
        if (calls := line.median("launch_calls")) and (launches := recorded_launches(line)) and launches < calls
    ]
    text = "CPU us per launch: the mean over launches, each with all its calls. Launches: "
    return [f"{text}{', '.join(several)}."] if several else []


def everything(table: Table) -> Grid:
    """Return every column of the report's tables."""
    columns, cells, notes = grid(table, "full")
    return _of_columns("Configurations and latencies", columns, cells, table["device"], notes)


def tokens(table: Table, model_layers: int | None = None) -> Grid | None:
    """Return tokens per second and their latencies; None for a stream without tokens.

    If fewer than `model_layers` ran, headings say so, and a further column has the TPOT of all layers.
    """
    if not table.has_tokens:
        return None
    columns, cells = tokens_grid(table, "full")
    found = _of_columns("Tokens, medians over repeats", columns, cells, table["device"])
    ran, texts = table["layers"], [head.text for head in found.heads]
    if not (ran and model_layers and ran < model_layers) or TPOT not in texts:
        return found
    at, measured = texts.index(TPOT), f", {ran} of {model_layers} layers"
    heads = [replace(head, text=head.text + measured * (head.text in OF_LAYERS)) for head in found.heads]
    heads.insert(at + 1, Head(f"{TPOT}, scaled to all layers"))
    scaled = [
        pair(*(ms and ms * model_layers / ran for ms in (line.median("tpot_p50_ms"), line.median("tpot_p99_ms"))))
        for line in table.lines
        if line.median("tokens") is not None
    ]
    rows = [
        [*row[: at + 1], Cell(text, leading_number(text)), *row[at + 1 :]]
        for row, text in zip(found.rows, scaled, strict=True)
    ]
    return replace(found, heads=heads, rows=rows)


def frontier(one: Frontier) -> Grid:
    """Return every point of a sweep."""
    columns, cells = frontier_grid(one, "full")
    return _of_columns("Every point of the sweep, medians over repeats", columns, cells, one["device"])


def waterfall(one: Waterfall) -> Grid:
    """Return what each choice of one order brings."""
    columns, cells = waterfall_grid(one, "full")
    caption = f"What each choice brings: {waterfall_title(one)}"
    return replace(_of_columns(caption, columns, cells, one.stream["device"]), below=waterfall_notes(one))


def diagnosis(one: Diagnosis, device: str) -> Grid:
    """Return measured and predicted times, a line per mode."""
    return _of_columns("Measured and predicted time of each mode", *diagnosis_grid(one), device)
