"""Hashes of device memory, by which two states of it are compared without a copy of either.

The hash of a chunk is the sum of its 64-bit words, each times a random odd number of its position, modulo 2**64. So any
change of a single word changes it. Several changes leave it the same with a probability of about 2**-64.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from launchopt.devices.arenas import to_host
from launchopt.types import Array

HASHED_BYTES = 2 << 20  # bytes hashed at a time: words, multipliers and products stay in the cache of a CPU
GPU_HASHED_BYTES = 32 << 20  # the same on a GPU, where small pieces take as long as their launches


class Hashes:
    """Hashes flat arrays of the array module `xp`. The same `seed` gives the same hashes."""

    def __init__(self, xp: ModuleType, seed: int) -> None:
        self._xp, self._seed = xp, seed
        self._step = (HASHED_BYTES if xp is np else GPU_HASHED_BYTES) // 8
        self._multipliers: Array | None = None

    def of(self, flat: Array) -> list[int]:
        """Return the hashes of the chunks of a flat array, whose size is a multiple of 8 bytes."""
        words, step = flat.view(np.uint64), self._step
        if self._multipliers is None:
            odd = np.random.default_rng([self._seed, 0x0DD]).integers(0, 1 << 64, step, dtype=np.uint64) | np.uint64(1)
            self._multipliers = self._xp.asarray(odd)
        sums = self._xp.empty(-(-len(words) // step), np.uint64)
        for index, start in enumerate(range(0, len(words), step)):
            part = words[start : start + step]
            sums[index] = (part * self._multipliers[: len(part)]).sum()
        return [int(each) for each in to_host(sums)]
