"""The metric that decides between two modes: the same on the screen of a run, in `compare`, a report and a verdict.

In: rows of a summary. Out: a column and its name in a sentence. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from launchopt.errors import explained, nearest
from launchopt.recording.results import Row
from launchopt.recording.summary_columns import SUMMARY

WALL, LATENCY = "wall_ms", "latency_p50_us"
NAMES = {WALL: "wall time", LATENCY: "median latency"}
OPEN_LOOP = "open loop: wall time follows the arrivals; a latency says more"
KEPT_UP = "open loop that kept up: median latency decides, since wall time follows the arrivals"
OVERLOADED = "overloaded: latencies grow with the length of the run, so wall time decides"
GROWING = "overloaded: latencies grow with the length of the run; wall time says more"
# Each row of a process repeats the value of these columns.
ONCE_A_PROCESS = ("setup_ms", "capture_ms", "instantiate_ms", "upload_ms", "compile_ms", "tuning_ms")
_TIMES = {"_ms": "ms", "_us": "us", "_ns": "ns", "_ns_per_launch": "ns"}
RATES = {"_gb_per_s": "GB/s", "_tflops": "TFLOP/s", "_per_s": "/s"}
_NOT_MEASURED = (
    *("timeout_us", "slo_ttft_ms", "slo_tpot_ms"),
    *("arrival_rate_per_s", "copy_gb_per_s", "read_gb_per_s", "peak_tflops"),
)


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


def has_kept_up(rows: Iterable[Row]) -> bool:
    """Return whether every repeat kept up with its arrivals."""
    return all(row["overloaded"] is False for row in rows)


def _has_latency(row: Row) -> bool:
    """Return whether the latency of a repeat is that of a system that kept up with its arrivals."""
    kept_up = row["arrival"] != "closed" and row["overloaded"] is False
    return kept_up and row[LATENCY] is not None and row[LATENCY] > 0


def metrics() -> list[str]:
    """Return the columns of the summary that can be compared: measured times and rates."""
    return sorted(name for name in SUMMARY.names if name.endswith((*_TIMES, *RATES)) and name not in _NOT_MEASURED)


def no_metric(metric: str) -> str:
    """Return the error message for a metric that is not in `metrics()`."""
    near = [f"--metric {each}" for each in nearest(metric, metrics())]
    return explained("no such metric", "wall_ms, latency_p99_us, commands_per_s and other columns with a unit", near)


def unit_of(metric: str) -> str:
    """Return the unit of a column: `ms`, `us`, `GB/s` or `/s`."""
    return next(unit for ending, unit in {**_TIMES, **RATES}.items() if metric.endswith(ending))


def on_open_loop(metric: str, *, overloaded: bool) -> list[str]:
    """Return why the metric of an open loop decides, or which one says more."""
    if overloaded:
        return {WALL: [OVERLOADED], LATENCY: [GROWING]}.get(metric, [])
    return {WALL: [OPEN_LOOP], LATENCY: [KEPT_UP]}.get(metric, [])
