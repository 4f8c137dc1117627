"""How fast bulk copies fill shared memory, and what a load that hits the L2 cache waits meanwhile: kernels/copies.cu.

In: how many slots of 16 KB are under way on each multiprocessor, and where in shared memory they go. Out: the rate of
all multiprocessors together, and the waits of loads that each of them made while it copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.cuda.kernel_plans import KernelLaunch
from launchopt.errors import DeviceError, RunError
from launchopt.kernels import source

# Of kernels/copies.cu.
ROWS, ROW_BYTES, LINE_BYTES, MOST_SLOTS, WARP = 8, 2048, 128, 16, 32
BYTES, BEGIN_NS, END_NS, WRONG, RESULTS = range(5)
FIELDS = ("from", "share_slots", "offset", "pitch", "slots", "lines", "samples", "gap", "waits", "results")
SLOT_BYTES = ROWS * ROW_BYTES
FROM_BYTES = 2 << 30  # many times what the L2 cache holds
NEAR_SLOTS = 4  # of a block, when all of them are to stay there: 9 MB of 132
SAMPLES, GAP_CYCLES = 512, 3000  # of a launch
LEAST_CAPABILITY = 90


@dataclass(frozen=True, slots=True)
class Copied:
    """Of one launch. waits: cycles of each load, [samples, blocks]; gb_per_s: 0 where nothing was copied."""

    gb_per_s: float
    waits: NDArray[np.uint32]

    @property
    def mean_cycles(self) -> float:
        """Of all loads."""
        return float(self.waits.mean())

    @property
    def slowest_cycles(self) -> float:
        """Of the slowest block's load, the median over samples: what waits for all of them takes."""
        return float(np.median(self.waits.max(axis=1)))


def copied_of(results: NDArray[np.uint64], waits: NDArray[np.uint32]) -> Copied:
    """results: [blocks, RESULTS]. RunError where a slot did not hold what was copied to it."""
    if results[:, WRONG].any():
        raise RunError(f"{int(np.count_nonzero(results[:, WRONG]))} blocks found something else than was copied")
    took_ns = int(results[:, END_NS].max()) - int(results[:, BEGIN_NS].min())
    return Copied(float(results[:, BYTES].sum()) / took_ns if took_ns else 0.0, waits)


class BulkCopies:
    """On the current GPU, a block a multiprocessor; holds FROM_BYTES of its memory. DeviceError where it cannot."""

    def __init__(self) -> None:
        import cupy

        self._cupy: Any = cupy
        gpu = cupy.cuda.Device()
        if int(gpu.compute_capability) < LEAST_CAPABILITY:
            raise DeviceError(f"bulk copies need compute capability {LEAST_CAPABILITY / 10} or more")
        self.blocks = int(gpu.attributes["MultiProcessorCount"])
        self._shared_bytes = int(gpu.attributes["MaxSharedMemoryPerBlockOptin"]) - (1 << 10)  # what the kernel declares
        module = cupy.RawModule(code=source("copies"), options=("-std=c++17", "-DDTYPE=1"))
        kernel, stream = module.get_function("copies"), cupy.cuda.get_current_stream()
        kernel.max_dynamic_shared_size_bytes = self._shared_bytes
        self._launch = KernelLaunch(kernel, 2 * WARP, [np.zeros(len(FIELDS), np.int64)], stream, self._shared_bytes)
        self._share_slots = FROM_BYTES // SLOT_BYTES // self.blocks
        words = self.blocks * self._share_slots * SLOT_BYTES // 8
        self._from = cupy.random.default_rng(1).integers(0, 1 << 63, words, dtype=np.uint64)
        self._lines = cupy.zeros(SAMPLES * WARP * LINE_BYTES, np.uint8)

    def measure(self, slots: int, offset: int, pitch: int, near: bool = False) -> Copied:
        """Of a second launch: `slots` under way, rows `pitch` apart from `offset` on, both whole 16 bytes.

        near: a block copies the same few slots again and again, so that they come from the L2 cache.
        """
        if offset + slots * ROWS * pitch > self._shared_bytes or slots > MOST_SLOTS:
            raise ValueError(f"{slots} slots of rows {pitch} bytes apart, from {offset} on, are too many")
        cupy = self._cupy
        waits = cupy.zeros((SAMPLES, self.blocks), np.uint32)
        results = cupy.zeros((self.blocks, RESULTS), np.uint64)
        addresses = (self._from.data.ptr, self._lines.data.ptr, waits.data.ptr, results.data.ptr)
        share_slots = NEAR_SLOTS if near else self._share_slots
        words = words_of(slots, offset, pitch, share_slots, SAMPLES, GAP_CYCLES, addresses)
        for _ in range(2):
            self._launch.with_words(self.blocks, words)
        cupy.cuda.get_current_stream().synchronize()
        return copied_of(results.get(), waits.get())


def words_of(
    slots: int, offset: int, pitch: int, share_slots: int, samples: int, gap: int, addresses: tuple[int, int, int, int]
) -> NDArray[np.int64]:
    """Struct Copies. addresses: of what is copied, of the lines, the waits and the results."""
    begin, lines, waits, results = addresses
    return np.array([begin, share_slots, offset, pitch, slots, lines, samples, gap, waits, results], np.int64)
