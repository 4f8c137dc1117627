"""Launch commands of several shapes by one call of cuBLAS's grouped GEMM, with one group per shape.

A batch of mixed shapes is sorted by shape, since commands of one batch may run in any order. Pointers to the operands
are filled in and uploaded. `cublasGemmGroupedBatchedEx` gets one group for each shape in the batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import cupy
import numpy as np
from cuda.pathfinder import load_nvidia_dynamic_lib
from nvmath.bindings import cublas

from launchopt.batching.batch import SEVERAL, Batch
from launchopt.batching.batcher import shape_finder
from launchopt.command import WORDS, ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.group_loops import SIZE, launch_grouped
from launchopt.devices.cublaslt.plans import CUDA_TYPES, TRANSPOSE, WORKSPACE_LIMIT_BYTES
from launchopt.devices.cublaslt.pointers import Pointers
from launchopt.errors import RunError
from launchopt.recording.launch_rows import Strategy

UPLOAD_CALLS = 1  # calls besides the launch
POINTER_BYTES_A_COMMAND = 3 * 8  # pointers to A, B and C
GROUPED = int(Strategy.grouped)


class LtGrouped:
    """Launches of batches of up to `most` commands of the shapes in `limits`."""

    def __init__(self, device: GpuDevice, limits: Mapping[ShapeKey, int], most: int) -> None:
        self._device, shapes = device, list(limits)
        self._arrays = device.base.fork().arrays
        self._pointers = Pointers(device.stream, 3 * most)
        facts = np.zeros((SIZE, len(shapes)), np.int32)
        for i, shape in enumerate(shapes):
            facts[:, i] = (shape.m, shape.n, shape.k, *device.row_elements(shape))
        self._groups = np.zeros((SIZE + 1, len(shapes)), np.int32)
        self._group_addresses = self._groups.ctypes.data + self._groups.strides[0] * np.arange(SIZE + 1)
        known = shape_finder(shapes).arrays[0]
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
        """Sort, fill in and upload the pointers, then make one call."""
        device, recorder = self._device, self._device.recorder
        staged = self._pointers.stage()
        device.enter(SEVERAL, len(batch))
        what = (recorder.next_batch(), SEVERAL, GROUPED, int(batch.reason), flush_ns)
        call = (staged, self._pointers.words, self._call, self._group_addresses)
        status = launch_grouped(batch.words, self._sorting, self._arrays, device.records, what, call)
        if status % lt.KERNEL_STATUS:
            raise RunError(f"cublasGemmGroupedBatchedEx failed with status {status}")
        device.check(status)
        self._pointers.uploaded()
        recorder.mark_packed(POINTER_BYTES_A_COMMAND * len(batch), UPLOAD_CALLS)
        device.left()

    def close(self) -> None:
        """Destroy cuBLAS's handle."""
        cublas.destroy(self._handle)


def _address() -> int:
    """Return the address of `cublasGemmGroupedBatchedEx`."""
    library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    address = ctypes.cast(library.cublasGemmGroupedBatchedEx, ctypes.c_void_p).value
    assert address is not None
    return address
