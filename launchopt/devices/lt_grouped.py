"""Launches of cuBLAS's grouped GEMM: commands of several shapes in one call, a group a shape.

In: a batch of mixed shapes. It is sorted by shape (order between commands of one batch does not matter), pointers to
the operands are filled in and uploaded, and `cublasGemmGroupedBatchedEx` gets a group for each shape that is there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import cupy
import numpy as np
from cuda.pathfinder import load_nvidia_dynamic_lib
from numpy.typing import NDArray
from nvmath.bindings import cublas

from launchopt.batcher import SEVERAL, Batch, Batcher
from launchopt.buckets import classify_words
from launchopt.command import WORDS, ShapeKey
from launchopt.devices import lt_launch as lt
from launchopt.devices.lt_plans import CUDA_TYPES, TRANSPOSE, WORKSPACE_LIMIT_BYTES
from launchopt.devices.pointers import UPLOAD_TO, Pointers, upload_words
from launchopt.devices.runs import slots_of
from launchopt.errors import RunError
from launchopt.native import Int, call_words, compiled, monotonic_ns
from launchopt.recorder import LaunchFacts, Strategy, note

UPLOAD_CALLS = 1
GROUPED = int(Strategy.grouped)
# Rows of `facts` (int32), a column a shape, and of `groups`, a column a group.
M, N, K, LDA, LDB, LDC, SIZE = range(7)
# Words of `call`.
FUNCTION, HANDLE, TRANSPOSED, PLAIN, ALPHAS, BETAS, TYPE, COMPUTE = range(8)
Table = NDArray[np.int64]


@compiled
def sort_by_shape(
    words: NDArray[np.uint64], shape_of: NDArray[np.int32], counts: Table, out: NDArray[np.uint64]
) -> None:
    """Copy `words` to `out`, shape by shape; `counts` gets the end of each shape's there."""
    counts[:] = 0
    for i in range(len(words)):
        counts[shape_of[i]] += 1
    before = 0
    for shape in range(len(counts)):
        before, counts[shape] = before + counts[shape], before
    for i in range(len(words)):
        at = counts[shape_of[i]]
        counts[shape_of[i]] = at + 1
        for w in range(WORDS):
            out[at, w] = words[i, w]


@compiled
def _fill(out: NDArray[np.uint64], ends: Table, shapes: Table, staged: Table, facts: Any, groups: Any) -> Int:
    """Pointers and groups of sorted commands; returns how many groups there are."""
    count, first, used = ends[len(ends) - 1], 0, 0
    for index in range(len(ends)):
        shape = shapes[index]
        for i in range(first, ends[index]):
            slot_a, slot_b, slot_c = slots_of(out, i)
            staged[i] = shape[lt.BASE_A] + slot_a * shape[lt.BYTES_A]
            staged[count + i] = shape[lt.BASE_B] + slot_b * shape[lt.BYTES_B]
            staged[2 * count + i] = shape[lt.BASE_C] + slot_c * shape[lt.BYTES_C]
        if ends[index] > first:
            for fact in range(SIZE):
                groups[fact, used] = facts[fact, index]
            groups[SIZE, used] = ends[index] - first
            used += 1
        first = ends[index]
    return used


@compiled
def launch_grouped(
    words: NDArray[np.uint64],
    sorting: Any,
    tables: Any,
    records: Any,
    what: LaunchFacts,
    staged: Table,
    upload: Table,
    call: Table,
    group_addresses: Table,
) -> Int:
    """One call for all of `words`; returns the first status that is not 0."""
    shape_table, shape_of, ends, out, facts, groups = sorting
    launches, commands, cursor = records
    start_ns, count = monotonic_ns(), len(words)
    classify_words(words, shape_table, shape_of)
    sort_by_shape(words, shape_of, ends, out)
    used = _fill(out, ends, tables[0], staged, facts, groups)
    status = upload_words(upload, 3 * count, tables[2][0, lt.STREAM])
    if status != 0:
        return lt.KERNEL_STATUS * status
    table, kind, at = upload[UPLOAD_TO], call[TYPE], group_addresses
    status = call_words(
        call[FUNCTION],
        (
            call[HANDLE],
            call[TRANSPOSED],
            call[PLAIN],
            at[M],
            at[N],
            at[K],
            call[ALPHAS],
            table,
            kind,
            at[LDA],
            table + 8 * count,
            kind,
            at[LDB],
            call[BETAS],
            table + 16 * count,
            kind,
            at[LDC],
            np.int64(used),
            at[SIZE],
            call[COMPUTE],
        ),
    )
    end_ns = monotonic_ns()
    note(launches, commands, cursor, out, 0, count, what, start_ns, end_ns)
    return status


class LtGrouped:
    """Batches of up to `most` commands of the shapes in `limits`. `device`: a CudaDevice."""

    def __init__(self, device: Any, limits: Mapping[ShapeKey, int], most: int) -> None:
        self._device, shapes = device, list(limits)
        self._arrays = device.base.fork().arrays
        self._pointers = Pointers(device.stream, 3 * most)
        facts = np.zeros((SIZE, len(shapes)), np.int32)
        for i, shape in enumerate(shapes):
            facts[:, i] = (shape.m, shape.n, shape.k, *device.row_elements(shape))
        self._groups = np.zeros((SIZE + 1, len(shapes)), np.int32)
        self._group_addresses = self._groups.ctypes.data + self._groups.strides[0] * np.arange(SIZE + 1)
        known = Batcher(shapes, [1] * len(shapes), 0).arrays[0]
        self._out = np.zeros((most, WORDS), np.uint64)
        ends = np.zeros(len(shapes), np.int64)
        self._sorting = (known, np.zeros(most, np.int32), ends, self._out, facts, self._groups)
        self._handle = cublas.create()
        cublas.set_stream(self._handle, device.stream.ptr)
        self._workspace = cupy.empty(WORKSPACE_LIMIT_BYTES, np.uint8)
        cublas.set_workspace(self._handle, self._workspace.data.ptr, self._workspace.nbytes)
        self._constants = [
            np.full(len(shapes), TRANSPOSE, np.int32),
            np.zeros(len(shapes), np.int32),
            np.ones(len(shapes), np.float32),
            np.zeros(len(shapes), np.float32),
        ]
        numbers = (int(CUDA_TYPES[device.work.dtype]), int(cublas.ComputeType.COMPUTE_32F))
        addresses = (each.ctypes.data for each in self._constants)
        self._call = np.array([_address(), self._handle, *addresses, *numbers], np.int64)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Sort, fill and upload, then one call."""
        device, recorder = self._device, self._device.recorder
        staged = self._pointers.stage()
        device.enter(SEVERAL, len(batch))
        what = (recorder.next_batch(), SEVERAL, GROUPED, int(batch.reason), flush_ns)
        call = (self._pointers.words, self._call, self._group_addresses)
        status = launch_grouped(batch.words, self._sorting, self._arrays, device.records, what, staged, *call)
        if status % lt.KERNEL_STATUS:
            raise RunError(f"cublasGemmGroupedBatchedEx failed with status {status}")
        device.check(status)
        self._pointers.uploaded()
        recorder.mark_packed(24 * len(batch), UPLOAD_CALLS)
        device.left()

    def close(self) -> None:
        """Give cuBLAS's handle back."""
        cublas.destroy(self._handle)


def _address() -> int:
    """Address of `cublasGemmGroupedBatchedEx`."""
    library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    address = ctypes.cast(library.cublasGemmGroupedBatchedEx, ctypes.c_void_p).value
    assert address is not None
    return address
