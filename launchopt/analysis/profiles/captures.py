"""Calls that a program recorded into a CUDA graph: they started nothing, and cost what recording costs.

A capture of a thread runs from the end of StreamBeginCapture to the start of StreamEndCapture. A capture without its
begin or end lasts from the start, or until the end, of the trace. A call that started a GPU event during a capture was
for another stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from launchopt.analysis.profiles.gpu_event_owners import Bools, ranks
from launchopt.traces.events import LATEST_NS, Rows

_BEGIN = re.compile(r"(cuda|cu|hip)StreamBeginCapture\w*")
_END = re.compile(r"(cuda|cu|hip)StreamEndCapture\w*")


def within_capture(calls: Rows, names: tuple[str, ...]) -> Bools:
    """Return which calls ran during a capture of their thread. `calls` are in order of start."""
    found = np.zeros(len(calls), bool)
    begins, ends = (named(pattern, calls, names) for pattern in (_BEGIN, _END))
    if not (begins | ends).any():
        return found
    _, thread = ranks(calls["process"], calls["thread"])
    for each in np.unique(thread[begins | ends]).tolist():
        mine = np.flatnonzero(thread == each)
        start_ns = calls["start_ns"][mine]
        for low_ns, high_ns in _captures(calls[mine[begins[mine]]], calls[mine[ends[mine]]]):
            low, high = np.searchsorted(start_ns, low_ns), np.searchsorted(start_ns, high_ns)
            found[mine[low:high]] = True
    return found


def named(pattern: re.Pattern[str], calls: Rows, names: tuple[str, ...]) -> Bools:
    """Return which calls have a name that `pattern` matches as a whole."""
    matches = np.array([pattern.fullmatch(name) is not None for name in names], dtype=bool)
    return matches[calls["name"]] if len(calls) else np.empty(0, dtype=bool)


def _captures(begins: Rows, ends: Rows) -> Iterator[tuple[int, int]]:
    """Yield start and end of each capture of one thread."""
    marks = sorted([(end, 1) for _, end in _outer(begins)] + [(start, -1) for start, _ in _outer(ends)])
    depth, since_ns = (1, -LATEST_NS) if marks[0][1] < 0 else (0, 0)
    for at_ns, step in marks:
        if step > 0 and depth == 0:
            since_ns = at_ns
        if step < 0 and depth == 1:
            yield since_ns, at_ns
        depth = max(0, depth + step)
    if depth:
        yield since_ns, LATEST_NS


def _outer(calls: Rows) -> Iterator[tuple[int, int]]:
    """Yield start and end of calls that are not within another: runtime and driver may both have a record."""
    covered_ns = -LATEST_NS
    for start, end in zip(calls["start_ns"].tolist(), calls["end_ns"].tolist(), strict=True):
        if start >= covered_ns:
            yield start, end
            covered_ns = end
