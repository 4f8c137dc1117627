"""The GEMMs of a trace: the shared real ones, and made-up events for what those do not have."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import ROOT

from launchopt.errors import DataError
from launchopt.traces.gemms import Gemm, TraceGemms, read_gemms
from launchopt.traces.kineto import read_kineto

DATA = ROOT.parent / "shared/data/traces"
BERT, SAMPLED, NSYS = "h100_bert_small.kineto.json.gz", "sampled_rank0.kineto.json.gz", "cloverleaf_a100.nsys.sqlite"
needs_traces = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the traces in {DATA}")


def op(name: str, ts: float, dur: float, *dims: list[int], tid: int = 1, kind: str = "float") -> dict[str, Any]:
    """An operator event, as Kineto writes them."""
    types = [kind if each else "Scalar" for each in dims]
    event = {"ph": "X", "cat": "cpu_op", "name": f"aten::{name}", "pid": 7, "tid": tid, "ts": ts, "dur": dur}
    return {**event, "args": {"Input Dims": list(dims), "Input type": types}}


def written(folder: Path, *events: Any) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    return path


def read(folder: Path, *events: Any) -> TraceGemms:
    return read_gemms(written(folder, *events))


def sizes(trace: TraceGemms) -> list[tuple[int, int, int, int]]:
    return [(gemm.m, gemm.n, gemm.k, gemm.batch) for gemm in trace.gemms]


@needs_traces
def test_bert_is_26_linear_layers_of_141_tokens() -> None:
    trace = read_gemms(DATA / BERT)
    assert Counter(sizes(trace)) == {
        (512, 141, 512, 1): 17,
        (2048, 141, 512, 1): 4,
        (512, 141, 2048, 1): 4,
        (30522, 141, 512, 1): 1,
    }
    assert trace.types == {"c10::BFloat16": 26}
    assert (trace.commands, dict(trace.left_out)) == (26, {})
    assert {gemm.thread for gemm in trace.gemms} == {0}
    starts = [gemm.start_ns for gemm in trace.gemms]
    assert starts == sorted(starts)
    assert (starts[0], starts[-1]) == (0, 3_372_748)


@needs_traces
def test_a_training_rank_has_two_threads_and_batches() -> None:
    trace = read_gemms(DATA / SAMPLED)
    assert len(trace.gemms) == 231 + 107 + 40  # mm, addmm, bmm: counted in the file
    assert trace.commands == 82_258
    assert trace.types == {"float": 378}
    assert {gemm.thread for gemm in trace.gemms} == {0, 1}


@needs_traces
def test_nsys_records_no_shapes() -> None:
    with pytest.raises(DataError, match=r"nsys export, which holds no shapes: record one with .*record_shapes=True"):
        read_gemms(DATA / NSYS)


def test_any_sqlite_is_told_from_json(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.sqlite") as base:
        base.execute("create table t (x)")
    base.close()
    with pytest.raises(DataError, match="nsys export, which holds no shapes"):
        read_gemms(tmp_path / "x.sqlite")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (op("mm", 0, 1, [5, 3], [3, 7]), (7, 5, 3, 1)),
        (op("addmm", 0, 1, [7], [5, 3], [3, 7], [], []), (7, 5, 3, 1)),
        (op("addmm_", 0, 1, [5, 7], [5, 3], [3, 7], [], []), (7, 5, 3, 1)),
        (op("bmm", 0, 1, [4, 5, 3], [4, 3, 7]), (7, 5, 3, 4)),
        (op("baddbmm", 0, 1, [4, 5, 7], [4, 5, 3], [4, 3, 7], [], []), (7, 5, 3, 4)),
        (op("addmv", 0, 1, [7], [7, 3], [3], [], []), (7, 1, 3, 1)),
        (op("mv", 0, 1, [7, 3], [3]), (7, 1, 3, 1)),
        (op("linear", 0, 1, [2, 5, 3], [7, 3], [7]), (7, 10, 3, 1)),
        (op("linear", 0, 1, [3], [7, 3], []), (7, 1, 3, 1)),
        (op("matmul", 0, 1, [2, 5, 3], [3, 7]), (7, 10, 3, 1)),
        (op("matmul", 0, 1, [3], [3, 7]), (7, 1, 3, 1)),
        (op("matmul", 0, 1, [3], [4, 3, 7]), (7, 1, 3, 4)),
        (op("matmul", 0, 1, [6, 1, 5, 3], [4, 3, 7]), (7, 5, 3, 24)),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_the_second_factor_is_the_weight(event: Any, expected: tuple[int, ...], tmp_path: Path) -> None:
    assert sizes(read(tmp_path, event)) == [expected]


small = st.integers(1, 4)
batches = st.lists(small, max_size=3)


@settings(deadline=None, max_examples=60)
@given(batches, batches, small, small, small, st.integers(0, 7))
def test_a_matmul_gives_as_many_elements_as_numpys(
    tmp_path_factory: pytest.TempPathFactory, left: list[int], right: list[int], n: int, k: int, m: int, ones: int
) -> None:
    """Leading sizes are made to fit: those of the right that differ become 1."""
    right = [1 if ones >> at & 1 else size for at, size in enumerate(right)]
    common = min(len(left), len(right))
    for at in range(1, common + 1):
        if left[-at] != right[-at] and left[-at] != 1:
            right[-at] = 1
    x, y = [*left, n, k], [*right, k, m]
    trace = read(tmp_path_factory.mktemp("matmul"), op("matmul", 0, 1, x, y))
    elements = np.matmul(np.ones(x), np.ones(y)).size
    (gemm,) = trace.gemms
    assert gemm.k == k
    assert gemm.m * gemm.n * gemm.batch == elements


def test_who_calls_another_is_not_counted_twice(tmp_path: Path) -> None:
    dims = [5, 3], [3, 7]
    nested = [
        op("linear", 0, 100, [5, 3], [7, 3], [7]),
        op("matmul", 0, 90, *dims),  # began within the same tick
        op("mm", 10, 50, *dims),
        op("matmul", 100, 20, [9, 3], [3, 7]),  # begins as the linear layer ends, and calls nothing
        op("mm", 100, 20, [8, 3], [3, 7], tid=2),  # another thread's: nobody called it
        op("matmul", 200, 90, [4, 5, 3], [4, 3, 7]),
        op("expand", 210, 5, [4, 5, 3]),
        op("bmm", 220, 20, [4, 5, 3], [4, 3, 7]),
        op("bmm", 245, 20, [4, 5, 3], [4, 3, 7]),
    ]
    random.Random(1).shuffle(nested)  # Kineto writes them in no order that could be relied on
    trace = read(tmp_path, *nested)
    assert [(gemm.start_ns, gemm.thread, gemm.n) for gemm in trace.gemms] == [
        (0, 0, 5),
        (90_000, 0, 9),
        (90_000, 1, 8),
        (210_000, 0, 5),
        (235_000, 0, 5),
    ]
    assert trace.commands == 1 + 1 + 1 + 4 + 4


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    text = """[{"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1682725898237042.123,
        "dur": 2, "args": {"Input dims": [[5, 3], [3, 7]], "Input type": ["c10::Half", "c10::Half"]}},
        {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1682725898237050.124,
        "dur": 0.5, "args": {"Input dims": [[5, 3], [3, 7]]}}]"""
    path = tmp_path / "old.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert read_gemms(path).gemms == (
        Gemm(0, 2_000, 0, 7, 5, 3, 1, "c10::Half"),
        Gemm(8_001, 8_501, 0, 7, 5, 3, 1, "no type"),
    )


def test_what_cannot_be_replayed_is_counted(tmp_path: Path) -> None:
    good = op("mm", 0, 1, [5, 3], [3, 7])
    trace = read(
        tmp_path,
        good,
        {**op("mm", 1, 1), "args": {}},
        op("mm", 2, 1, [5, 3], [4, 7]),  # do not fit
        op("mm", 3, 1, [5, 3]),
        {**good, "ts": 4, "args": {"Input Dims": [[[5, 3], [3, 7]], [3, 7]]}},  # lists of tensors
        op("mm", 5, 1, [5, 0], [0, 7]),
        op("mm", 6, 1, [2**31, 3], [3, 7]),
        op("mm", 7, 1, [-5, 3], [3, 7]),
        {**good, "ts": "soon"},
        {**good, "ph": "i"},  # no operator at all, as all below
        {**good, "cat": "kernel"},
        {**good, "name": "aten::add"},
    )
    assert sizes(trace) == [(7, 5, 3, 1)]
    assert trace.left_out == {
        "without shapes": 1,
        "with shapes that are not understood": 4,
        "of no elements": 1,
        "of sizes over 2147483647": 1,
        "without a usable time": 1,
    }


def test_an_operator_without_a_time_among_absolute_ones_makes_no_gap(tmp_path: Path) -> None:
    now = 1_615_207_264_505_000
    trace = read(tmp_path, op("mm", 0, 0, [5, 3], [3, 7]), *(op("mm", now + at, 1, [5, 3], [3, 7]) for at in (0, 9)))
    assert [gemm.start_ns for gemm in trace.gemms] == [0, 9000]
    assert trace.left_out == {"without a usable time": 1}


@pytest.mark.parametrize("first", [0, 100])
def test_an_operator_long_before_the_others_has_a_time(first: int, tmp_path: Path) -> None:
    """2.5 hours pass on a clock that starts with the profile."""
    trace = read(tmp_path, op("mm", first, 5, [5, 3], [3, 7]), op("mm", first + 9_000_000_000, 5, [5, 3], [3, 7]))
    assert [(gemm.start_ns, gemm.end_ns) for gemm in trace.gemms] == [
        (0, 5_000),
        (9_000_000_000_000, 9_000_000_005_000),
    ]
    assert not trace.left_out


@pytest.mark.parametrize("first", [[], [op("mm", 0, 0, [5, 3], [3, 7])], [op("add", 0, 3, [5, 3])]])
def test_times_in_ns_since_1970_are_read_as_such(first: list[Any], tmp_path: Path) -> None:
    """Also behind an operator at 0, which says nothing of the unit."""
    now = 1_700_000_000_000_000_000
    trace = read(tmp_path, *first, *(op("mm", now + at, 50_000, [5, 3], [3, 7]) for at in (0, 100_000)))
    assert [(gemm.start_ns, gemm.end_ns) for gemm in trace.gemms] == [(0, 50_000), (100_000, 150_000)]


@pytest.mark.parametrize("category", ["cpu_op", "CPU_OP", "Operator", "operator"])
def test_operators_have_the_categories_that_launchopt_trace_reads(category: str, tmp_path: Path) -> None:
    event = {**op("mm", 1, 5, [5, 3], [3, 7]), "cat": category}
    assert sizes(read(tmp_path, event)) == [(7, 5, 3, 1)]
    assert len(read_kineto(written(tmp_path, event)).operators) == 1


def test_leading_dimensions_of_matmul_are_broadcast(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        op("matmul", 1, 1, [1, 4, 64], [3, 64, 32]),
        op("matmul", 3, 1, [0, 4, 64], [1, 64, 32]),  # of no matrices
        op("matmul", 5, 1, [2, 4, 64], [3, 64, 32]),  # do not fit
    )
    assert sizes(trace) == [(32, 4, 64, 3)]
    assert trace.left_out == {"of no elements": 1, "with shapes that are not understood": 1}


LINEAR, MATMUL, MM = ("linear", [4, 64], [32, 64]), ("matmul", [4, 64], [64, 32]), ("mm", [4, 64], [64, 32])


@pytest.mark.parametrize(
    ("calls", "gemms"),
    [
        ([(LINEAR, 100, 0), (MM, 100, 0), (LINEAR, 200, 0), (MM, 200, 0)], 2),
        ([(LINEAR, 100, 0), (MM, 100, 0), (LINEAR, 100, 0), (MM, 100, 0)], 2),
        ([(LINEAR, 100, 0), (MATMUL, 100, 0), (MM, 100, 0)], 1),
        ([(LINEAR, 100, 5), (MATMUL, 100, 5), (MM, 100, 5)], 1),
        ([(LINEAR, 100, 5), (MM, 105, 0)], 1),
        ([(LINEAR, 100, 5), (MM, 105, 1)], 2),
        ([(LINEAR, 100, 0), (MM, 100, 0), (LINEAR, 100, 5), (MM, 101, 3)], 2),
        ([(LINEAR, 100, 0), (LINEAR, 100, 0), (LINEAR, 100, 0)], 3),  # their inner operators were not recorded
        ([(LINEAR, 100, 0), (MM, 101, 0)], 2),
        ([(MM, 100, 0), (MM, 100, 0)], 2),
    ],
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_an_operator_within_another_of_the_same_time_is_the_gemm(
    calls: list[tuple[Any, int, int]], gemms: int, is_reversed: bool, tmp_path: Path
) -> None:
    """Whole us, as some profilers write them. The order in the file does not matter."""
    events = [op(name, start, duration, *dims) for (name, *dims), start, duration in calls]
    assert sizes(read(tmp_path, *events[:: -1 if is_reversed else 1])) == [(32, 4, 64, 1)] * gemms


def test_begin_and_end_events_are_operators(tmp_path: Path) -> None:
    whole = op("mm", 4, 6, [5, 3], [3, 7])
    end = {"ph": "E", "pid": 7, "tid": 1, "ts": 10}
    trace = read(tmp_path, {**whole, "ph": "B", "dur": None}, end)
    assert [(gemm.start_ns, gemm.end_ns) for gemm in trace.gemms] == [(0, 6000)]


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "a trace without GEMMs"),
        ([op("add", 0, 1, [2], [2])], "a trace without GEMMs"),
        ([{**op("mm", 0, 1), "args": {}}], "a trace without shapes of its 1 GEMMs: record one with torch.profiler"),
        ([op("mm", 0, 1, [5, 0], [0, 7])], r"without GEMMs that can be replayed \(1 of no elements\)"),
    ],
)
def test_a_trace_with_nothing_to_replay_is_refused(events: list[Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"trace.json: .*{why}"):
        read(tmp_path, *events)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_gemms(tmp_path / "missing.json")
