"""What each GPU did in runs on several GPUs: throughput, imbalance and latency.

In: rows of summary.parquet and of gpus.parquet. Out: lines of text, two for each mode of a run. Pure. Files of other
programs may lack any value: a dash stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from launchopt.analysis.line_names import named_by_run
from launchopt.analysis.stream_rows import counted, grouped
from launchopt.analysis.tables.columns import NOTHING
from launchopt.recording.results import Row

NOT_ASKED = "over several GPUs no bound is concluded: give the verdict on a run with one of them, device.gpus=[K]"


def is_on_several(row: Row) -> bool:
    """Return whether a row of the summary is of a run on several GPUs."""
    return bool(row.get("gpus"))


def gpu_lines(rows: Iterable[Row], gpus: Sequence[Row]) -> list[str]:
    """Return the lines on each mode of each run on several GPUs, with its run if there are several.

    gpus: rows of gpus.parquet.
    """
    lines = []
    kept = list(filter(is_on_several, rows))
    runs = {row["run_id"] for row in kept}
    for group in grouped(kept, ("run_id", "mode")):
        first = group[0]
        name = named_by_run(first["mode"], first["run_id"], runs)
        lines.append(_split(name, group) if first.get("tensor") else _routed(name, group))
        own = [row for row in gpus if (row["run_id"], row["mode"]) == (first["run_id"], first["mode"])]
        lines += [f"  GPU {each[0]['gpu']}: {_one(each)}" for each in grouped(own, ("gpu",))]
    return lines


def _routed(name: str, rows: Sequence[Row]) -> str:
    first = rows[0]
    return (
        f"{name} on {first['gpus']} GPUs ({first['routing']}): {_shown(rows, 'commands_per_s')} commands/s,"
        f" imbalance of commands {_shown(rows, 'gpu_imbalance', '.1%')}{_producer(rows)}"
    )


def _split(name: str, rows: Sequence[Row]) -> str:
    first = rows[0]
    whole = f"{name} split over {first['tensor']} GPUs"
    if any(row["collectives"] is None for row in rows):
        return f"{whole}: all-reduces by NCCL, which counts none"
    text = f"{whole}: {_shown(rows, 'collectives')} all-reduces"
    if any(row["all_reduce_us"] is None for row in rows):
        return text
    took, waited = (_shown(rows, name, ",.1f") for name in ("all_reduce_us", "all_reduce_wait_us"))
    return f"{text} of {took} us, {waited} us waiting for the other GPUs as a mean over them"


def _one(rows: Sequence[Row]) -> str:
    requests, commands = _median(rows, "requests"), _median(rows, "commands")
    who = f" of {_shown(rows, 'requests')} requests" if requests != commands else ""
    number = f"{NOTHING} commands" if commands is None else counted(round(commands), "command")
    text = f"{number}{who}, {_shown(rows, 'commands_per_s')}/s, {_shown(rows, 'wall_ms', ',.2f')} ms"
    if all(row["latency_p50_us"] is not None for row in rows):
        p50_us, p99_us = (_shown(rows, f"latency_{name}_us", ",.1f") for name in ("p50", "p99"))
        text += f", latency {p50_us} us, p99 {p99_us} us"
    return text + _clocks(rows)


def _clocks(rows: Sequence[Row]) -> str:
    """Return the SM clock of a GPU, and why it throttled; nothing without readings."""
    if any(row.get("sm_clock_mhz") is None for row in rows):
        return ""
    lows = [row["sm_clock_min_mhz"] for row in rows]
    lowest = NOTHING if None in lows else f"{min(lows):,.0f}"
    reasons = dict.fromkeys(name for row in rows for name in (row["throttle_reasons"] or "").split(", ") if name)
    throttled = f", throttled ({', '.join(reasons)})" if reasons else ""
    return f", SM clock {_shown(rows, 'sm_clock_mhz')} MHz, lowest {lowest}{throttled}"


def _producer(rows: Sequence[Row]) -> str:
    whole, rate = _median(rows, "commands_per_s"), _median(rows, "producer_commands_per_s")
    if rate is None:
        return ""
    limit = ", which limits them" if whole is not None and whole > 0.9 * rate else ""
    return f"; the producer routes {rate:,.0f}/s{limit}"


def _median(rows: Sequence[Row], name: str) -> float | None:
    """Return the median of a column; None if a row lacks it."""
    values = [row.get(name) for row in rows]
    return None if None in values else float(median(value for value in values if value is not None))


def _shown(rows: Sequence[Row], name: str, form: str = ",.0f") -> str:
    """Return the median of a column as text."""
    value = _median(rows, name)
    return NOTHING if value is None else format(value, form)
