"""Check that the operands in memory are what the seed gives, after a run and before its outputs are checked.

Outputs are compared with products of the operands in memory. If operands were lost, copied over each other or
overwritten, outputs would still agree with these products, so the operands have a check of their own. The first check
compares every element. Later checks of the same arenas compare hashes with those of the first one, and every element
only if a hash differs (`verify.hashes`).
"""

from __future__ import annotations

import math

import numpy as np

from launchopt.devices.arenas import Arenas, to_float32
from launchopt.streams.operands import ArenaKey
from launchopt.types import Array
from launchopt.verify.hashes import Hashes

LEAST_JUDGED = 4096  # minimum number of elements whose mean and variance are checked
MOST_DEVIATIONS = 8.0  # largest error of the mean and the variance of random inputs, in standard errors
KINDS = {  # names of operands by the role of their arena
    **{"a": "weights", "b": "inputs", "x": "inputs and embeddings", "bias": "biases", "gain": "gains"},
    "select": "selection biases",
}


class OperandCheck:
    """Checks the operands of one job after each of its runs. seed: the seed that filled `arenas`."""

    def __init__(self, arenas: Arenas, seed: int, hashing: Hashes | None = None) -> None:
        self._arenas, self._seed = arenas, seed
        self._hashing = hashing or Hashes(arenas.xp, seed)
        self._hashes: dict[ArenaKey, list[int]] = {}  # hashes of operands that were compared with what the seed gives

    def fault(self) -> str | None:
        """Return what is wrong with the operands; None if they are what the seed gives."""
        for arena, flat in self._arenas.inputs():
            hashes = self._hashing.of(flat)
            if hashes != self._hashes.get(arena):
                if wrong := self._compared(arena, flat):
                    return wrong
                self._hashes[arena] = hashes
        return None

    def _compared(self, arena: ArenaKey, flat: Array) -> str | None:
        """Compare every element of an arena with what the seed gives; return the first difference."""
        width = self._arenas.arrays[arena].shape[1]
        for chunk, expected in self._arenas.expected(arena, self._seed):
            found = flat[chunk]
            bits = np.dtype(f"u{found.itemsize}")
            wrong = found.view(bits) != expected.view(bits)
            if count := int(wrong.sum()):
                slot = (chunk.start + int(wrong.argmax())) // width
                return f"operands are not what the seed gives: {count} values of {_name(arena)} from slot {slot} on"
            if not self._is_random(arena, expected):
                return f"operands are not random: the generator gave {_name(arena)} too small or too large a spread"
        return None

    def _is_random(self, arena: ArenaKey, values: Array) -> bool:
        """Return whether mean and variance are those of uniform values around the center of the arena.

        Quantised weights are judged by the values that they stand for.
        """
        if arena.packing:
            wide = self._arenas.dequantised(arena, values.reshape(-1, arena.slot_bytes)).reshape(-1)
        else:
            wide = to_float32(values, arena.dtype)
        if len(wide) < LEAST_JUDGED or not self._arenas.is_random(arena):
            return True
        bound = self._arenas.bound(arena)
        scaled = (wide - np.float32(arena.center)) / np.float32(bound)
        mean, square = float(scaled.mean(dtype=np.float64)), float((scaled * scaled).mean(dtype=np.float64))
        # Of values uniform in [-1, 1): variance 1/3; variance of their squares 4/45.
        rounding = 2 * max(arena.dtype.unit_roundoff, arena.packing.unit_roundoff) * (1 + arena.center / bound)
        errors = (mean * math.sqrt(3), (square - 1 / 3) * math.sqrt(45 / 4))
        return all(abs(error) <= MOST_DEVIATIONS / math.sqrt(len(wide)) + rounding for error in errors)


def _name(arena: ArenaKey) -> str:
    stored = arena.packing if arena.packing else arena.dtype.name
    return f"{KINDS.get(arena.role, arena.role)} {arena.rows}x{arena.cols} {stored}"
