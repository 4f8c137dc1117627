"""Output of a run on the screen: notices, a progress bar, and a table at the end. Plain lines in a pipe."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from types import TracebackType

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from launchopt.recording.results import Row
from runner.pager import console
from runner.plan.plan import Plan


def print_notices(notices: Sequence[str]) -> None:
    """Print a line for each notice, unwrapped."""
    for notice in notices:
        console().print(notice, soft_wrap=True, markup=False)


class Terminal:
    """The progress bar of one job of `runs` runs, on standard error; silent if that is not a terminal."""

    def __init__(self, plan: Plan, runs: int, notices: Sequence[str]) -> None:
        self._commands = plan.stream.commands
        self._done = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("commands"),
            TimeElapsedColumn(),
            console=console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("starting", total=self._commands * runs)
        print_notices(notices)

    def __enter__(self) -> Terminal:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def progress(self, label: str, popped: int) -> None:
        """Show the phase and the number of commands that this repeat has popped."""
        completed = self._done * self._commands + min(popped, self._commands)
        self._bar.update(self._task, description=label, completed=completed)

    def expects(self, runs: int) -> None:
        """Set the number of runs, which `repeats=auto` can raise."""
        self._bar.update(self._task, total=runs * self._commands)

    def finished(self, repeats: int) -> None:
        """Set the number of finished repeats."""
        self._done = repeats
        self._bar.update(self._task, completed=repeats * self._commands)


def summary_table(rows: Sequence[Row]) -> Table:
    """Return a table of the medians of a job's repeats, with a column for each mode."""
    first = rows[0]
    model = f" {first['model']}" if first["model"] else ""
    place = first["gpu"] or "CPU"
    title = f"{first['workload']}{model} {first['dtype']}, {first['commands']:,} commands on {place}"
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    table = Table(title=title, title_justify="left", box=box.SIMPLE if sys.stdout.isatty() else None)
    table.add_column("")
    for mode in modes:
        table.add_column(mode, justify="right")
    columns = [_column([row for row in rows if row["mode"] == mode]) for mode in modes]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _column(rows: Sequence[Row]) -> dict[str, str]:
    """Return the cells of one mode's column, by the name of the line."""

    def median(name: str) -> float | None:
        values = [row[name] for row in rows if row[name] is not None]
        return statistics.median(values) if values else None

    def shown(form: str, *names: str) -> str:
        values = [median(name) for name in names]
        return " / ".join("-" if value is None else format(value, form) for value in values)

    first = rows[0]
    rate, copy = median("achieved_gb_per_s"), median("copy_gb_per_s")
    order = {"none": "dependencies ignored", "violated": "broken on purpose"}.get(first["ordering"], "kept")
    verdict = "yes" if all(row["verified"] for row in rows) else "NO"
    flushes = [f"flush_{reason}" for reason in ("full", "deadline", "stall", "idle", "drain")]
    lines = {
        "repeats (medians below)": str(len(rows)),
        "wall ms": shown(",.2f", "wall_ms"),
        "GPU span ms": shown(",.2f", "gpu_span_ms"),
        "GPU busy ms (traced)": shown(",.2f", "gpu_busy_ms"),
        "launch calls": shown(",.0f", "launch_calls"),
        "kernels (traced)": shown(",.0f", "kernels"),
        "commands/s": shown(",.0f", "commands_per_s"),
        "GB/s (of measured copy)": "-" if not rate or not copy else f"{rate:,.1f} ({rate / copy:.1%})",
        "TFLOP/s": shown(",.3f", "achieved_tflops"),
        "host us in a launch call: mean / first ones": _us(
            median("host_submit_ns_per_launch"), median("host_submit_burst_ns")
        ),
        "queue wait us p50 / p99": shown(",.1f", "queue_wait_p50_us", "queue_wait_p99_us"),
        "latency us p50 / p99": shown(",.1f", "latency_p50_us", "latency_p99_us"),
        "flushes full / deadline / stall / idle / drain": shown(".0f", *flushes),
        "packed MB": "-" if not first["packed_bytes"] else f"{first['packed_bytes'] / 1e6:,.1f}",
        **(_token_lines(shown, first) if first["tokens"] else {}),
        "order": order,
        "verified (max error)": f"{verdict} ({shown('.1e', 'max_rel_error')})",
    }
    optional = ("GPU busy ms (traced)", "kernels (traced)", "GPU span ms", "packed MB")
    if first["device"] == "cuda":
        return lines | _gpu_lines(shown, rows)
    return {name: text for name, text in lines.items() if name not in optional}


def throttled_repeats(rows: Sequence[Row]) -> str | None:
    """Return how many repeats of one mode were throttled, and why; None if NVML reported none."""
    throttled = [row for row in rows if row["throttled"]]
    if not throttled:
        return None
    reasons = dict.fromkeys(reason for row in throttled for reason in row["throttle_reasons"].split(", "))
    return f"{len(throttled)} of {len(rows)} ({', '.join(reasons)})"


def _gpu_lines(shown: Callable[..., str], rows: Sequence[Row]) -> dict[str, str]:
    """Return the lines with clocks, energy and power; `-` for values that NVML did not give."""
    lines = {
        "SM clock MHz: median / lowest": shown(",.0f", "sm_clock_mhz", "sm_clock_min_mhz"),
        "energy mJ a command": shown(",.4g", "energy_mj_per_command"),
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
    if first["arrival_rate_per_s"] is not None:
        held = " OVERLOADED" if first["overloaded"] else ""
        lines["requests/s due / done"] = shown(",.1f", "arrival_rate_per_s", "completed_rate_per_s") + held
    return lines


def _us(*values_ns: float | None) -> str:
    return " / ".join("-" if value is None else f"{value / 1e3:,.2f}" for value in values_ns)
