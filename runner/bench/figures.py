"""Figures of a benchmark. In: samples. Out: a row of bench.parquet, with the goal and whether it was met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

import pyarrow as pa

from launchopt.analysis.tables.markdown import plain
from launchopt.errors import DataError
from launchopt.reading.parquet import Rules, checked
from launchopt.recording.columns import schema
from launchopt.recording.manifest import device_name, usable_manifest
from launchopt.recording.results import Row
from launchopt.statistics.processes import median_of

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
    (
        "low",
        pa.float64(),
        "lower end of the 95% interval of the median: of the samples of one process, or of the medians of several "
        "processes; null below five of them",
    ),
    ("high", pa.float64(), "upper end of that interval"),
    ("goal", pa.float64(), "goal for the median; null if none was set"),
    ("goal_met", pa.bool_(), "the median is at the goal or better; null without a goal"),
    ("higher_is_better", pa.bool_(), "false for times and ratios of times"),
    ("samples", pa.list_(pa.float64()), "one per repeat, in order, process by process"),
    ("samples_of", pa.list_(pa.int64()), "the number of samples of each process; null in older files: one process"),
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
    ends = list(map(median, groups(row))) if len(row["samples_of"]) > 1 else row["samples"]
    span = f"({quantity(min(ends))} to {quantity(max(ends))})" if len(ends) > 1 else "-"
    interval = span if row["low"] is None else f"{quantity(row['low'])} to {quantity(row['high'])}"
    met = "" if row["goal_met"] is None else "yes" if row["goal_met"] else "NO"
    goal = "" if row["goal"] is None else f"{'>=' if row['higher_is_better'] else '<='} {quantity(row['goal'])}"
    return [row["suite"], row["case"], quantity(row["median"]), interval, row["unit"], goal, met]


HEADINGS = {"part": "---", "what": "---", "median": "---:", "interval": "---:", "unit": "---", "goal": "---:"}
HEADINGS |= {"met": "---"}


def legend(rows: Sequence[Row]) -> list[str]:
    """Return the sentences that explain the column `interval` of these rows."""
    spans = {_of(len(row["samples_of"])) for row in rows if row["low"] is None and len(row["samples"]) > 1}
    intervals = {_of(len(row["samples_of"])) for row in rows if row["low"] is not None}
    lines = [f"In (): from the smallest to the largest of {each}." for each in sorted(spans)]
    return [*lines, *(f"Interval: 95% (94% at five values), of the median, from {each}." for each in sorted(intervals))]


def _of(processes: int) -> str:
    return "the repeats" if processes == 1 else f"the medians of {processes} processes"


def read(folder: Path) -> list[Row]:
    """Return the rows of a result; DataError if there is none."""
    path = folder / FILE
    known = ("suite", "case", "unit", "median", "higher_is_better", "samples")
    required = [name for name in BENCH.names if name != "samples_of"]
    rules = Rules(BENCH, required, known, is_signed=True, most_rows=_MOST_ROWS, what="a result of launchopt bench")
    rows = [row for batch in checked(path, rules) for row in batch.to_pylist()]
    for row in rows:
        number = len(row["samples"])
        counts = row["samples_of"] = row["samples_of"] or [number]
        if not number or any(count is None or count < 1 for count in counts) or sum(counts) != number:
            raise DataError(path, None, f"{row['case']}: {number} samples, {counts} of processes")
    return rows


def groups(row: Row) -> list[list[float]]:
    """Return the samples of a row that was read, process by process."""
    samples = iter(row["samples"])
    return [list(islice(samples, count)) for count in row["samples_of"]]


def markdown(folder: Path) -> str:
    """Return a result as a table for a README; ends with a newline."""
    rows, manifest = read(folder), usable_manifest(folder) or {}
    python = (manifest.get("environment") or {}).get("python") or "unknown"
    place = " ".join([f"{device_name(manifest)}; Python {python}.", *legend(rows)])
    return f"{place}\n\n{plain(HEADINGS, map(cells, rows))}"


@dataclass(frozen=True, slots=True)
class Figure:
    """Samples of one quantity. samples_of: the number of samples of each process, if there were several."""

    suite: str
    case: str
    unit: str
    samples: Sequence[float]
    goal: float | None = None
    higher_is_better: bool = False
    samples_of: Sequence[int] = ()

    def row(self) -> Row:
        """Return the row, in the columns of BENCH."""
        counts = list(self.samples_of) or [len(self.samples)]
        interval = median_of(groups({"samples": self.samples, "samples_of": counts}))
        middle = interval.value
        met = None if self.goal is None else (middle >= self.goal if self.higher_is_better else middle <= self.goal)
        return {
            "suite": self.suite,
            "case": self.case,
            "unit": self.unit,
            "median": middle,
            "low": interval.low,
            "high": interval.high,
            "goal": self.goal,
            "goal_met": met,
            "higher_is_better": self.higher_is_better,
            "samples": list(self.samples),
            "samples_of": counts,
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
