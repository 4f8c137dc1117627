"""Which commands of a batch lie evenly spaced in memory, so that one strided call can take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.command import W_K_OP_DTYPE, W_SLOT_A_B, W_SLOT_C_REQUEST, Op
from launchopt.native import compiled
from launchopt.types import Int

LOW = np.uint64(0xFFFF_FFFF)
HIGH = np.uint64(32)
ONE = np.uint64(1)
OP_BITS = np.uint64(0xFF)
# First and last of the ops that read where a request stands: a launch takes requests from its first one on, in turn.
SEQUENCE_OPS = int(Op.SLOT_MAP), int(Op.AV)


@compiled
def slots_of(words: NDArray[np.uint64], i: int) -> tuple[Int, Int, Int]:
    """Slots a, b and c of record i."""
    ab = words[i, W_SLOT_A_B]
    return np.int64(ab & LOW), np.int64(ab >> HIGH), np.int64(words[i, W_SLOT_C_REQUEST] & LOW)


@compiled
def run_end(words: NDArray[np.uint64], first: int, move_a: int, move_b: int, move_c: int) -> Int:
    """One past the last record that follows `first` with every slot moving on by exactly its move.

    Of an op that reads sequences the requests follow each other, too. That lanes lie evenly does not say so: prompts of
    one token may lie a lane apart where the request between them has none.
    """
    a, b, c = slots_of(words, first)
    op = np.int64((words[first, W_K_OP_DTYPE] >> HIGH) & OP_BITS)
    in_turn = SEQUENCE_OPS[0] <= op <= SEQUENCE_OPS[1]
    stop = first + 1
    while stop < len(words):
        next_a, next_b, next_c = slots_of(words, stop)
        if next_a != a + move_a or next_b != b + move_b or next_c != c + move_c:
            break
        if in_turn and words[stop, W_SLOT_C_REQUEST] >> HIGH != (words[stop - 1, W_SLOT_C_REQUEST] >> HIGH) + ONE:
            break
        a, b, c = next_a, next_b, next_c
        stop += 1
    return stop
