"""Tables of runs for JSON: the same rows, with plain numbers instead of texts.

In: `rows.Table`. Out: dictionaries. Every number is a median over repeats; null: not measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from launchopt.analysis.stream_rows import STREAM
from launchopt.analysis.tables.bandwidth import memory_gb_per_s, memory_share
from launchopt.analysis.tables.rows import Line, Table
from launchopt.files import JsonObject
from launchopt.recording.summary_columns import SUMMARY_COLUMNS
from launchopt.statistics.interval import Interval

_STREAM = tuple(each.name for each in SUMMARY_COLUMNS if each.name in STREAM)
_SETTINGS = ("run_id", "mode", "ordering", "max_batch", "timeout_us", "sampling_where")
_MEDIANS = (
    *("wall_ms", "gpu_span_ms", "gpu_busy_ms", "kernels", "launch_calls", "commands_per_s", "setup_ms"),
    *("host_submit_ns_per_launch", "host_submit_burst_ns", "latency_p50_us", "latency_p99_us", "queue_wait_p50_us"),
    *("queue_wait_p99_us", "achieved_tflops", "completed_rate_per_s", "tokens_per_s", "ttft_p50_ms", "ttft_p99_ms"),
    *("tpot_p50_ms", "tpot_p99_ms", "goodput_per_s"),
)


def tables_json(tables: Sequence[Table]) -> JsonObject:
    """Return all tables, as `launchopt report --json` prints them."""
    return {"tables": [_table(table) for table in tables]}


def _table(table: Table) -> JsonObject:
    stream = {name: table[name] for name in _STREAM}
    return {"title": table.title, "subtitle": table.subtitle, **stream, "lines": [_line(each) for each in table.lines]}


def _line(line: Line) -> JsonObject:
    ratio, base = line.speedup, line.baseline
    return {
        **{name: line[name] for name in _SETTINGS},
        "repeats": len(line.rows),
        **{name: line.median(name) for name in _MEDIANS},
        "memory_gb_per_s": line.median_of(memory_gb_per_s),
        "memory_share_of_peak": line.median_of(memory_share),
        "speedup": None if ratio is None else _interval(ratio),
        "speedup_metric": None if ratio is None else line.metric,
        "speedup_over": None if base is None else {"run_id": base["run_id"], "mode": base["mode"]},
        "verdict": None if line.verdict is None else str(line.verdict),
        "overloaded": _any(line, "overloaded"),
        "verified": all(row["verified"] for row in line.rows),
        "max_rel_error": line.worst("max_rel_error"),
        "problem": line.problem,
        "notes": [*line.about_rates, *line.remarks],
    }


def _interval(ratio: Interval) -> JsonObject:
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high, "range": ratio.range}


def _any(line: Line, column: str) -> bool | None:
    """Return whether a column is true in any repeat; None if no repeat has a value."""
    known = [row[column] for row in line.rows if row[column] is not None]
    return any(known) if known else None
