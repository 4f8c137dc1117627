"""Kernels and the calls that started them: joined as by looking at each pair."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.timing.activity import NONE, Activity, outermost

KERNEL = 0

ids = st.integers(1, 6)
spans = st.tuples(st.integers(0, 50), st.integers(0, 9)).map(lambda span: (span[0], sum(span)))
kernels = st.lists(st.tuples(ids, spans), max_size=12)
calls = st.lists(st.tuples(ids, spans), max_size=12)


def rows(values: list[tuple[int, ...]], columns: int) -> np.ndarray:
    return np.array(values, np.int64).reshape(-1, columns)


def activity(kernels: list[tuple[int, tuple[int, int]]], calls: list[tuple[int, tuple[int, int]]]) -> Activity:
    ran = sorted([(KERNEL, 0, number, *span, 7, 0) for number, span in kernels], key=lambda row: row[3])
    outer = outermost(rows([(0, number, *span) for number, span in calls], 4))
    return Activity(rows(ran, 7), outer, ["k"], ["cuLaunchKernelEx"], 0, 0)


@settings(deadline=None)
@given(kernels, calls)
def test_calls_and_delays_are_those_of_the_correlation_id(
    kernels: list[tuple[int, tuple[int, int]]], calls: list[tuple[int, tuple[int, int]]]
) -> None:
    seen = activity(kernels, calls)
    outer = {number: min((s for n, s in calls if n == number), key=lambda s: (s[0], -s[1])) for number, _ in calls}
    assert [tuple(row[1:]) for row in seen.calls.tolist()] == [(n, *outer[n]) for n in sorted(outer)]
    for row, call in zip(seen.activities, seen.call_of(), strict=True):
        assert (call == NONE) == (row[2] not in outer)
        assert call == NONE or seen.calls[call, 1] == row[2]
    started = {n: min(s[0] for m, s in kernels if m == n) for n, _ in kernels if n in outer}
    assert sorted(seen.delays_ns().tolist()) == sorted(start - outer[n][1] for n, start in started.items())
