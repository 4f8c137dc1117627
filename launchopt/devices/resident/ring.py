"""The host's end of the persistent kernel: which GEMMs it takes, and the ring in which compiled code posts them.

A command is COMMAND_WORDS words of the ring (kernels/persistent.cu). Each word carries the lap of the ring in its upper
16 bits, so the words may become visible in any order. A slot is written again when its last command is complete. A
kernel that ended in order may have been started again meanwhile, so only KernelState.GAVE_UP stops the host.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op, ShapeKey
from launchopt.kernels.shared import (
    COMMAND_WORDS,
    END,
    MOST_COLUMNS,
    OUTPUT_WORDS,
    SMALL_VECTORS,
    TAG_SHIFT,
    KernelState,
)
from launchopt.native import compiled, cpu_pause, load_word, store_fence, store_word
from launchopt.types import Int, Table, Words

MOST_ROWS = (1 << 24) - 1  # a word of a tile has 24 bits for its first row
LEAST_TILE_BYTES = 4096  # of weights: what a group of 256 threads reads at once
VECTOR_BYTES = 16


class QueueWord(enum.IntEnum):
    """A word of a host's queue, int64. Addresses are of memory of the host."""

    RING = 0  # address of the ring, [capacity, COMMAND_WORDS]
    DONE = 1  # address of [capacity]: number, from 1, of the last command that is complete in each slot
    OUTPUTS = 2  # address of [capacity, OUTPUT_WORDS]: outputs that the kernel sends the host
    STATE = 3  # address of the kernel's KernelState
    LAST = 4  # address of [MASK + 1]: number, from 1, of the last command of each request; 0: no order is kept
    BITS = 5  # logarithm of the ring's capacity
    NEXT = 6  # number of commands posted
    MASK = 7  # entries of LAST, a power of two, less one; requests that share an entry are kept in order, too


class PostedShape(NamedTuple):
    """The arguments of `post` that all commands of a shape have in common."""

    queue: int  # address of QUEUE_WORDS int64
    number: int  # number of the shape in the kernel's table
    swapped: bool  # True: A and B are exchanged


QUEUE_WORDS = len(QueueWord)
TAG_MASK = 0xFFFF
OK, COMPLETE, GONE = 0, 1, -2  # GONE: the kernel gave up
STAMP_SHIFT, STAMP_MASK = 32, 0xFFFFFFFF  # a word of outputs: the command's number, from 1, above the fp32 output
PROMPT_LOOKS = 256  # for outputs, several microseconds; between later looks the core pauses
GAVE_UP_LINE = "the resident kernel gave up: no command came within mode.patience_s"


def takes(shape: ShapeKey) -> bool:
    """Return whether the kernel multiplies it: a GEMM with few columns, or few rows."""
    few, many = sorted((shape.m, shape.n))
    return shape.op is Op.GEMM and few <= MOST_COLUMNS and many <= MOST_ROWS


def is_sent(shape: ShapeKey) -> bool:
    """Return whether the host is sent the outputs of such a command when it comes alone: one warp multiplies it."""
    few, many = sorted((shape.m, shape.n))
    vectors, rest = divmod(shape.k * shape.dtype.itemsize, VECTOR_BYTES)
    return few == 1 and many <= OUTPUT_WORDS and vectors <= SMALL_VECTORS and not rest


