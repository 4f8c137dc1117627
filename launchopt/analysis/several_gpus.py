"""What each GPU did in runs on several GPUs: throughput, imbalance and latency.

In: rows of summary.parquet and of gpus.parquet. Out: lines of text, two for each mode of a run. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from launchopt.analysis.stream_rows import counted, grouped
from launchopt.recording.results import Row

NOT_ASKED = "over several GPUs no bound is concluded: give the verdict on a run with one of them, device.gpus=[K]"


def is_on_several(row: Row) -> bool:
    """Return whether a row of the summary is of a run on several GPUs."""
    return bool(row.get("gpus"))


def gpu_lines(rows: Iterable[Row], gpus: Sequence[Row]) -> list[str]:
    """Return the lines on each mode of each run on several GPUs. gpus: rows of gpus.parquet."""
    lines = []
    for group in grouped(filter(is_on_several, rows), ("run_id", "mode")):
        first = group[0]
        lines.append(_split(group) if first.get("tensor") else _routed(group))
        own = [row for row in gpus if (row["run_id"], row["mode"]) == (first["run_id"], first["mode"])]
        lines += [f"  GPU {each[0]['gpu']}: {_one(each)}" for each in grouped(own, ("gpu",))]
    return lines


def _routed(rows: Sequence[Row]) -> str:
    first, whole = rows[0], _median(rows, "commands_per_s")
    return (
        f"{first['mode']} on {first['gpus']} GPUs ({first['routing']}): {whole:,.0f} commands/s,"
        f" imbalance of commands {_median(rows, 'gpu_imbalance'):.1%}{_producer(rows, whole)}"
    )


def _split(rows: Sequence[Row]) -> str:
    first = rows[0]
    whole = f"{first['mode']} split over {first['tensor']} GPUs"
    if any(row["collectives"] is None for row in rows):
        return f"{whole}: all-reduces by NCCL, which counts none"
    text = f"{whole}: {_median(rows, 'collectives'):,.0f} all-reduces"
    if any(row["all_reduce_us"] is None for row in rows):
        return text
    times = _median(rows, "all_reduce_us"), _median(rows, "all_reduce_wait_us")
    return f"{text} of {times[0]:,.1f} us, {times[1]:,.1f} us waiting for the other GPUs as a mean over them"


def _one(rows: Sequence[Row]) -> str:
    requests, commands = _median(rows, "requests"), _median(rows, "commands")
    who = f" of {requests:,.0f} requests" if requests != commands else ""
    speed = f"{_median(rows, 'commands_per_s'):,.0f}/s, {_median(rows, 'wall_ms'):,.2f} ms"
    text = f"{counted(round(commands), 'command')}{who}, {speed}"
    if all(row["latency_p50_us"] is not None for row in rows):
        p50_us, p99_us = _median(rows, "latency_p50_us"), _median(rows, "latency_p99_us")
        text += f", latency {p50_us:,.1f} us, p99 {p99_us:,.1f} us"
    return text + _clocks(rows)


def _clocks(rows: Sequence[Row]) -> str:
    """Return the SM clock of a GPU, and why it throttled; nothing without readings."""
    if any(row.get("sm_clock_mhz") is None for row in rows):
        return ""
    lowest = min(row["sm_clock_min_mhz"] for row in rows)
    reasons = dict.fromkeys(name for row in rows for name in (row["throttle_reasons"] or "").split(", ") if name)
    throttled = f", throttled ({', '.join(reasons)})" if reasons else ""
    return f", SM clock {_median(rows, 'sm_clock_mhz'):,.0f} MHz, lowest {lowest:,.0f}{throttled}"


def _producer(rows: Sequence[Row], whole: float) -> str:
    if any(row["producer_commands_per_s"] is None for row in rows):
        return ""
    rate = _median(rows, "producer_commands_per_s")
    limit = ", which limits them" if whole > 0.9 * rate else ""
    return f"; the producer routes {rate:,.0f}/s{limit}"


def _median(rows: Sequence[Row], name: str) -> float:
    return float(median(row[name] for row in rows))
