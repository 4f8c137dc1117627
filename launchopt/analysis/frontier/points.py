"""Throughput against tail latency: the frontier of bucket sizes and timeouts, and a recommendation.

In: rows as `results.read_summaries` gives them, and rows of `results.read_histograms`, if there are any. Out: a
`Frontier` per stream of commands: its points, those that no other point beats, and a choice under an objective for p99
latency. Pure: reads no file, prints nothing.

    stream      work, arrivals, order, scheduler and device agree; traced runs are left out
    point       mode, max_batch and timeout; throughput and p99 are medians over repeats, as their bounds are
    frontier    the valid points that no other point beats. A point beats another if it is at least as good in
                throughput and p99, and better in one of them
    choice      the point with the highest throughput within the objective. In an open loop the rate of arrivals limits
                throughput: there, points within 2% of the highest throughput are equal, and the lowest p99 wins

A point is valid if every repeat is verified, did not fail, and measured latencies. A point that arrivals overloaded is
not valid: its latencies grow with the length of the run.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from launchopt.analysis.stream_rows import (
    STREAM,
    disorder,
    grouped,
    sortable,
    stream_order,
    timeout,
    without_copies,
)
from launchopt.analysis.tables.rows import by_process, problem_of
from launchopt.recording.results import SUMMARY, Row
from launchopt.statistics.histogram import LogHistogram
from launchopt.statistics.processes import median_of

HISTOGRAMS_USED = ("latency", "batch_size")
SAME_THROUGHPUT = 0.02
FLUSHES = tuple(name for name in SUMMARY.names if name.startswith("flush_"))
_CONFIGURATION = ("mode", "max_batch", "timeout_us")

_Buckets = set[tuple[int, int, int]]


class Histograms:
    """Histograms of repeats, merged on request."""

    def __init__(self, rows: Iterable[Row], histogram_rows: Iterable[Row]) -> None:
        """Keep the buckets of the repeats in `rows`. A folder that is given twice counts once."""
        claimed = Counter(_repeat(row) for row in rows)
        self._buckets: dict[tuple[object, ...], _Buckets] = {}
        for row in histogram_rows:
            # If two runs have one name, it is unknown which run a bucket belongs to.
            if claimed[_repeat(row)] == 1:
                buckets = self._buckets.setdefault((*_repeat(row), row["what"]), set())
                buckets.add((row["low"], row["high"], row["count"]))

    def merged(self, rows: Iterable[Row], what: str) -> LogHistogram | None:
        """Return the histogram over all repeats in `rows`.

        None: a repeat has no histogram, and the others alone would be a selection.
        """
        found = [self._buckets.get((*_repeat(row), what)) for row in rows]
        if not found or None in found:
            return None
        return LogHistogram.from_rows(bucket for buckets in found if buckets for bucket in buckets)


def _repeat(row: Row) -> tuple[object, ...]:
    return row["run_id"], row["mode"], row["repeat"]


class Bounds(NamedTuple):
    """Bounds of a median over repeats: its 95% interval, or the spread of few repeats."""

    low: float
    high: float
    is_interval: bool


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration of a stream, over its repeats. None: not measured."""

    mode: str
    max_batch: int | None
    timeout_us: float | None
    repeats: int
    problem: str | None
    overloaded: bool
    throughput_per_s: float | None
    p99_us: float | None
    batch_size_mean: float | None = None
    batch_size_p50: float | None = None
    batch_size_p99: float | None = None
    flush_shares: dict[str, float] | None = None
    throughput_bounds: Bounds | None = None  # None: one repeat
    p99_bounds: Bounds | None = None
    completed_per_s: float | None = None  # requests an open loop completed per second

    @property
    def claims(self) -> bool:
        """Whether the point is valid, so that it may be compared with others."""
        return self.problem is None and not self.overloaded

    @property
    def batching(self) -> str:
        """Bucket size and timeout as text: `64 / 150 us`."""
        waited = "—" if self.timeout_us is None else f"{timeout(self.timeout_us)} us"
        return f"{'—' if self.max_batch is None else self.max_batch} / {waited}"

    def beats(self, other: Point) -> bool:
        """Return whether it is at least as good in throughput and p99, and better in one. Both must be valid."""
        ours, theirs = _goodness(self), _goodness(other)
        return ours != theirs and all(own >= their for own, their in zip(ours, theirs, strict=True))


@dataclass(frozen=True, slots=True)
class Frontier:
    """The points of one stream: all, those on the frontier by throughput, and the choice under an objective.

    recommended: None if there is no objective, or no point keeps it. If no point keeps it, `closest` is the point with
    the lowest p99.
    """

    stream: Row
    unit: str
    points: list[Point]
    frontier: list[Point]
    slo_p99_us: float | None = None
    recommended: Point | None = None
    closest: Point | None = None

    @property
    def mapped_modes(self) -> list[str]:
        """Modes with buckets that ran with several settings: a map of bucket size and timeout can show them."""
        modes = dict.fromkeys(point.mode for point in self.points)
        own = {mode: [point for point in self.points if point.mode == mode] for mode in modes}
        return [mode for mode in modes if len(own[mode]) > 1 and any((p.batch_size_mean or 2) > 1 for p in own[mode])]

    @property
    def measured(self) -> list[Point]:
        """Points that a picture can show: no repeat failed, and throughput and p99 are known."""
        return [p for p in self.points if p.problem is None and p.p99_us and p.throughput_per_s]

    def __getitem__(self, column: str) -> Any:
        """Return a column that all rows of the stream share, such as `workload`."""
        return self.stream[column]


