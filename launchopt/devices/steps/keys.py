"""What the addresses of a batch of whole steps follow from, as a key for what is kept about batches like it.

In: a `StepBatch`. Out: its slots A and B of the first request in each row, those of every request in one row that has a
weight, and every slot C of the first row, as bytes.

Steps of requests that go on together have one key again and again: it is compared rather than made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.step_batcher import StepBatch
from launchopt.command import W_MN, W_SLOT_A_B, W_SLOT_C_REQUEST, Op, ShapeKey
from launchopt.native import compiled
from launchopt.types import Int

MOST_KEPT = 4096


def is_shared(shape: ShapeKey, moves: tuple[int, int, int]) -> bool:
    """Return whether commands of a batch share their weight and have one column each. moves: slots of A, B and C."""
    return shape.op is Op.GEMM and shape.n == 1 and moves[0] == 0


@compiled
def write_key(words: NDArray[np.uint64], size: int, rows: int, probe: int, key: NDArray[np.uint64]) -> None:
    """Slots A and B of the first request in each row, of every request in row `probe`, and every C of the first row."""
    for row in range(rows):
        key[row] = words[row * size, W_SLOT_A_B]
    for i in range(size):
        key[rows + i] = words[probe * size + i, W_SLOT_A_B]
        key[rows + size + i] = words[i, W_SLOT_C_REQUEST]


@compiled
def is_key(words: NDArray[np.uint64], size: int, rows: int, probe: int, key: NDArray[np.uint64], known: int) -> Int:
    """Whether `write_key` would write that. known: so many of the first rows' first words are known to be like that."""
    for row in range(known, rows):
        if key[row] != words[row * size, W_SLOT_A_B]:
            return False
    for i in range(size):
        if key[rows + i] != words[probe * size + i, W_SLOT_A_B] or key[rows + size + i] != words[i, W_SLOT_C_REQUEST]:
            return False
    return True


@dataclass(frozen=True, slots=True)
class StepKey:
    """What batches of a key have in common. mn: columns and rows of their first command; words: `write_key`'s."""

    rows: int
    size: int
    mn: int
    probe: int
    words: NDArray[np.uint64]
    made: bytes


class StepKeys:
    """Keys of batches. `probe`: the row of a batch that has a weight, whose copy may differ between requests."""

    def __init__(self, probe: Callable[[StepBatch], int]) -> None:
        self._probe = probe
        self._last: dict[tuple[int, ...], StepKey] = {}  # of batches alike in rows, size, columns and first slots

    def known(self, batch: StepBatch) -> StepKey:
        """The key of a batch, and what it is made of."""
        words, size, rows = batch.words, batch.size, batch.rows
        mn = words.item(0, W_MN)
        like = rows, size, mn, words.item(0, W_SLOT_A_B)
        last = self._last.get(like)
        if last and is_key(words, size, rows, last.probe, last.words, 0):
            return last
        if len(self._last) >= MOST_KEPT:
            self._last.clear()
        probe, key = self._probe(batch), np.zeros(rows + 2 * size, np.uint64)
        write_key(words, size, rows, probe, key)
        self._last[like] = made = StepKey(rows, size, mn, probe, key, key.tobytes())
        return made

    def key_of(self, batch: StepBatch) -> bytes:
        """The key of a batch."""
        return self.known(batch).made
