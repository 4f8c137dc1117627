"""Copies of scattered slots on the GPU: gather into scratch, scatter out of it. What packing costs is spent here."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

STAGES = 64  # slot lists in flight; the host waits for the oldest when it wraps around
THREADS = 256
BLOCKS_PER_SLOT = 16

# 16 bytes a thread and step; one column of blocks a slot. Slots lie `unit` apart; `width` of each is copied.
SOURCE = r"""
extern "C" __global__ void gather(
    const int4* arena, int4* scratch, const unsigned* slots, long long unit, long long width) {
    const int4* from = arena + (long long)slots[blockIdx.y] * unit;
    int4* to = scratch + (long long)blockIdx.y * width;
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x) to[i] = from[i];
}
extern "C" __global__ void scatter(
    const int4* scratch, int4* arena, const unsigned* slots, long long unit, long long width) {
    const int4* from = scratch + (long long)blockIdx.y * width;
    int4* to = arena + (long long)slots[blockIdx.y] * unit;
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x) to[i] = from[i];
}
"""
CALLS_PER_BATCH = 4  # one upload, two gathers, one scatter


class SlotCopier:
    """Gathers and scatters up to `most` slots at a time on `stream`."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream = stream
        module = cupy.RawModule(code=SOURCE)
        self._gather, self._scatter = module.get_function("gather"), module.get_function("scatter")
        pinned = cupy.cuda.alloc_pinned_memory(STAGES * 3 * most * 4)
        self._staged = np.frombuffer(pinned, np.uint32, STAGES * 3 * most).reshape(STAGES, 3, most)
        self._slots = cupy.empty((3, most), np.uint32)
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(STAGES)]
        self._next = 0

    def upload(self, slots: tuple[NDArray[np.uint32], ...]) -> None:
        """Slots of A, B and C for the gathers and the scatter that follow."""
        stage = self._next % STAGES
        if self._next >= STAGES:
            self._events[stage].synchronize()
        for row, values in zip(self._staged[stage], slots, strict=True):
            row[: len(values)] = values
        source = self._staged[stage]
        self._slots.data.copy_from_host_async(source.ctypes.data, source.nbytes, self._stream)
        self._events[stage].record(self._stream)
        self._next += 1

    def gather(
        self, operand: int, arena: int, scratch: int, slot_bytes: int, count: int, copied_bytes: int | None = None
    ) -> None:
        """Arena slots (or `copied_bytes` of each, a multiple of 16) side by side into scratch, addresses on the device.

        `operand`: 0 for A, 1 for B, 2 for C.
        """
        self._run(self._gather, operand, arena, scratch, (slot_bytes, copied_bytes or slot_bytes), count)

    def scatter(
        self, operand: int, scratch: int, arena: int, slot_bytes: int, count: int, copied_bytes: int | None = None
    ) -> None:
        """Scratch back into the arena's slots."""
        self._run(self._scatter, operand, scratch, arena, (slot_bytes, copied_bytes or slot_bytes), count)

    def _run(self, kernel: Any, operand: int, source: int, target: int, sizes: tuple[int, int], count: int) -> None:
        unit, width = (size // 16 for size in sizes)
        blocks = min(BLOCKS_PER_SLOT, -(-width // THREADS))
        with self._stream:
            slots = self._slots.data.ptr + operand * self._slots.strides[0]
            kernel((blocks, count), (THREADS,), (source, target, slots, np.int64(unit), np.int64(width)))
