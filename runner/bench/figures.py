"""A benchmark's figures: samples in, a row of bench.parquet out, with its goal and whether it was met."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from launchopt.analysis.interval import median_interval
from launchopt.results import Row, schema

BENCH = schema(
    ("suite", pa.string(), "ring, batcher, recorder, dispatch or pipeline"),
    ("case", pa.string(), "what was measured"),
    ("unit", pa.string(), "of median, low, high, goal and samples"),
    ("median", pa.float64(), "over the samples"),
    ("low", pa.float64(), "95% bootstrap interval of the median; null below three samples"),
    ("high", pa.float64(), "the same"),
    ("goal", pa.float64(), "null where none was set"),
    ("goal_met", pa.bool_(), "the median is at the goal or better; null without a goal"),
    ("higher_is_better", pa.bool_(), "false for times and ratios of times"),
    ("samples", pa.list_(pa.float64()), "one a repeat, in order"),
)


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
        """As BENCH has it."""
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


Suite = Callable[[int], Iterator[Figure]]  # from repeats to figures


def in_turn(repeats: int, *works: Callable[[], float]) -> list[list[float]]:
    """Samples of each work, in turn, so that a drift of the machine meets all alike; the first round is dropped."""
    for work in works:
        work()
    rounds = [[work() for work in works] for _ in range(repeats)]
    return [list(samples) for samples in zip(*rounds, strict=True)]


def ratios(candidate: Sequence[float], reference: Sequence[float]) -> list[float]:
    """candidate / reference, pair by pair."""
    return [ours / theirs for ours, theirs in zip(candidate, reference, strict=True)]