def build_frontiers(
    rows: Iterable[Row], histogram_rows: Iterable[Row] = (), slo_p99_us: float | None = None
) -> list[Frontier]:
    """Return a frontier for each stream of the untraced `rows`, in the order of the report's tables.

    Raises DataError if two different rows claim to be the same repeat.
    """
    kept = [row for row in without_copies(rows) if not row["traced"]]
    histograms = Histograms(kept, histogram_rows)
    streams: dict[tuple[object, ...], list[Row]] = {}
    for row in kept:
        key = (*(row[name] for name in STREAM), disorder(row), row["sampling_where"])
        streams.setdefault(key, []).append(row)
    ordered = sorted(streams.values(), key=lambda members: (*stream_order(members), disorder(members[0]) or ""))
    return [_frontier(members, histograms, slo_p99_us) for members in ordered]


def pareto(points: Iterable[Point]) -> list[Point]:
    """Return the valid points that no other beats, by throughput and then p99."""
    claiming = [point for point in points if point.claims]
    unbeaten = [point for point in claiming if not any(other.beats(point) for other in claiming)]
    return sorted(unbeaten, key=_goodness)


def recommend(points: Iterable[Point], slo_p99_us: float, *, open_loop: bool) -> Point | None:
    """Return the point to take under an objective; None if no valid point keeps it."""
    within = [point for point in points if point.claims and -_goodness(point).minus_p99_us <= slo_p99_us]
    if not within:
        return None
    highest = max(_goodness(point).throughput_per_s for point in within)
    enough = highest * (1 - SAME_THROUGHPUT) if open_loop else highest
    return min((p for p in within if _goodness(p).throughput_per_s >= enough), key=_by_latency)


class _Goodness(NamedTuple):
    """Sort key of a point: throughput and the negative p99. Larger is better in both."""

    throughput_per_s: float
    minus_p99_us: float


def _goodness(point: Point) -> _Goodness:
    assert point.throughput_per_s is not None
    assert point.p99_us is not None
    return _Goodness(point.throughput_per_s, -point.p99_us)


def _by_latency(point: Point) -> tuple[float, float]:
    found = _goodness(point)
    return -found.minus_p99_us, -found.throughput_per_s


def _frontier(rows: list[Row], histograms: Histograms, slo_p99_us: float | None) -> Frontier:
    unit = "tokens" if all(row["tokens"] is not None for row in rows) else "commands"
    configurations = grouped(rows, _CONFIGURATION)
    configurations.sort(key=lambda members: [sortable(members[0][name]) for name in _CONFIGURATION])
    points = [_point(members, histograms, f"{unit}_per_s") for members in configurations]
    recommended = closest = None
    if slo_p99_us is not None:
        recommended = recommend(points, slo_p99_us, open_loop=rows[0]["arrival"] != "closed")
        if recommended is None:
            closest = min((p for p in points if p.claims), key=_by_latency, default=None)
    return Frontier(rows[0], unit, points, pareto(points), slo_p99_us, recommended, closest)


def _point(rows: list[Row], histograms: Histograms, throughput: str) -> Point:
    sizes = histograms.merged(rows, "batch_size")
    throughput_per_s, p99_us = _median(rows, throughput), _median(rows, "latency_p99_us")
    problem = problem_of(rows)
    if problem is None and (p99_us is None or throughput_per_s is None):
        problem = "no latency measured" if p99_us is None else "no throughput measured"
    flushes = Counter({name: sum(row[name] or 0 for row in rows) for name in FLUSHES})
    batches = flushes.total()
    return Point(
        **{name: rows[0][name] for name in _CONFIGURATION},
        repeats=len(rows),
        problem=problem,
        overloaded=any(row["overloaded"] for row in rows),
        throughput_per_s=throughput_per_s,
        p99_us=p99_us,
        batch_size_mean=_median(rows, "batch_size_mean"),
        batch_size_p50=None if sizes is None else sizes.percentile(50),
        batch_size_p99=None if sizes is None else sizes.percentile(99),
        flush_shares={name.removeprefix("flush_"): n / batches for name, n in flushes.items()} if batches else None,
        throughput_bounds=_bounds(rows, throughput),
        p99_bounds=_bounds(rows, "latency_p99_us"),
        completed_per_s=_median(rows, "completed_rate_per_s"),
    )


def _bounds(rows: Sequence[Row], column: str) -> Bounds | None:
    """Return the bounds of the median of a column; None if fewer than two repeats measured it."""
    known = [row for row in rows if row[column] is not None]
    if len(known) < 2:
        return None
    values = [row[column] for row in known]
    found = median_of(by_process(known, column))
    if found.low is not None and found.high is not None:
        return Bounds(found.low, found.high, is_interval=True)
    return Bounds(min(values), max(values), is_interval=False)


def _median(rows: Sequence[Row], column: str) -> float | None:
    values = [row[column] for row in rows if row[column] is not None]
    return statistics.median(values) if values else None
