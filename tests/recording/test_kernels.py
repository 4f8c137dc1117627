"""Launches and the kernels they started: joined as by looking at each pair, and as columns of kernels.parquet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.launching import launch

from launchopt.command import Dtype, ShapeKey
from launchopt.recording.kernels import kernel_columns, launches_of
from launchopt.recording.recorder import Recorder
from launchopt.timing.activity import NONE, Activity

SHAPES = (ShapeKey(64, 1, 256, Dtype.fp32), ShapeKey(8, 1, 16, Dtype.fp32))
KERNEL, MEMCPY = 0, 1

spans = st.tuples(st.integers(0, 50), st.integers(0, 9)).map(lambda span: (span[0], sum(span)))


def rows(values: list[tuple[int, ...]], columns: int) -> np.ndarray:
    return np.array(values, np.int64).reshape(-1, columns)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=8), st.lists(spans, max_size=8))
def test_a_call_belongs_to_the_launch_around_its_middle(
    launches: list[tuple[int, int]], calls: list[tuple[int, int]]
) -> None:
    starts, ends, at = [], [], 0
    for gap, length in launches:
        starts.append(at + gap)
        at += gap + length
        ends.append(at - 1)  # so that none begins as another ends
    found = launches_of(rows([(0, 1, *span) for span in calls], 4), np.array(starts), np.array(ends))
    for (start, end), launch_found in zip(calls, found, strict=True):
        middle = (start + end) // 2
        around = [i for i in range(len(starts)) if starts[i] <= middle <= ends[i]]
        assert [launch_found] == (around or [NONE])


def test_columns_name_launch_range_and_call() -> None:
    recorder = Recorder(4)
    launch(recorder, [0], shape=0, start_ns=1_000, end_ns=2_000)
    launch(recorder, [1, 2], shape=1, start_ns=2_100, end_ns=3_000)
    launch(recorder, [3], shape=-1, start_ns=3_100, end_ns=4_000)
    # Two kernels of a graph; a copy within the second launch; then a kernel without a call, one of a call between two.
    ran = [
        (KERNEL, 0, 11, 2_500, 2_600, 7, 5),
        (KERNEL, 1, 11, 2_600, 2_700, 7, 5),
        (MEMCPY, 2, 12, 2_800, 2_900, 7, 0),
        (KERNEL, 0, 13, 4_500, 4_600, 8, 0),
        (KERNEL, 0, 14, 4_700, 4_800, 8, 0),
        (KERNEL, 0, 15, 4_900, 5_000, 8, 0),
    ]
    called = [(0, 11, 1_100, 1_900), (1, 12, 2_200, 2_300), (1, 13, 3_200, 3_900), (1, 15, 4_100, 4_200)]
    seen = Activity(rows(ran, 7), rows(called, 4), ["gemv", "add", "memcpy, 8 bytes"], ["graph", "copy"], 0, 0)
    columns = kernel_columns(seen, recorder, "graph", SHAPES, 1_000)
    found = {name: pa.array(column).to_pylist() for name, column in columns.items()}
    assert found["launch"] == [0, 0, 1, 2, None, None]
    assert found["batch"] == [0, 0, 1, 2, None, None]
    one, other = (f"graph {shape} fp32" for shape in SHAPES)
    assert found["range"] == [one, one, other, "graph several shapes fp32", None, None]
    assert found["name"] == ["gemv", "add", "memcpy, 8 bytes", "gemv", "gemv", "gemv"]
    assert found["kind"] == ["kernel", "kernel", "memcpy", "kernel", "kernel", "kernel"]
    assert found["api"] == ["graph", "graph", "copy", "copy", None, "copy"]
    assert found["api_start_ns"] == [100, 100, 1_200, 2_200, None, 3_100]
    assert found["start_ns"] == [1_500, 1_600, 1_800, 3_500, 3_700, 3_900]
    assert found["graph"] == [5, 5, None, None, None, None]
    assert (seen.kernels, seen.busy_ns) == (5, 500)
    assert sorted(seen.delays_ns().tolist()) == [600, 600, 700]


def test_a_run_without_activity_has_empty_columns() -> None:
    seen = Activity(rows([], 7), rows([], 4), [], [], 0, 0)
    columns = kernel_columns(seen, Recorder(4), "baseline", SHAPES, 0)
    assert {len(column) for column in columns.values()} == {0}
    assert (seen.kernels, seen.busy_ns, len(seen.delays_ns())) == (0, 0, 0)
    assert replace(seen, dropped=3).dropped == 3
