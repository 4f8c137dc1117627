"""Which commands of a batch lie evenly spaced in memory, so that one strided call can take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.command import W_SLOT_A_B, W_SLOT_C_REQUEST
from launchopt.native import Int, compiled

LOW = np.uint64(0xFFFF_FFFF)
HIGH = np.uint64(32)


@compiled
def slots_of(words: NDArray[np.uint64], i: int) -> tuple[Int, Int, Int]:
    """Slots a, b and c of record i."""
    ab = words[i, W_SLOT_A_B]
    return np.int64(ab & LOW), np.int64(ab >> HIGH), np.int64(words[i, W_SLOT_C_REQUEST] & LOW)


@compiled
def run_end(words: NDArray[np.uint64], first: int, move_a: int, move_b: int, move_c: int) -> Int:
    """One past the last record that follows `first` with every slot moving on by exactly its move."""
    a, b, c = slots_of(words, first)
    stop = first + 1
    while stop < len(words):
        next_a, next_b, next_c = slots_of(words, stop)
        if next_a != a + move_a or next_b != b + move_b or next_c != c + move_c:
            break
        a, b, c = next_a, next_b, next_c
        stop += 1
    return stop