def shape_words(shape: ShapeKey, row_elements: tuple[int, int, int]) -> tuple[list[int], bool]:
    """Return the words of struct Shape, and whether A and B change places: the kernel reads the taller one as
    weights."""
    lda, ldb, ldc = row_elements
    swapped = shape.m < shape.n
    many, few = (shape.n, shape.m) if swapped else (shape.m, shape.n)
    rows, columns = (ldb, lda) if swapped else (lda, ldb)
    steps = (ldc, 1) if swapped else (1, ldc)
    least = max(1, LEAST_TILE_BYTES // (shape.k * shape.dtype.itemsize))
    return [many, few, shape.k, rows, columns, *steps, least], swapped


@compiled
def _word(queue: Int, word: Int) -> Int:
    return load_word(queue + 8 * word)


@compiled
def slot_of(queue: Int, index: Int) -> Int:
    """Return the slot of command `index`, counted from 0."""
    return index & ((np.int64(1) << _word(queue, QueueWord.BITS)) - 1)


@compiled
def tag_of(index: Int, bits: Int) -> Int:
    """Return the upper 16 bits of the words of command `index`, in their place."""
    return (((index >> bits) + 1) & TAG_MASK) << TAG_SHIFT


@compiled
def post(queue: Int, a: Int, b: Int, c: Int, request: Int, shape: Int) -> Int:
    """Post one command of `shape`, the kernel's number of it. Wait for its slot; return OK, or GONE.

    queue: address of QUEUE_WORDS int64. The caller puts a `store_fence` behind the last of several commands.
    """
    index, bits = _word(queue, QueueWord.NEXT), _word(queue, QueueWord.BITS)
    capacity, state = np.int64(1) << bits, _word(queue, QueueWord.STATE)
    slot = index & (capacity - 1)
    if load_word(state) == KernelState.GAVE_UP:
        return GONE
    if index >= capacity:
        free = _word(queue, QueueWord.DONE) + 8 * slot
        while load_word(free) != index + 1 - capacity:
            if load_word(state) == KernelState.GAVE_UP:
                return GONE
            cpu_pause()
    before, last = np.int64(0), _word(queue, QueueWord.LAST)
    if last != 0 and shape != END:
        last += 8 * (request & _word(queue, QueueWord.MASK))
        then = load_word(last)  # the request's last command, counted from 1
        if then != 0 and index + 1 - then < capacity:
            before = index + 1 - then
        store_word(last, index + 1)
    tag = tag_of(index, bits)
    at = _word(queue, QueueWord.RING) + 8 * COMMAND_WORDS * slot
    store_word(at, tag | a)
    store_word(at + 8, tag | b)
    store_word(at + 16, tag | c)
    store_word(at + 24, tag | (before << 16) | shape)
    store_word(queue + 8 * QueueWord.NEXT, index + 1)
    return OK


@compiled
def post_end(queue: Int) -> Int:
    """Post the word END: the kernel ends behind the commands posted before. Return OK or GONE."""
    status = post(queue, 0, 0, 0, 0, END)
    store_fence()
    return status


@compiled
def outputs_of(queue: Int, index: Int) -> Int:
    """Return the address of the OUTPUT_WORDS words in which the outputs of command `index` come."""
    return _word(queue, QueueWord.OUTPUTS) + 8 * OUTPUT_WORDS * slot_of(queue, index)


def values_of(words: Table | Words) -> NDArray[np.float32]:
    """Return the outputs that these words hold; int64 or uint64 of any shape."""
    values: NDArray[np.float32] = (words & words.dtype.type(STAMP_MASK)).astype(np.uint32).view(np.float32)
    return values


@compiled
def await_outputs(queue: Int, index: Int, rows: Int) -> Int:
    """Wait until the host has all `rows` outputs of command `index`, and return OK.

    Return COMPLETE if the command is complete and the kernel sent no outputs: it sends those of a small command that
    came alone. Return GONE if the kernel gave up. Outputs come before they are known to be in memory, so a command that
    reads them there must wait for this one, as the commands of one request do. A word holds 32 bits of the command's
    number: a slot to which nothing was sent for 2**32 commands may hold what looks like the next outputs.
    """
    outputs, state = outputs_of(queue, index), _word(queue, QueueWord.STATE)
    done = _word(queue, QueueWord.DONE) + 8 * slot_of(queue, index)
    stamp, looks, complete = (index + 1) & STAMP_MASK, 0, False
    while True:
        differ = np.int64(0)
        for row in range(rows):  # all of them: they lie in two cache lines, which come together
            differ |= ((load_word(outputs + 8 * row) >> STAMP_SHIFT) & STAMP_MASK) ^ stamp
        if differ == 0:
            return OK
        if complete:
            return COMPLETE
        if load_word(state) == KernelState.GAVE_UP:
            return GONE
        complete = load_word(done) == index + 1  # outputs come before the completion: look once more
        looks += 1
        if looks > PROMPT_LOOKS:
            cpu_pause()
