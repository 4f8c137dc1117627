"""Figures of a benchmark. In: samples. Out: a row of bench.parquet, with the goal and whether it was met."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from launchopt.analysis.tables.markdown import plain
from launchopt.reading.parquet import Rules, checked
from launchopt.recording.columns import schema
from launchopt.recording.manifest import device_name, usable_manifest
from launchopt.recording.results import Row
from launchopt.statistics.interval import median_interval

BENCH = schema(
    (
        "suite",
        pa.string(),
        "ring, batcher, recorder, posting, dispatch, resident, stream, megakernel, attention, copies, collectives,"
        " tracing, modes or pipeline",
    ),
    ("case", pa.string(), "what was measured"),
    ("unit", pa.string(), "unit of median, low, high, goal and samples"),
    ("median", pa.float64(), "median of the samples"),
    ("low", pa.float64(), "lower end of the 95% interval of the median; null below five samples"),
    ("high", pa.float64(), "upper end of that interval; null below five samples"),
    ("goal", pa.float64(), "goal for the median; null if none was set"),
    ("goal_met", pa.bool_(), "the median is at the goal or better; null without a goal"),
    ("higher_is_better", pa.bool_(), "false for times and ratios of times"),
    ("samples", pa.list_(pa.float64()), "one per repeat, in order"),
)


FILE = "bench.parquet"
_MOST_ROWS = 10_000


def quantity(value: float | None) -> str:
    """Return a figure for people: three digits, millions as M."""
    if value is None:
        return "-"
    return f"{value / 1e6:,.2f} M" if value >= 1e6 else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def cells(row: Row) -> list[str]:
    """Return the cells of a row: part, what, median, interval, unit, goal, met."""
    samples = row["samples"]
    span = f"({quantity(min(samples))} to {quantity(max(samples))})" if len(samples) > 1 else "-"
    interval = span if row["low"] is None else f"{quantity(row['low'])} to {quantity(row['high'])}"
    met = "" if row["goal_met"] is None else "yes" if row["goal_met"] else "NO"
    goal = "" if row["goal"] is None else f"{'>=' if row['higher_is_better'] else '<='} {quantity(row['goal'])}"
    return [row["suite"], row["case"], quantity(row["median"]), interval, row["unit"], goal, met]


HEADINGS = {"part": "---", "what": "---", "median": "---:", "95% interval": "---:", "unit": "---", "goal": "---:"}
HEADINGS |= {"met": "---"}


def read(folder: Path) -> list[Row]:
    """Return the rows of a result; DataError if there is none."""
    path = folder / FILE
    known = ("suite", "case", "unit", "median", "higher_is_better", "samples")
    rules = Rules(BENCH, BENCH.names, known, is_signed=True, most_rows=_MOST_ROWS, what="a result of launchopt bench")
    return [row for batch in checked(path, rules) for row in batch.to_pylist()]


def markdown(folder: Path) -> str:
    """Return a result as a table for a README; ends with a newline."""
    rows, manifest = read(folder), usable_manifest(folder) or {}
    python = (manifest.get("environment") or {}).get("python") or "unknown"
    place = f"{device_name(manifest)}; Python {python}."
    return f"{place}\n\n{plain(HEADINGS, map(cells, rows))}"


@dataclass(frozen=True, slots=True)
class Figure:
    """Samples of one quantity."""

    suite: str
    case: str
    unit: str
    samples: Sequence[float]
    goal: float | None = None
    higher_is_better: bool = False

    def row(self) -> Row:
        """Return the row, in the columns of BENCH."""
        interval = median_interval(list(self.samples))
        median = statistics.median(self.samples)
        met = None if self.goal is None else (median >= self.goal if self.higher_is_better else median <= self.goal)
        return {
            "suite": self.suite,
            "case": self.case,
            "unit": self.unit,
            "median": median,
            "low": interval.low,
            "high": interval.high,
            "goal": self.goal,
            "goal_met": met,
            "higher_is_better": self.higher_is_better,
            "samples": list(self.samples),
        }


Suite = Callable[[int], Iterator[Figure]]  # repeats -> figures


def in_turn(repeats: int, *works: Callable[[], float]) -> list[list[float]]:
    """Return samples of each work, taken in turn so that drift affects all alike. The first round is dropped."""
    for work in works:
        work()
    rounds = [[work() for work in works] for _ in range(repeats)]
    return [list(samples) for samples in zip(*rounds, strict=True)]


def ratios(candidate: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Return candidate / reference, pair by pair."""
    return [ours / theirs for ours, theirs in zip(candidate, reference, strict=True)]
