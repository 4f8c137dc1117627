"""Slowdown of a run by each profiler, and the agreement between profilers and this project.

In: rows of summary.parquet, the timing kind of each run by run_id, and rows that `runner.nsys_agree` wrote. Out:
Markdown tables. Pure: reads no file. Traced runs of a mode are compared with untraced runs of that mode and stream.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launchopt.analysis.stream_rows import STREAM, counted, digits, grouped
from launchopt.analysis.tables.markdown import NUMBER, TEXT, pipe_table
from launchopt.recording.results import Row

UNTRACED, CUPTI, TORCH, ATTACHED = "none", "timing=cupti", "timing=torch", "nsys, attached"
ORDER = (UNTRACED, CUPTI, ATTACHED, TORCH)
COSTS = {"mode": TEXT, "tracer": TEXT, "repeats": NUMBER, "wall ms": NUMBER, "CPU us per launch": NUMBER}
AGREEMENTS = {
    **{"quantity": TEXT, "counted by": TEXT, "theirs": NUMBER, "ours": NUMBER},
    **{"difference": NUMBER, "allowed": NUMBER, "agrees": TEXT},
}
_SAME = (*(name for name in STREAM if name != "traced"), "mode", "max_batch", "timeout_us")


@dataclass(frozen=True, slots=True)
class Overhead:
    """One mode under one tracer. Times are medians over repeats. Ratios are over the same mode without a tracer."""

    mode: str
    tracer: str
    repeats: int
    wall_ms: float
    host_us: float
    wall_ratio: float | None
    host_ratio: float | None


def tracer_of(row: Row, timing: str | None) -> str:
    """Return the tracer of a run: the one of its `timing.kind`, else one that was attached from outside."""
    return {"cupti": CUPTI, "torch": TORCH}.get(timing or "", ATTACHED) if row["traced"] else UNTRACED


def overheads(rows: Iterable[Row], timing_of: Mapping[str, str]) -> list[Overhead]:
    """Return the costs by mode, then tracer. Failed and unverified rows are left out."""
    found = []
    for members in grouped([row for row in rows if row["status"] == "ok" and row["verified"]], _SAME):
        by_tracer: dict[str, list[Row]] = {}
        for row in members:
            by_tracer.setdefault(tracer_of(row, timing_of.get(row["run_id"])), []).append(row)
        plain = by_tracer.get(UNTRACED)
        for tracer in sorted(by_tracer, key=ORDER.index):
            found.append(_overhead(tracer, by_tracer[tracer], plain))
    return sorted(found, key=lambda each: (each.mode, ORDER.index(each.tracer)))


def _overhead(tracer: str, rows: Sequence[Row], plain: Sequence[Row] | None) -> Overhead:
    def median(column: str, of: Sequence[Row]) -> float:
        return statistics.median(float(row[column]) for row in of)

    wall_ms, host_ns = median("wall_ms", rows), median("host_submit_ns_per_launch", rows)
    ratios: tuple[float | None, float | None] = (None, None)
    if plain and tracer != UNTRACED:
        ratios = wall_ms / median("wall_ms", plain), host_ns / median("host_submit_ns_per_launch", plain)
    return Overhead(rows[0]["mode"], tracer, len(rows), wall_ms, host_ns / 1e3, *ratios)


def overheads_markdown(rows: Sequence[Row], timing_of: Mapping[str, str], agreements: Sequence[Row]) -> str:
    """Return both tables, with their machine and work."""
    first = rows[0]
    where = f"{first['gpu'] or first['device'].upper()}, {first['workload']} {first['dtype']}"
    lines = [
        f"{where}, {counted(first['commands'], 'command')}."
        " Medians over repeats; in brackets times the same without a tracer.",
        "",
    ]
    cells = [
        (
            *(each.mode, each.tracer, str(each.repeats)),
            _beside(each.wall_ms, each.wall_ratio),
            _beside(each.host_us, each.host_ratio),
        )
        for each in overheads(rows, timing_of)
    ]
    lines.append(pipe_table(COSTS, cells))
    if agreements:
        lines += ["", pipe_table(AGREEMENTS, map(_agreement, agreements))]
    return "\n".join(lines) + "\n"


def _beside(value: float, ratio: float | None) -> str:
    return digits(value, 4) + ("" if ratio is None else f" ({ratio:.2f}x)")


def _agreement(row: Row) -> list[str]:
    difference = row["ours"] / row["theirs"] - 1 if row["theirs"] else 0.0
    allowed = f"{row['limit']:.0%}" if row["limit"] else "none"
    figures = [digits(row[name]) if row[name] % 1 else f"{row[name]:,.0f}" for name in ("theirs", "ours")]
    return [row["what"], row["by"], *figures, f"{difference:+.3%}", allowed, "yes" if row["agrees"] else "NO"]
