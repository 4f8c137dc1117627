"""A grouped GEMM's compiled loops against a C function with cuBLAS's 20 arguments that multiplies with NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.cuda.fake_copy import STREAM, FakeCopy
from support.cuda.fake_kernels import rows_at
from support.cuda.fake_lt import FAILURE, FakeLt
from support.steps.launching import recorded
from support.steps.straight import records_of

from launchopt.batching.batch import SEVERAL
from launchopt.batching.batcher import shape_finder
from launchopt.command import COMMAND_DTYPE, WORDS, Dtype, as_words
from launchopt.devices.cublaslt import group_loops as gl
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import BASES, BYTES, ContextWord, ShapeColumn
from launchopt.recording.launch_rows import CommandColumn, LaunchColumn, Strategy
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.verify.commands import CheckSettings, verify

properties = settings(deadline=None, max_examples=40)
GEMM_GROUPED = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 20)
HANDLE, FP32, COMPUTE_FP32, TRANSPOSE, PLAIN = 0xA11CE, 0, 68, 1, 0
SHAPES = [(8, 16), (24, 8), (3, 24), (1, 1)]


def array(address: int, kind: Any, count: int) -> list[Any]:
    values: list[Any] = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(kind)), (count,)).tolist()
    return values


class FakeGrouped:
    """A stand-in for `cublasGemmGroupedBatchedEx`, and the arguments with which `launch_grouped` calls it."""

    def __init__(self, stream: GemmStream, most: int, fail: bool = False, upload_status: int = 0) -> None:
        self.lt = FakeLt(stream, dict.fromkeys(stream.shapes, 1))
        self.lt.base.contexts[0, ContextWord.STREAM] = STREAM
        self.copy = FakeCopy(3 * most, upload_status)
        self.groups: list[list[tuple[int, int, int, int]]] = []  # of each call: m, n, k and size of each group
        self._fail, self._function = fail, GEMM_GROUPED(self._call)
        count = len(stream.shapes)
        facts = np.zeros((gl.SIZE, count), np.int32)
        for i, shape in enumerate(stream.shapes):
            facts[:, i] = (shape.m, shape.n, shape.k, *self.lt.row_elements(shape))
        self._groups = np.zeros((gl.SIZE + 1, count), np.int32)
        self._at = self._groups.ctypes.data + self._groups.strides[0] * np.arange(gl.SIZE + 1)
        known = shape_finder(stream.shapes).arrays[0]
        self.out = np.zeros((most, WORDS), np.uint64)
        self._sorting = (known, np.zeros(most, np.int32), np.zeros(count, np.int64), self.out, facts, self._groups)
        self._constants = [
            np.full(count, TRANSPOSE, np.int32),
            np.full(count, PLAIN, np.int32),
            np.ones(count, np.float32),
            np.zeros(count, np.float32),
        ]
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        constants = (each.ctypes.data for each in self._constants)
        self._arguments = np.array([address, HANDLE, *constants, FP32, COMPUTE_FP32], np.int64)

    def launch(self, words: NDArray[np.uint64], number: int) -> int:
        what = (number, SEVERAL, int(Strategy.grouped), 1, 66)
        call = (self.copy.staged, self.copy.upload, self._arguments, self._at)
        return int(gl.launch_grouped(words, self._sorting, self.lt.base.arrays, self.lt.records, what, call))

    def _call(self, *arguments: int) -> int:
        handle, of_a, of_b, m, n, k, alphas, a, type_a, lda, b, type_b, ldb, betas, c, type_c, ldc = arguments[:17]
        count, sizes, compute = arguments[17:]
        assert (handle, type_a, type_b, type_c, compute) == (HANDLE, FP32, FP32, FP32, COMPUTE_FP32)
        assert array(of_a, ctypes.c_int32, count) == [TRANSPOSE] * count
        assert array(of_b, ctypes.c_int32, count) == [PLAIN] * count
        assert array(alphas, ctypes.c_float, count) == [1.0] * count
        assert array(betas, ctypes.c_float, count) == [0.0] * count
        facts = [array(each, ctypes.c_int32, count) for each in (m, n, k, lda, ldb, ldc, sizes)]
        self.groups.append(list(zip(*facts[:3], facts[6], strict=True)))
        if self._fail:
            return FAILURE
        tables = [array(each, ctypes.c_int64, sum(facts[6])) for each in (a, b, c)]
        at = 0
        for rows, columns, inner, *leading, size in zip(*facts, strict=True):
            for i in range(at, at + size):
                shapes = ((rows, inner), (columns, inner), (columns, rows))
                of_a, of_b, of_c = (
                    rows_at(table[i], *shape, lead) for table, shape, lead in zip(tables, shapes, leading, strict=True)
                )
                of_c[:] = of_b @ of_a.T
            at += size
        return lt.OK


@properties
@given(st.lists(st.integers(0, 5), max_size=40), st.integers(6, 9))
def test_sorted_by_shape_each_shapes_in_their_order(shape_of: list[int], shapes: int) -> None:
    records = np.zeros(len(shape_of), COMMAND_DTYPE)
    records["seq"] = np.arange(len(shape_of))
    out, ends = np.zeros((len(shape_of) + 1, WORDS), np.uint64), np.full(shapes, 99, np.int64)
    gl.sort_by_shape(as_words(records), np.array(shape_of, np.int32), ends, out)
    order = np.argsort(shape_of, kind="stable")
    assert (out[:-1] == as_words(records)[order]).all()
    assert not out[-1].any()
    assert ends.tolist() == np.cumsum(np.bincount(shape_of, minlength=shapes)).tolist()


mixed = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4, unique=True)


@properties
@given(mixed, st.integers(1, 8), st.integers(1, 3), st.booleans(), st.integers(1, 13))
def test_every_product_is_right_whatever_comes_together(
    shapes: list[tuple[int, int]], columns: int, replicas: int, shuffle: bool, most: int
) -> None:
    stream = GemmStream(shapes, 2, [Segment(columns, 3), Segment(1, 2)], Dtype.fp32, replicas, CommandOrder(shuffle))
    fake, records = FakeGrouped(stream, most), records_of(stream)
    expected = []
    for number, first in enumerate(range(0, len(records), most)):
        part = records[first : first + most]
        assert fake.launch(as_words(part), number) == lt.OK
        sizes = dict.fromkeys(stream.shapes, 0)
        for m, n, k in zip(part["m"].tolist(), part["n"].tolist(), part["k"].tolist(), strict=True):
            sizes[next(shape for shape in sizes if (shape.m, shape.n, shape.k) == (m, n, k))] += 1
        expected.append([(shape.m, shape.n, shape.k, size) for shape, size in sizes.items() if size])
    assert verify(stream, fake.lt.arenas, CheckSettings(64)).ok
    assert fake.lt.recorder.faults() == []
    assert fake.groups == expected, "a group for each shape that is there"
    run = recorded(fake.lt.recorder)
    assert run.launches[:, LaunchColumn.SIZE].tolist() == [sum(size for *_, size in call) for call in expected]
    assert (run.launches[:, LaunchColumn.SHAPE] == SEVERAL).all()
    assert (run.launches[:, LaunchColumn.STRATEGY] == Strategy.grouped).all()
    assert fake.copy.copies == [(24 * size, STREAM) for size in run.launches[:, LaunchColumn.SIZE]]
    assert sorted(run.commands[:, CommandColumn.SEQ].tolist()) == list(range(stream.commands))


def test_addresses_lie_behind_each_other_group_by_group() -> None:
    stream = GemmStream(SHAPES[:2], 1, [Segment(1, 1)], Dtype.fp32, 1)
    shapes = np.zeros((2, len(ShapeColumn)), np.int64)
    shapes[:, BASES] = [[1000, 2000, 3000], [4000, 5000, 6000]]
    shapes[:, BYTES] = [[1, 2, 3], [10, 20, 30]]
    records = np.zeros(3, COMMAND_DTYPE)
    for role in "abc":
        records[f"slot_{role}"] = [1, 5, 2]
    facts = np.arange(2 * gl.SIZE, dtype=np.int32).reshape(2, gl.SIZE).T.copy()
    groups, staged = np.zeros((gl.SIZE + 1, 2), np.int32), np.zeros(9, np.int64)
    used = gl.fill_groups(as_words(records), np.array([1, 3]), shapes, staged, facts, groups)
    assert used == len(stream.shapes)
    assert staged.tolist() == [1001, 4050, 4020, 2002, 5100, 5040, 3003, 6150, 6060]
    assert (groups[: gl.SIZE] == facts).all()
    assert groups[gl.SIZE].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("fails", "status", "calls"),
    [({"fail": True}, FAILURE, 1), ({"upload_status": 700}, 700 * lt.KERNEL_STATUS, 0)],
    ids=["call", "upload"],
)
def test_what_fails_is_told(fails: dict[str, Any], status: int, calls: int) -> None:
    stream = GemmStream(SHAPES[:2], 1, [Segment(1, 2)], Dtype.fp32, 2)
    fake = FakeGrouped(stream, 4, **fails)
    assert fake.launch(as_words(records_of(stream)), 0) == status
    assert len(fake.groups) == calls
