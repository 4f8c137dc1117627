"""Names for lines of one table: the mode, and what tells a line from others of its mode.

engine                                   the only line of engine
engine (max_batch 64, timeout 50000 us)  others have another batching
engine (run monday/run)                  others have the same batching in another run
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from launchopt.analysis.tables.rows import Line


def named(line: Line, lines: Sequence[Line]) -> str:
    """Return the mode of a line, with what tells it from others of its mode in parentheses."""
    parts = told_apart(line, lines)
    return f"{line['mode']} ({', '.join(parts)})" if parts else str(line["mode"])


def named_by_run(mode: str, run_id: str, runs: Collection[str]) -> str:
    """Return a mode, with its run in parentheses if `runs`, the runs of all lines, are several."""
    return f"{mode} (run {run_id})" if len(runs) > 1 else mode


def told_apart(line: Line, lines: Sequence[Line]) -> list[str]:
    """Return the batching and the run of a line, each only as far as others of its mode make it necessary."""
    same_mode = [each for each in lines if each["mode"] == line["mode"]]
    is_varied = len({each.configuration for each in same_mode}) > 1
    return [*([line.configuration] if is_varied else []), *_run(line, same_mode)]


def labelled(line: Line, lines: Sequence[Line]) -> str:
    """Return mode and batching of a line for an axis, with its run if others have the same of both."""
    same_mode = [each for each in lines if each["mode"] == line["mode"]]
    return " · ".join([str(line["mode"]), line.configuration, *_run(line, same_mode)])


def _run(line: Line, same_mode: Sequence[Line]) -> list[str]:
    alike = [each for each in same_mode if each.configuration == line.configuration]
    return [f"run {line['run_id']}"] if len({each["run_id"] for each in alike}) > 1 else []
