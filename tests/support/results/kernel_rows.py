"""Rows of kernels.parquet of steps that are graphs, for tests of its readers."""

from __future__ import annotations

from collections.abc import Sequence

from launchopt.recording import results


def traced_rows(
    mode: str, step_us: Sequence[tuple[float, float]], *, repeats: int, steps: int, gap_us: float, wait_us: float
) -> list[results.Row]:
    """Return the kernels of a mode, in any order, and a copy in front of each repeat.

    step_us: start and end of each kernel of a step. The last kernel of repeat r takes r us more. The launch call of a
    step returns at the start of the step before it, and the step starts `gap_us` behind that one. The call of the last
    step returns `wait_us` behind the end of the step before it, and that step starts then.
    """
    rows = []
    for repeat in range(repeats):
        begin = called = 0.0
        rows.append(_row(mode, repeat, 0, "memcpy", (-2.0, -1.0), called))
        for step in range(steps):
            ends = [end + repeat * (at == len(step_us) - 1) for at, (_, end) in enumerate(step_us)]
            for (start, _), end in zip(reversed(step_us), reversed(ends), strict=True):
                rows.append(_row(mode, repeat, step, "kernel", (begin + start, begin + end), called))
            called = begin
            ended = begin + max(ends)
            begin = ended + gap_us
            if step == steps - 2:
                called = begin = ended + wait_us
    return rows


def _row(
    mode: str, repeat: int, launch: int, kind: str, times_us: tuple[float, float], called_us: float
) -> results.Row:
    start_ns, end_ns, called_ns = (round(1e3 * each) for each in (*times_us, called_us))
    own = {"run_id": "run", "mode": mode, "repeat": repeat, "launch": launch, "batch": launch, "kind": kind}
    own |= {"name": kind, "correlation": launch, "start_ns": start_ns, "end_ns": end_ns, "stream": 7}
    own |= {"api": "cudaGraphLaunch", "api_start_ns": called_ns - 1000, "api_end_ns": called_ns}
    return {name: own.get(name) for name in results.KERNELS.names}
