"""Keys of batches of whole steps: two batches with one key have the same operand addresses.

A key holds three groups of words: slots A and B of the first request in each row, slots A and B of every request in one
row that has a weight, and slot C of every request in the first row. While the same requests run together, their steps
have the same key. Each batch is therefore compared with the previous key before a new key is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from launchopt.batching.batch import StepBatch
from launchopt.command import RecordWord
from launchopt.native import compiled
from launchopt.types import Int, Words

MOST_KEPT = 4096  # number of keys to remember
MN, SLOTS_AB = int(RecordWord.MN), int(RecordWord.SLOTS_AB)  # NumPy takes longer to index with members


@compiled
def write_key(words: Words, size: int, rows: int, probe: int, key: Words) -> None:
    """Write the key of a batch (the three groups of words, see above) to `key`, [rows + 2 * size].

    words: the batch's records. probe: the row that has a weight.
    """
    for row in range(rows):
        key[row] = words[row * size, RecordWord.SLOTS_AB]
    for i in range(size):
        key[rows + i] = words[probe * size + i, RecordWord.SLOTS_AB]
        key[rows + size + i] = words[i, RecordWord.SLOT_C_REQUEST]


@compiled
def is_key(words: Words, size: int, rows: int, probe: int, key: Words, known: int) -> Int:
    """Return whether `write_key` would write `key`. known: number of leading rows whose words are already compared."""
    for row in range(known, rows):
        if key[row] != words[row * size, RecordWord.SLOTS_AB]:
            return False
    for i in range(size):
        if (
            key[rows + i] != words[probe * size + i, RecordWord.SLOTS_AB]
            or key[rows + size + i] != words[i, RecordWord.SLOT_C_REQUEST]
        ):
            return False
    return True


@compiled
def are_repeated(words: Words, size: int, steps: int, probe: int, key: Words) -> bool:
    """Return whether each of the `steps` steps of a batch has the same key. The first step has `key`."""
    count = len(words) // steps
    for step in range(1, steps):
        first = step * count
        if not is_key(words[first : first + count], size, count // size, probe, key, 0):
            return False
    return True


@dataclass(frozen=True, slots=True)
class StepKey:
    """The key of a batch of whole steps, and facts that all batches with this key share."""

    rows: int  # rows of the step
    size: int  # requests
    mn: int  # RecordWord.MN of the first command
    probe: int  # row that has a weight
    words: Words  # the key, as `write_key` writes it
    made: bytes  # the key as bytes


class StepKeys:
    """Makes keys of batches. probe: returns a row with a weight, whose address tells which copy a request uses."""

    def __init__(self, probe: Callable[[StepBatch], int]) -> None:
        self._probe = probe
        self._last: dict[tuple[int, ...], StepKey] = {}  # latest key by rows, size, columns and first slots

    def known(self, batch: StepBatch) -> StepKey:
        """Return the key of a batch as a `StepKey`."""
        words, size, rows = batch.words, batch.size, batch.rows
        mn = words.item(0, MN)
        like = rows, size, mn, words.item(0, SLOTS_AB)
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
        """Return the key of a batch as bytes."""
        return self.known(batch).made
