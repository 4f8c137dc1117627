"""A diagnosis as text: the verdict in words, prediction and measurement side by side, and the evidence.

In: `diagnosis.Diagnosis`. Out: Markdown, or cells for a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from launchopt.analysis.metric import WALL, unless_wall
from launchopt.analysis.tables.columns import ALL, FULL, NOTHING, Column, number
from launchopt.analysis.tables.markdown import body, escaped
from launchopt.analysis.verdict.diagnosis import DiagnosedLine, Diagnosis
from launchopt.analysis.verdict.first_strategy import times

LEGEND = (
    "Predicted: max(bytes / bandwidth, FLOPs / peak) + launches x cost, in ms, for the bandwidth and the peak that the "
    "run measured, if nothing overlaps. Bytes: each batch reads a weight once; packed operands are read and written "
    "once more. Bound: the part that takes at least half of the wall time; parts overlap, so their sum is not 100%. "
    "Command-bound: fewer launches saved at least half. Headroom: the factor to the roofline, without launches and "
    "with every weight read once for all requests; no strategy gains more. Medians over the repeats of untraced runs."
)


def _mode(line: DiagnosedLine) -> str:
    return f"{line.mode} ({line.disorder})" if line.disorder else line.mode


def _bound(line: DiagnosedLine) -> str:
    return f"{line.bound} ({line.side})" if line.side else line.bound


def _speedup(line: DiagnosedLine) -> str:
    return f"{line.speedup}{unless_wall([line.speedup_metric or WALL])}" if line.speedup else NOTHING


def _ratio(line: DiagnosedLine) -> str:
    return f"{100 * line.predicted_ms / line.measured_ms:.0f}%" if line.predicted_ms and line.measured_ms else NOTHING


COLUMNS: Sequence[Column[DiagnosedLine]] = (
    Column("mode", _mode, ALL, is_text=True),
    Column("measured ms", lambda line: number(line.measured_ms), ALL),
    Column("predicted ms", lambda line: number(line.predicted_ms), ALL),
    Column("predicted / measured", _ratio, ALL),
    Column("bytes ms", lambda line: number(line.bytes_ms), ALL),
    Column("FLOPs ms", lambda line: number(line.flops_ms), ALL),
    Column("launches ms", lambda line: number(line.launch_ms), ALL),
    Column("headroom", lambda line: NOTHING if line.headroom is None else times(line.headroom), ALL),
    Column("speed-up", _speedup, ALL),
    Column("bound", _bound, ALL, is_text=True),
)
_DIFFERING: Sequence[Column[DiagnosedLine]] = (
    Column("run", lambda line: line.run_id, FULL, is_text=True),
    Column("max_batch, timeout", lambda line: line.configuration, FULL, is_text=True),
)


def diagnosis_grid(one: Diagnosis) -> tuple[list[Column[DiagnosedLine]], list[list[str]]]:
    """Return the columns and the cells of every line; runs and settings that differ come first."""
    differing = [each for each in _DIFFERING if len({each.cell(line) for line in one.lines}) > 1]
    columns = [*differing, *COLUMNS]
    return columns, [[column.cell(line) for column in columns] for line in one.lines]


def diagnosis_evidence(one: Diagnosis) -> list[str]:
    """Return a fact per line: on the line of the verdict, on the strategy to try, and on the source of launch costs.

    Of several lines of that strategy the fastest is shown.
    """
    subject = one.lines[0]
    tried = [line for line in one.lines[1:] if line.mode == one.first_to_try]
    shown = [subject, *sorted(tried, key=lambda line: line.measured_ms or math.inf)[:1]]
    facts = [f"{line.name}: {fact}" for line in shown for fact in line.evidence]
    facts += [f"{line.name}: cost of a launch from {line.launch_cost}" for line in shown if line.launch_cost]
    bound = subject.kernel_headroom
    without_gaps = f"{subject.name}: at most {times(bound)} if its own kernels ran without a gap" if bound else None
    return [*facts, *([without_gaps] if without_gaps else [])]


def diagnosis_markdown(diagnoses: Sequence[Diagnosis]) -> str:
    """Return all streams under a heading; ends with a newline."""
    parts = ["# Verdict", LEGEND]
    for one in diagnoses:
        parts += [f"## {escaped(one.title)}", escaped(one.subtitle), f"**{escaped(one.sentence)}**"]
        parts.append(body(*diagnosis_grid(one)))
        parts.append("\n".join(f"- {escaped(fact)}" for fact in diagnosis_evidence(one)) or NOTHING)
    return "\n\n".join(parts) + "\n"
