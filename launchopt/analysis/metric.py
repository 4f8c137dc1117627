"""The metric that decides between two modes: the same on the screen of a run, in `compare`, a report and a verdict.

In: rows of a summary. Out: a column and its name in a sentence. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from launchopt.recording.results import Row

WALL, LATENCY = "wall_ms", "latency_p50_us"
NAMES = {WALL: "wall time", LATENCY: "median latency"}


def metric_of(rows: Iterable[Row]) -> str:
    """Return the metric that decides between the modes of `rows`.

    Closed loop: wall time. Open loop that kept up: median latency, since wall time follows the arrivals. Overloaded
    open loop: wall time, since latencies grow with the length of the run.
    """
    return LATENCY if all(map(_has_latency, rows)) else WALL


def unless_wall(metrics: Iterable[str]) -> str:
    """Return ` in median latency` if a metric of factors is not wall time; no text if all are wall time."""
    others = [name_of(each) for each in dict.fromkeys(metrics) if each != WALL]
    return f" in {' and '.join(others)}" if others else ""


def name_of(metric: str) -> str:
    """Return the name of a metric in a sentence: `wall time`; the column where it has no other name."""
    return NAMES.get(metric, metric)


def is_overloaded(rows: Iterable[Row]) -> bool:
    """Return whether a repeat did not keep up with its arrivals."""
    return any(row["overloaded"] for row in rows)


def _has_latency(row: Row) -> bool:
    """Return whether the latency of a repeat is that of a system that kept up with its arrivals."""
    kept_up = row["arrival"] != "closed" and row["overloaded"] is False
    return kept_up and row[LATENCY] is not None and row[LATENCY] > 0
