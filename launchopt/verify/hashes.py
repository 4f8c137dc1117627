"""Hashes of device memory, by which two states of it are compared without a copy of either.

The hash of a chunk is two sums modulo 2**64: of its 64-bit words, and of their upper halves, each times a random odd
number of its position. A change of a single word always changes the first sum. Any other change leaves both the same
with a probability of at most 2**-32, over the random numbers: a difference of words that is no multiple of 2**32 hides
from the first sum so rarely, and one that is, such as a sign, from the second.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from launchopt.devices.arenas import to_host
from launchopt.types import Array

HASHED_BYTES = 2 << 20  # bytes hashed at a time: words, multipliers and products stay in the cache of a CPU
GPU_HASHED_BYTES = 16 << 20  # the same on a GPU, where small pieces take as long as their launches
HALF = np.uint64(32)


class Hashes:
    """Hashes arrays of the array module `xp`. The same `seed` gives the same hashes."""

    def __init__(self, xp: ModuleType, seed: int) -> None:
        self._xp, self._seed = xp, seed
        self._step = (HASHED_BYTES if xp is np else GPU_HASHED_BYTES) // 8
        self._odd: Array | None = None  # [2, words of a chunk]

    def of(self, flat: Array) -> list[int]:
        """Return the hashes of the chunks of a flat array, whose size is a multiple of 8 bytes: two numbers each."""
        words, step = flat.view(np.uint64), self._step
        sums = self._xp.empty((-(-len(words) // step), 2), np.uint64)
        for index, start in enumerate(range(0, len(words), step)):
            sums[index] = self._sums(words[start : start + step])
        return [int(each) for each in to_host(sums).reshape(-1)]

    def of_rows(self, rows: Array) -> Array:
        """Return the hash of each row of an array, uint64 [rows, 2] on the host. A row is a chunk at most."""
        found: Array = to_host(self._sums(rows.view(np.uint64)))
        return found

    def _sums(self, words: Array) -> Array:
        """Return the two sums of the words along the last axis."""
        if self._odd is None:
            generator = np.random.default_rng([self._seed, 0x0DD])
            numbers = generator.integers(0, 1 << 64, (2, self._step), dtype=np.uint64) | np.uint64(1)
            self._odd = self._xp.asarray(numbers)
        of_words, of_halves = self._odd[:, : words.shape[-1]]
        sums = (words * of_words).sum(axis=-1), ((words >> HALF) * of_halves).sum(axis=-1)
        return self._xp.stack(sums, axis=-1)
