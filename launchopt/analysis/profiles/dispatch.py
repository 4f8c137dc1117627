"""Cost of operators on the host: from the start of an operator to its launch calls, in a trace of PyTorch's profiler.

In: a `Trace` with operators, and its `Pairs`. Out: a row for each operator that Python called and that made a launch
call. Such an operator often calls others: aten::linear calls aten::addmm. Its time has three parts:

    framework   outside of the operator that makes the launch call: dispatch, checks, and the return
    inner       within that operator, before the launch call: its own code, and that of a library such as cuBLAS
    driver      within launch calls

`between` is the time from the previous operator of the thread to this one, less CUDA calls: the time of Python. A
profiler slows down every part. Operators that overlap without nesting are taken as nested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from launchopt.analysis.profiles.gpu_event_owners import ranks
from launchopt.analysis.profiles.launch_pairs import Pairs
from launchopt.traces.events import Trace


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """Costs of all calls of one operator; us, medians over calls."""

    name: str
    calls: int
    launch_calls: int
    framework_us: float
    inner_us: float
    driver_us: float
    total_us: float  # of the operator, from start to end
    between_us: float | None  # None: no operator of its thread came before
    sum_us: float  # total of all calls


class _Called(NamedTuple):
    """One call of an operator by Python; ns."""

    name: int
    launches: int
    framework: int
    inner: int
    driver: int
    between: int  # -1: unknown


def operator_costs(trace: Trace, pairs: Pairs) -> tuple[OperatorCost, ...]:
    """Return a row for each operator that made launch calls, the largest sum first; none without operators."""
    found: dict[int, list[_Called]] = {}
    for called in _calls(trace, pairs):
        if called.launches:
            found.setdefault(called.name, []).append(called)
    rows = (_cost(trace.names[name], calls) for name, calls in found.items())
    return tuple(sorted(rows, key=lambda each: -each.sum_us))


def _cost(name: str, calls: list[_Called]) -> OperatorCost:
    table = np.array([each[1:] for each in calls], np.int64)
    parts = table[:, 1:4]
    between = table[:, 4][table[:, 4] >= 0]
    total = parts.sum(axis=1)
    framework, inner, driver = (float(each) / 1e3 for each in np.median(parts, axis=0))
    return OperatorCost(
        name=name,
        calls=len(calls),
        launch_calls=int(table[:, 0].sum()),
        framework_us=framework,
        inner_us=inner,
        driver_us=driver,
        total_us=float(np.median(total)) / 1e3,
        between_us=float(np.median(between)) / 1e3 if len(between) else None,
        sum_us=float(total.sum()) / 1e3,
    )


def _calls(trace: Trace, pairs: Pairs) -> Iterator[_Called]:
    """Yield the calls of operators, thread after thread."""
    operators, calls = trace.operators, pairs.calls
    if not len(operators):
        return
    sides = operators, calls
    _, thread = ranks(*(np.concatenate([side[key] for side in sides]) for key in ("process", "thread")))
    start, end = (np.concatenate([side[key] for side in sides]) for key in ("start_ns", "end_ns"))
    name = np.concatenate([operators["name"], np.where(pairs.is_launch, -1, -2)])
    order = np.lexsort((-end, start, thread))
    walk = _Walk()
    for row in zip(*(each[order].tolist() for each in (thread, start, end, name)), strict=True):
        yield from walk.add(*row)
    yield from walk.close()


class _Walk:
    """Goes through the events of threads in order of start. name: of an operator; -1: launch call; -2: other call."""

    def __init__(self) -> None:
        self._thread = -1
        self._open: list[tuple[int, int, int]] = []  # start, end and name of the operators around, the outermost first
        self._last_end = -1  # end of the thread's previous operator; -1: none
        self._other_ns = 0  # time of CUDA calls since then
        self._between = -1
        self._at = 0  # up to here, the time of the outermost operator is in one of its parts
        self._inner = self._driver = self._launches = 0

    def add(self, thread: int, start: int, end: int, name: int) -> Iterator[_Called]:
        """Take in an event; yield the operator that ended before it."""
        if self._open and (thread != self._thread or start >= self._open[0][1]):
            yield from self.close()
        if thread != self._thread:
            self._thread, self._last_end, self._other_ns = thread, -1, 0
        while self._open and start >= self._open[-1][1]:
            self._open.pop()
        if name >= 0:
            if not self._open:
                self._begin(start)
            self._open.append((start, end, name))
        elif not self._open:
            self._other_ns += end - start
        elif name == -1:
            begin = max(self._at, min(self._open[-1][0], start))
            self._inner += start - begin
            self._driver += end - start
            self._launches += 1
            self._at = max(self._at, end)

    def _begin(self, start: int) -> None:
        self._between = start - self._last_end - self._other_ns if self._last_end >= 0 else -1
        self._at = start
        self._inner = self._driver = self._launches = 0
        self._other_ns = 0

    def close(self) -> Iterator[_Called]:
        """Yield the outermost operator that is open, if any."""
        if self._open:
            start, end, name = self._open[0]
            framework = max(0, end - start - self._inner - self._driver)
            yield _Called(name, self._launches, framework, self._inner, self._driver, self._between)
            self._last_end = end
            self._open.clear()
