"""The results of a run on the screen: a table with a column for each mode, and the answer in words."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Sequence

from rich.console import Console

from launchopt.analysis.comparison.answer import against, answer, fastest
from launchopt.analysis.comparison.outcome import Comparison
from launchopt.analysis.stream_rows import counted, gpus_of, is_independent, other_order, routing_of, stream_title
from launchopt.analysis.tables.bandwidth import memory_gb_per_s, memory_share
from launchopt.analysis.tables.columns import OVERLOADED, overload
from launchopt.analysis.tables.rows import Line, bases_of
from launchopt.recording.results import Row
from launchopt.statistics.interval import Verdict
from runner.config.schema import MOST_REPEATS
from runner.plan.base import INDEPENDENT, STEPS
from runner.run.screens.terminal import throttled_repeats
from runner.screen.fitted import Heading, in_groups

BASES = (INDEPENDENT, STEPS)  # modes that stand first, and that the others are compared with
SATURATED = 2.0  # the median latency is more than this many times the service time of a launch
QUEUE_FULL = (
    "Closed loop, queue saturated: latency is queue depth, not service time, so the table shows the time per command."
)


def print_results(
    rows: Sequence[Row], mode: str, folder: str, out: Console, beside: Sequence[str] = (), *, has_orders: bool = False
) -> None:
    """Print the table, the answer for `mode`, the next command, and last the folder as the user would type it.

    beside: the modes of `against`; the first is the base of the factor where none of `bases_of` is. Without rows, print
    the folder alone. has_orders: the run has a waterfall, and a line says how to see it if it was not traced.
    """
    if rows:
        _print_table(rows, mode, folder, out, beside)
    if has_orders and any(not row["traced"] for row in rows):
        out.print(
            f"what each choice brings: launchopt report {shlex.quote(folder)} --waterfall", soft_wrap=True, markup=False
        )
    out.print(folder, soft_wrap=True, markup=False)


def _print_table(rows: Sequence[Row], mode: str, folder: str, out: Console, beside: Sequence[str]) -> None:
    modes = _in_order(rows)
    first = rows[0]
    place = ", ".join([first["gpu"] or "CPU", *gpus_of(first)])
    out.print(f"{stream_title(first)} on {place}", style="bold", markup=False)
    if routing := routing_of(first):
        out.print(", ".join(routing), markup=False)
    saturated = is_saturated(rows)
    unit = _flop_unit(rows)
    columns = [_column([row for row in rows if row["mode"] == each], not saturated, unit) for each in modes]
    cells = [[name, *(column[name] for column in columns)] for name in columns[0]]
    label = Heading("median over repeats", is_text=True)
    for table in in_groups(label, [Heading(each) for each in modes], cells, out.width):
        out.print(table)
    if saturated:
        out.print(QUEUE_FULL, markup=False)
    if any(row["overloaded"] for row in rows) and all(row["status"] == "ok" for row in rows):
        out.print(_overload(rows), markup=False)
    bases = [each for each in modes if each in bases_of(first) and each != mode]
    bases = bases or [each for each in beside if each in modes and each != mode][:1]
    found = [one for base in bases if (one := against(rows, base, mode, folder=folder))]
    for sentence in [*([fastest(rows, modes)] if len(modes) > 2 else []), *map(answer, found)]:
        if sentence:
            out.print(sentence, markup=False)
    if why := _other_orders(rows, modes):
        out.print(why, markup=False)
    if all(row["status"] == "ok" for row in rows):
        out.print(f"next: {next_command(found, folder)}", soft_wrap=True, markup=False)


def _other_orders(rows: Sequence[Row], modes: Sequence[str]) -> str | None:
    """Return a sentence on modes without a factor, since they and the first one did not keep the same order."""
    base, *others = [next(row for row in rows if row["mode"] == mode) for mode in modes]
    why = [text for row in others if (text := other_order(row, base))]
    return f"No factor: {'; '.join(why)}." if why else None


def _overload(rows: Sequence[Row]) -> str:
    """Return a sentence on modes that did not keep up with the arrivals. None of the arrivals was lost."""
    first = rows[0]
    arrived = counted(first["requests"], "request") if first["tokens"] else counted(first["commands"], "command")
    modes = ", ".join(dict.fromkeys(str(row["mode"]) for row in rows if row["overloaded"]))
    return (
        f"Overloaded ({modes}): arrivals come faster than results. All {arrived} finished; latencies grow with the "
        "length of the run."
    )


def _in_order(rows: Sequence[Row]) -> list[str]:
    """Return the modes: bases first, then the others by name."""
    modes, bases = sorted({str(row["mode"]) for row in rows}), bases_of(rows[0])
    return sorted(modes, key=lambda mode: bases.index(mode) if mode in bases else len(bases))


def is_saturated(rows: Sequence[Row]) -> bool:
    """Return whether the queue of independent commands was always full, so that latency measures its depth."""
    return any(_waits_for_others(row) for row in rows)


def _waits_for_others(row: Row) -> bool:
    if row["arrival"] != "closed" or row["tokens"] or not row["latency_p50_us"] or not row["launch_calls"]:
        return False
    together = min(row["commands"] / row["launch_calls"], row["max_batch"] or 1)
    return bool(row["latency_p50_us"] > SATURATED * row["wall_ms"] * 1e3 / row["commands"] * together)


def _flop_unit(rows: Sequence[Row]) -> str:
    """Return the unit in which no mode's rate is shown as 0.000."""
    rates = [row["achieved_tflops"] for row in rows if row["achieved_tflops"] is not None]
    return "GFLOP/s" if rates and max(rates) < 1 else "TFLOP/s"


