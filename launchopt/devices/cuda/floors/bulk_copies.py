"""Measure the rate of bulk copies into shared memory, and the latency of L2 hits during the copies (kernels/copies.cu).

The caller chooses the number of 16 KB copies in flight per multiprocessor, and their layout in shared memory. The
kernel measures the total rate of all multiprocessors. It also measures the latency of loads that each multiprocessor
makes while it copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.cublaslt.kernel_plans import KernelLaunch
from launchopt.errors import DeviceError, RunError
from launchopt.kernels import source
from launchopt.kernels.shared import COPIES, COPY_ROW_BYTES, COPY_ROWS, LINE_BYTES, MOST_COPY_SLOTS, CopyResult
from launchopt.types import Table

WARP = 32
SLOT_BYTES = COPY_ROWS * COPY_ROW_BYTES
FROM_BYTES = 2 << 30  # size of the memory that is copied, many times the L2 cache
NEAR_SLOTS = 4  # slots that a block copies again and again from the L2 cache; 9 MB on 132 multiprocessors
SAMPLES = 512  # loads per launch
GAP_CYCLES = 3000  # cycles from one load to the next
LEAST_CAPABILITY = 90  # compute capability 9.0


@dataclass(frozen=True, slots=True)
class Copied:
    """Results of one launch. waits: latency of each load in cycles, [samples, blocks]. gb_per_s: 0 without copies."""

    gb_per_s: float
    waits: NDArray[np.uint32]

    @property
    def mean_cycles(self) -> float:
        """Mean latency of all loads, in cycles."""
        return float(self.waits.mean())

    @property
    def slowest_cycles(self) -> float:
        """Median over samples of the latency in the slowest block, in cycles. Work of all blocks waits for it."""
        return float(np.median(self.waits.max(axis=1)))


def copied_of(results: NDArray[np.uint64], waits: NDArray[np.uint32]) -> Copied:
    """Return the results of a launch. results: [blocks, CopyResult]. RunError: a slot held wrong bytes."""
    if results[:, CopyResult.WRONG].any():
        raise RunError(
            f"{int(np.count_nonzero(results[:, CopyResult.WRONG]))} blocks found something else than was copied"
        )
    took_ns = int(results[:, CopyResult.END_NS].max()) - int(results[:, CopyResult.BEGIN_NS].min())
    return Copied(float(results[:, CopyResult.BYTES].sum()) / took_ns if took_ns else 0.0, waits)


class BulkCopies:
    """Measures on the current GPU, one block per multiprocessor, with FROM_BYTES of its memory.

    DeviceError: the GPU has no bulk copies.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy: ModuleType = cupy
        gpu = cupy.cuda.Device()
        if int(gpu.compute_capability) < LEAST_CAPABILITY:
            raise DeviceError(f"bulk copies need compute capability {LEAST_CAPABILITY / 10} or more")
        self.blocks = int(gpu.attributes["MultiProcessorCount"])
        # The kernel needs 1 KiB for its static shared memory.
        self._shared_bytes = int(gpu.attributes["MaxSharedMemoryPerBlockOptin"]) - (1 << 10)
        module = cupy.RawModule(code=source("copies"), options=("-std=c++17", "-DDTYPE=1"))
        kernel, stream = module.get_function("copies"), cupy.cuda.get_current_stream()
        kernel.max_dynamic_shared_size_bytes = self._shared_bytes
        self._launch = KernelLaunch(kernel, 2 * WARP, [np.zeros(1, COPIES).view(np.int64)], stream, self._shared_bytes)
        self._share_slots = FROM_BYTES // SLOT_BYTES // self.blocks
        words = self.blocks * self._share_slots * SLOT_BYTES // 8
        self._from = cupy.random.default_rng(1).integers(0, 1 << 63, words, dtype=np.uint64)
        self._lines = cupy.zeros(SAMPLES * WARP * LINE_BYTES, np.uint8)

    def measure(self, slots: int, offset: int, pitch: int, near: bool = False) -> Copied:
        """Measure one launch with `slots` copies in flight per block, after one warm-up launch.

        offset: first byte of the slots in shared memory. pitch: bytes from one row of a slot to the next. Both must be
        multiples of 16. near: each block copies the same few slots repeatedly, so that they are in the L2 cache.
        """
        if offset + slots * COPY_ROWS * pitch > self._shared_bytes or slots > MOST_COPY_SLOTS:
            raise ValueError(f"{slots} slots of rows {pitch} bytes apart, from {offset} on, are too many")
        cupy = self._cupy
        waits = cupy.zeros((SAMPLES, self.blocks), np.uint32)
        results = cupy.zeros((self.blocks, len(CopyResult)), np.uint64)
        share_slots = NEAR_SLOTS if near else self._share_slots
        words = words_of(
            Copies(self._from.data.ptr, share_slots, offset, pitch, slots),
            Loads(self._lines.data.ptr, SAMPLES, GAP_CYCLES, waits.data.ptr),
            results.data.ptr,
        )
        for _ in range(2):
            self._launch.with_words(self.blocks, words)
        cupy.cuda.get_current_stream().synchronize()
        return copied_of(results.get(), waits.get())


class Copies(NamedTuple):
    """What a launch copies."""

    begin: int  # address of the memory that is copied
    share_slots: int  # number of slots in the part of that memory that a block copies
    offset: int  # first byte of the slots in shared memory
    pitch: int  # bytes from one row of a slot to the next
    slots: int  # copies in flight per block


class Loads(NamedTuple):
    """What a launch loads while it copies, to measure the latency."""

    lines: int  # address of the cache lines that are loaded
    samples: int  # number of loads
    gap: int  # cycles from one load to the next
    waits: int  # address of the table of latencies, in cycles


def words_of(copies: Copies, loads: Loads, results: int) -> Table:
    """Return struct Copies of kernels/copies.cu. results: address of the table of results."""
    return np.array([*copies, *loads, results], np.int64)
