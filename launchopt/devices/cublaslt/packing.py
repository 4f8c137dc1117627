"""Packed launches: gather scattered operands into scratch memory, multiply them by one call, and scatter the outputs.

Copy kernels on the main CUDA stream copy the slots, inside the timed region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.cupy_types import CudaStream
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import BYTES, ShapeColumn
from launchopt.devices.cublaslt.tables import Tables

STAGES = 64  # pinned buffers for lists of slots, used in turn; the host waits for an upload before it reuses its buffer
THREADS = 256  # threads per block of the copy kernels
BLOCKS_PER_SLOT = 16

# Each thread copies 16 bytes at a time. All blocks with the same blockIdx.y copy one slot. unit: from one slot to the
# next; width: copied part of each slot; both in units of 16 bytes.
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
COPY_BYTES = 16  # bytes that a thread copies at a time

Slots = tuple[NDArray[np.uint32], ...]  # numbers of the slots of A, B and C


class SlotCopier:
    """Gathers and scatters up to `most` slots at a time on `stream`."""

    def __init__(self, stream: CudaStream, most: int) -> None:
        self._stream = stream
        module = cupy.RawModule(code=SOURCE)
        self._gather, self._scatter = module.get_function("gather"), module.get_function("scatter")
        pinned = cupy.cuda.alloc_pinned_memory(STAGES * 3 * most * 4)
        self._staged = np.frombuffer(pinned, np.uint32, STAGES * 3 * most).reshape(STAGES, 3, most)
        self._slots = cupy.empty((3, most), np.uint32)
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(STAGES)]
        self._next = 0

    def upload(self, slots: Slots) -> None:
        """Upload slot numbers for the following gathers and scatters."""
        stage = self._next % STAGES
        if self._next >= STAGES:
            self._events[stage].synchronize()
        for row, values in zip(self._staged[stage], slots, strict=True):
            row[: len(values)] = values
        source = self._staged[stage]
        self._slots.data.copy_from_host_async(source.ctypes.data, source.nbytes, self._stream)
        self._events[stage].record(self._stream)
        self._next += 1

    def gather(self, operand: int, arena: int, scratch: int, slot_bytes: int, count: int) -> None:
        """Copy `count` slots of an arena to adjacent places in scratch. arena, scratch: device addresses.

        operand: which of the uploaded lists of slots to use: 0 for A, 1 for B, 2 for C.
        """
        self._run(self._gather, operand, arena, scratch, (slot_bytes, slot_bytes), count)

    def gather_part(self, operand: int, arena: int, scratch: int, sizes: tuple[int, int], count: int) -> None:
        """Copy the beginning of each slot, like `gather`. sizes: bytes of a slot and of the part, multiples of 16."""
        self._run(self._gather, operand, arena, scratch, sizes, count)

    def scatter(self, operand: int, scratch: int, arena: int, slot_bytes: int, count: int) -> None:
        """Copy adjacent places in scratch to slots of an arena. Arguments as for `gather`."""
        self._run(self._scatter, operand, scratch, arena, (slot_bytes, slot_bytes), count)

    def scatter_part(self, operand: int, scratch: int, arena: int, sizes: tuple[int, int], count: int) -> None:
        """Copy adjacent places in scratch to the beginnings of slots. sizes: as for `gather_part`."""
        self._run(self._scatter, operand, scratch, arena, sizes, count)

    def _run(
        self, kernel: cupy.RawKernel, operand: int, source: int, target: int, sizes: tuple[int, int], count: int
    ) -> None:
        unit, width = (size // COPY_BYTES for size in sizes)
        blocks = min(BLOCKS_PER_SLOT, -(-width // THREADS))
        with self._stream:
            slots = self._slots.data.ptr + operand * self._slots.strides[0]
            kernel((blocks, count), (THREADS,), (source, target, slots, np.int64(unit), np.int64(width)))


class Packing:
    """Packed launches by the plans in column PACKED0 of `tables`, with scratch memory and copies on `stream`."""

    def __init__(self, tables: Tables, stream: CudaStream, check: Callable[[int], None]) -> None:
        self._tables, self._stream, self._check = tables, stream, check
        self._scratch = [cupy.empty(0, np.uint8) for _ in "abc"]  # shared by all shapes, since batches run in order
        self._most = 0
        self._copier: SlotCopier | None = None

    def grow(self, most: int, slot_bytes: Sequence[int]) -> None:
        """Enlarge the scratch memory for `most` commands. slot_bytes: bytes of a slot of A, B and C."""
        self._most = max(self._most, most)
        for operand, size in enumerate(slot_bytes):
            if self._scratch[operand].size < most * size:
                self._scratch[operand] = cupy.empty(most * size, np.uint8)

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Addresses of the packed operands A, B and C."""
        a, b, c = (int(scratch.data.ptr) for scratch in self._scratch)
        return a, b, c

    def load(self) -> None:
        """Load the copy kernels if any shape is packed."""
        self._copier = SlotCopier(self._stream, self._most) if self._most else None

    def launch(self, index: int, count: int, slots: Slots) -> int:
        """Upload the slots, gather A and B, multiply, scatter C; return the number of bytes copied.

        index: shape of the commands. count: number of commands.
        """
        row = self._tables.shapes[index].tolist()
        copier, plans, contexts = self._copier, self._tables.plans, self._tables.contexts
        assert copier is not None
        a, b, c = self.addresses
        copier.upload(slots)
        copier.gather(0, row[ShapeColumn.BASE_A], a, row[ShapeColumn.BYTES_A], count)
        copier.gather(1, row[ShapeColumn.BASE_B], b, row[ShapeColumn.BYTES_B], count)
        self._check(lt.launch(contexts[0], plans[row[ShapeColumn.PACKED0] + count], a, b, c, 0))
        copier.scatter(2, c, row[ShapeColumn.BASE_C], row[ShapeColumn.BYTES_C], count)
        return count * int(sum(row[BYTES]))

    def close(self) -> None:
        """Release the scratch memory."""
        self._scratch.clear()