def _column(rows: Sequence[Row], shows_latency: bool, flop_unit: str) -> dict[str, str]:
    """Return the cells of one mode's column, by the name of the line."""

    def median(name: str) -> float | None:
        values = [row[name] for row in rows if row[name] is not None]
        return statistics.median(values) if values else None

    def shown(form: str, *names: str) -> str:
        values = [median(name) for name in names]
        return " / ".join("-" if value is None else format(value, form) for value in values)

    first, tflops = rows[0], median("achieved_tflops")
    order = {"none": "dependencies ignored", "violated": "broken on purpose"}.get(first["ordering"], "kept")
    verified = "yes" if all(row["verified"] for row in rows) else "NO"
    checked = min((row.get("checked_commands") or row["commands"]) / (row["commands"] or math.inf) for row in rows)
    if checked < 1 and not first["tokens"]:
        verified += f", {checked:.1%} checked"
    flushes = [f"flush_{reason}" for reason in ("full", "deadline", "stall", "idle", "drain")]
    lines = {
        "repeats": _repeats(rows),
        "wall ms": shown(",.2f", "wall_ms"),
        "GPU span ms": shown(",.2f", "gpu_span_ms"),
        "GPU busy ms (traced)": shown(",.2f", "gpu_busy_ms"),
        "launch calls": shown(",.0f", "launch_calls"),
        **(_step_lines(shown, first) if first["steps"] else {}),
        "kernels (traced)": shown(",.0f", "kernels"),
        "commands/s": shown(",.0f", "commands_per_s"),
        "memory GB/s (% of peak)": _bandwidth(rows),
        flop_unit: "-" if tflops is None else f"{tflops * (1e3 if flop_unit == 'GFLOP/s' else 1):,.3f}",
        "time in one launch call us: mean / first calls": _us(
            median("host_submit_ns_per_launch"), median("host_submit_burst_ns")
        ),
        **_waiting_lines(shown, rows, shows_latency),
        "flushes full / deadline / stall / idle / drain": shown(",.0f", *flushes),
        "packed MB": "-" if not first["packed_bytes"] else f"{first['packed_bytes'] / 1e6:,.1f}",
        **(_token_lines(shown, first) if first["tokens"] else {}),
        **(_arrival_lines(rows) if first["arrival_rate_per_s"] is not None else {}),
        **({"inputs": first["quantised_inputs"] or first["dtype"]} if first["weights"] else {}),
        "order": "independent" if is_independent(first) else order,
        "verified (max error)": f"{verified} ({shown('.1e', 'max_rel_error')})",
    }
    optional = ("GPU busy ms (traced)", "kernels (traced)", "GPU span ms", "packed MB")
    if first["device"] == "cuda":
        return lines | _gpu_lines(shown, rows)
    return {name: text for name, text in lines.items() if name not in optional}


