"""One line per stream of commands: the fastest verified mode, and its speed-up.

In: the tables of the analysis. Out: a `Glance` per stream, as a grid for the page or cells for Markdown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launchopt.analysis.stream_rows import arrivals
from launchopt.analysis.tables.columns import NOTHING, count, mode_name, number, speedup
from launchopt.analysis.tables.rows import Line, Table
from launchopt.report.grids import Grid, Head, make_grid
from launchopt.report.titles import stream_names
from launchopt.statistics.interval import Verdict

HEADS = (
    *(Head("work", True), Head("fastest mode", True), Head("speed-up, x [95%]")),
    *(Head("base wall ms"), Head("its wall ms"), Head("base launch calls", is_extra=True)),
    *(Head("its launch calls", is_extra=True), Head("modes faster / tried"), Head("verified repeats")),
)


@dataclass(frozen=True, slots=True)
class Glance:
    """One workload stream with its name on the page and its best line. `best` is None if no line is proven faster."""

    table: Table
    name: str
    best: Line | None

    @property
    def cells(self) -> list[str]:
        """Return the cells in the order of `HEADS`."""
        lines, best = self.table.lines, self.best
        baseline = best.baseline if best else next((line for line in lines if line.is_baseline), None)
        candidates = [line for line in lines if not line.is_baseline]
        faster = sum(line.verdict is Verdict.FASTER for line in candidates)
        rows = [row for line in lines for row in line.rows]
        first = lines[0].rows[0]
        rate = "" if first["arrival"] == "closed" else f", {arrivals(first)}"
        return [
            f"{self.table.title}{rate}",
            _described(best) if best else self._why_none,
            speedup(best) if best else NOTHING,
            number(baseline.median("wall_ms")) if baseline else NOTHING,
            number(best.median("wall_ms")) if best else NOTHING,
            count(baseline.median("launch_calls")) if baseline else NOTHING,
            count(best.median("launch_calls")) if best else NOTHING,
            f"{faster} / {len(candidates)}",
            f"{sum(bool(row['verified']) for row in rows)} / {len(rows)}",
        ]

    @property
    def _why_none(self) -> str:
        if not self.has_comparison:
            return "no baseline, or nothing beside it: no comparison"
        return "none is proven faster"

    @property
    def best_measured(self) -> Line | None:
        """Return the line of the highest rank, proven faster or not; None without a comparison."""
        return max((line for line in self.table.lines if line.speedup is not None), key=rank, default=None)

    @property
    def has_comparison(self) -> bool:
        """Whether any line was compared with a baseline."""
        return any(line.verdict is not None for line in self.table.lines)


def _described(line: Line) -> str:
    return f"{mode_name(line)} ({line.configuration})"


def glances(tables: Iterable[Table]) -> list[Glance]:
    """Return a glance per untraced stream."""
    untraced = [table for table in tables if not table["traced"]]
    names = stream_names([table.lines[0].rows[0] for table in untraced])
    return [Glance(table, name, _best(table)) for table, name in zip(untraced, names, strict=True)]


def rank(line: Line) -> tuple[bool, float]:
    """Return a key that sorts by speed-up. A line that ignored the order of the commands did other work: it is last."""
    return line.disorder is None, line.speedup.value if line.speedup else 0.0


def _best(table: Table) -> Line | None:
    """Return the line of the highest rank among those proven faster."""
    faster = [line for line in table.lines if line.verdict is Verdict.FASTER and line.speedup is not None]
    return max(faster, key=rank, default=None)


def glance_grid(found: Sequence[Glance], anchors: Sequence[str]) -> Grid:
    """Return all glances as one table, with a link from each to its section."""
    texts = [[one.name, *one.cells[1:]] for one in found]
    return make_grid("At a glance: the fastest verified mode of each stream", HEADS, texts, links=anchors)
