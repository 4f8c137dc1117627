"""Functions for compiled code that read a field of record i of `words`, uint64 [count, WORDS].

The layout is that of `launchopt.command.COMMAND_DTYPE`. Python code that needs a field of many records views them with
`launchopt.command.as_records` instead. Numba inlines each function, so that it costs a shift and a mask.
"""

from __future__ import annotations

import numpy as np

from launchopt.command import HALF_BITS, LOW_HALF, Flag, RecordWord
from launchopt.native import compiled
from launchopt.types import Int, Words

FLAG_SHIFT = 48  # position of the first bit of `flags` in RecordWord.K_OP_DTYPE
SHAPE_MASK = np.uint64((1 << FLAG_SHIFT) - 1)  # k, op and dtype in that word, without the flags
STEP_END = np.uint64(int(Flag.STEP_END) << FLAG_SHIFT)
ROUND_END = np.uint64(int(Flag.ROUND_END) << FLAG_SHIFT)
GOES_ON = np.uint64(int(Flag.GOES_ON) << FLAG_SHIFT)
OP_MASK = np.uint64(0xFF)


@compiled
def low_half(word: np.uint64) -> Int:
    """Return bits 0 to 31 of a word, as int64."""
    return np.int64(word & LOW_HALF)


@compiled
def high_half(word: np.uint64) -> Int:
    """Return bits 32 to 63 of a word, as int64."""
    return np.int64(word >> HALF_BITS)


@compiled
def join_halves(low: Int, high: Int) -> np.uint64:
    """Return the word with `low` in bits 0 to 31 and `high` in bits 32 to 63; both are below 2**32."""
    return np.uint64(low) | np.uint64(high) << HALF_BITS


@compiled
def columns_of(words: Words, i: Int) -> Int:
    """Return n, the columns of B and C."""
    return high_half(words[i, RecordWord.MN])


@compiled
def op_of(words: Words, i: Int) -> Int:
    """Return the op, a value of `Op`."""
    return np.int64((words[i, RecordWord.K_OP_DTYPE] >> HALF_BITS) & OP_MASK)


@compiled
def slot_a_of(words: Words, i: Int) -> Int:
    """Return the slot of A."""
    return low_half(words[i, RecordWord.SLOTS_AB])


@compiled
def slot_b_of(words: Words, i: Int) -> Int:
    """Return the slot of B."""
    return high_half(words[i, RecordWord.SLOTS_AB])


@compiled
def slot_c_of(words: Words, i: Int) -> Int:
    """Return the slot of C."""
    return low_half(words[i, RecordWord.SLOT_C_REQUEST])


@compiled
def slots_of(words: Words, i: Int) -> tuple[Int, Int, Int]:
    """Return the slots of A, B and C."""
    return slot_a_of(words, i), slot_b_of(words, i), slot_c_of(words, i)


@compiled
def request_of(words: Words, i: Int) -> Int:
    """Return the request whose step the command belongs to."""
    return high_half(words[i, RecordWord.SLOT_C_REQUEST])


@compiled
def step_of(words: Words, i: Int) -> Int:
    """Return the command's position within its request, from 0."""
    return low_half(words[i, RecordWord.STEP_TOKEN])


@compiled
def token_of(words: Words, i: Int) -> Int:
    """Return the token that the command works for; NO_TOKEN: none."""
    return high_half(words[i, RecordWord.STEP_TOKEN])


@compiled
def ends_step(words: Words, i: Int) -> bool:
    """Return whether the command is the last of its step."""
    return bool(words[i, RecordWord.K_OP_DTYPE] & STEP_END != np.uint64(0))


@compiled
def ends_steps(words: Words, i: Int) -> bool:
    """Return whether the command is the last of the steps of its request that are issued together."""
    return bool(words[i, RecordWord.K_OP_DTYPE] & (STEP_END | GOES_ON) == STEP_END)


@compiled
def ends_round(words: Words, i: Int) -> bool:
    """Return whether the command is the last of a round, a step of all running requests."""
    return bool(words[i, RecordWord.K_OP_DTYPE] & ROUND_END != np.uint64(0))


@compiled
def has_flag(words: Words, i: Int, flag: Int) -> bool:
    """Return whether the command has a `Flag`."""
    return bool(high_half(words[i, RecordWord.K_OP_DTYPE]) >> (FLAG_SHIFT - 32) & flag != 0)


@compiled
def shape_key_of(words: Words, i: Int) -> tuple[np.uint64, np.uint64]:
    """Return the two words that are equal in all commands of one shape (`ShapeKey.packed`)."""
    return words[i, RecordWord.MN], words[i, RecordWord.K_OP_DTYPE] & SHAPE_MASK


@compiled
def copy_record(words: Words, i: Int, out: Words, place: Int) -> None:
    """Copy record i of `words` to `out[place]`, except its last word (the turn, or the time of eligibility)."""
    for w in range(RecordWord.TURN):
        out[place, w] = words[i, w]