def _step_lines(shown: Callable[..., str], first: Row) -> dict[str, str]:
    """Return the lines with times and launches of a step through a layer with experts."""
    has_span = first["device"] == "cuda"
    columns = ["step_wall_us", *["step_span_us"] * has_span]
    return {
        "us a step: wall" + " / GPU span" * has_span: shown(",.1f", *columns),
        "launch calls a step": shown(",.1f", "launch_calls_per_step"),
    }


def _repeats(rows: Sequence[Row]) -> str:
    processes = len({row["process"] for row in rows})
    return f"{len(rows)} of {processes} processes" if processes > 1 else str(len(rows))


def _bandwidth(rows: Sequence[Row]) -> str:
    """Return the rate of the bytes that had to move, and its share of the measured bandwidth."""
    line = Line(list(rows), None)
    rate, share = line.median_of(memory_gb_per_s), line.median_of(memory_share)
    if rate is None or share is None:
        return "in cache" if line["cache"] == "hot" else "-" if rate is None else f"{rate:,.1f}"
    return f"{rate:,.1f} ({share:.1%})" if share <= 1 else f"{rate:,.1f} (reused)"


def _waiting_lines(shown: Callable[..., str], rows: Sequence[Row], shows_latency: bool) -> dict[str, str]:
    """Return the lines with queue wait and latency; if the queue is saturated, the time per command instead."""
    if not shows_latency:
        return {"time per command us": f"{statistics.median(r['wall_ms'] * 1e3 / r['commands'] for r in rows):,.2f}"}
    return {
        "queue wait us p50 / p99": shown(",.1f", "queue_wait_p50_us", "queue_wait_p99_us"),
        "latency us p50 / p99": shown(",.1f", "latency_p50_us", "latency_p99_us"),
    }


def _gpu_lines(shown: Callable[..., str], rows: Sequence[Row]) -> dict[str, str]:
    """Return the lines with clocks, energy and power; `-` for values that NVML did not give."""
    lines = {
        "SM clock MHz (median / lowest)": shown(",.0f", "sm_clock_mhz", "sm_clock_min_mhz"),
        "energy mJ per command": shown(",.4g", "energy_mj_per_command"),
        "power W": shown(",.0f", "power_w"),
    }
    known = [row["throttled"] for row in rows if row["throttled"] is not None]
    return {"throttled repeats": throttled_repeats(rows) or ("none seen" if known else "-"), **lines}


def _token_lines(shown: Callable[..., str], first: Row) -> dict[str, str]:
    """Return the lines that only requests have."""
    lines = {
        "tokens/s": shown(",.0f", "tokens_per_s"),
        "time to first token ms p50 / p99": shown(",.2f", "ttft_p50_ms", "ttft_p99_ms"),
        "time per output token ms p50 / p99": shown(",.3f", "tpot_p50_ms", "tpot_p99_ms"),
    }
    if first["sampling_ms"] is not None:
        lines[f"sampling ms ({first['sampling']}, {first['sampling_where']})"] = shown(",.2f", "sampling_ms")
        lines["token ids (hash)"] = first["token_hash"]
    if first["goodput_per_s"] is not None:
        lines["goodput, requests/s"] = shown(",.1f", "goodput_per_s")
    return lines


def _arrival_lines(rows: Sequence[Row]) -> dict[str, str]:
    """Return the lines of an open loop. No completion rate for a mode that keeps up: it varies if requests are few."""
    unit = "requests" if rows[0]["tokens"] else "commands"
    return {f"arrivals, {unit}/s": f"{rows[0]['arrival_rate_per_s']:,.1f}", OVERLOADED: overload(rows)}


def _us(*values_ns: float | None) -> str:
    return " / ".join("-" if value is None else f"{value / 1e3:,.2f}" for value in values_ns)


def next_command(found: Sequence[Comparison], folder: str) -> str:
    """Return the next command to type."""
    is_open = [one for one in found if one.verdict is Verdict.UNDECIDED and not one.is_too_noisy]
    asked = [min(one.next_samples, MOST_REPEATS) for one in is_open if one.samples < MOST_REPEATS]
    if asked:
        return f"the same command with {is_open[0].setting}={max(asked)}"
    return f"launchopt verdict {shlex.quote(folder)}    (what bounds each mode, and what to try)"
