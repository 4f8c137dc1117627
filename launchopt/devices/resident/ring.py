"""The host's side of the persistent kernel: the GEMMs that it takes, and the ring to which compiled code posts them.

A command takes COMMAND_WORDS words of the ring (kernels/persistent.cu). The upper 16 bits of each word are the number
of the ring's lap, so the words may become visible in any order. The host reuses a slot once the slot's command is
complete. In the state KernelState.ENDED the next kernel may already be launched, so only KernelState.GAVE_UP stops the
host.
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

MOST_ROWS = (1 << 24) - 1  # most rows of C: an entry has 24 bits for the first row of a tile
LEAST_TILE_BYTES = 4096  # fewest bytes of weights in a tile: a group of 256 threads reads as many at once
VECTOR_BYTES = 16  # bytes of a vector


class QueueWord(enum.IntEnum):
    """Words of the host's queue, int64. All addresses are addresses of pinned or other memory of the host."""

    RING = 0  # address of the ring, [capacity, COMMAND_WORDS]
    DONE = 1  # address of [capacity]: number, from 1, of the last complete command of each slot
    OUTPUTS = 2  # address of [capacity, OUTPUT_WORDS]: outputs that the kernel sends to the host
    STATE = 3  # address of the kernel's KernelState
    LAST = 4  # address of [MASK + 1]: number, from 1, of the last command of each request; 0: no order is kept
    BITS = 5  # log2 of the ring's capacity, in commands
    NEXT = 6  # number of commands posted
    MASK = 7  # number of elements of LAST, minus 1; the number is a power of two. Requests may share an element.


class PostedShape(NamedTuple):
    """The arguments of `post` that all commands of a shape have in common."""

    queue: int  # address of the host's queue, int64 [QUEUE_WORDS]
    number: int  # number of the shape in the kernel's table
    swapped: bool  # True: A and B are exchanged


QUEUE_WORDS = len(QueueWord)
TAG_MASK = 0xFFFF  # bits of the lap's number that are in a word of the ring
OK, COMPLETE, GONE = 0, 1, -2  # results of `post` and `await_outputs`; GONE: the kernel gave up
# A word of outputs: the command's number, from 1, in the upper 32 bits; the fp32 output in the lower 32 bits.
STAMP_SHIFT, STAMP_MASK = 32, 0xFFFFFFFF
PROMPT_LOOKS = 256  # polls for outputs before the loop pauses between polls; they take several us
GAVE_UP_LINE = "the persistent kernel gave up: no command came within mode.patience_s"


def takes(shape: ShapeKey) -> bool:
    """Return whether the kernel multiplies commands of a shape: GEMMs with few columns, or few rows."""
    few, many = sorted((shape.m, shape.n))
    return shape.op is Op.GEMM and few <= MOST_COLUMNS and many <= MOST_ROWS


def is_sent(shape: ShapeKey) -> bool:
    """Return whether the kernel sends the outputs of a command of this shape to the host, if the command comes alone.

    It does for small commands, which one warp multiplies.
    """
    few, many = sorted((shape.m, shape.n))
    vectors, rest = divmod(shape.k * shape.dtype.itemsize, VECTOR_BYTES)
    return few == 1 and many <= OUTPUT_WORDS and vectors <= SMALL_VECTORS and not rest


def shape_words(shape: ShapeKey, row_elements: tuple[int, int, int]) -> tuple[list[int], bool]:
    """Return the words of struct Shape, and whether A and B are exchanged.

    The kernel reads the operand with more rows as weights. row_elements: elements from one row of A, B and C to the
    next.
    """
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
    """Return the tag of the words of command `index`, in their upper 16 bits. bits: log2 of the ring's capacity."""
    return (((index >> bits) + 1) & TAG_MASK) << TAG_SHIFT


@compiled
def post(queue: Int, a: Int, b: Int, c: Int, request: Int, shape: Int) -> Int:
    """Wait for a free slot and post one command. Return OK, or GONE if the kernel gave up.

    queue: address of the host's queue, int64 [QUEUE_WORDS]. a, b, c: addresses of the operands. request: index of
    the request, whose commands are kept in order. shape: the kernel's number of the shape, or END. The caller must put
    a `store_fence` behind the last of several commands.
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
    """Post the word END: the kernel ends after the commands that were posted before. Return OK or GONE."""
    status = post(queue, 0, 0, 0, 0, END)
    store_fence()
    return status


@compiled
def outputs_of(queue: Int, index: Int) -> Int:
    """Return the address of the OUTPUT_WORDS words to which the kernel sends the outputs of command `index`."""
    return _word(queue, QueueWord.OUTPUTS) + 8 * OUTPUT_WORDS * slot_of(queue, index)


def values_of(words: Table | Words) -> NDArray[np.float32]:
    """Return the outputs in words of outputs. words: int64 or uint64 of any shape; the result has the same shape."""
    values: NDArray[np.float32] = (words & words.dtype.type(STAMP_MASK)).astype(np.uint32).view(np.float32)
    return values


@compiled
def await_outputs(queue: Int, index: Int, rows: Int) -> Int:
    """Wait until the host has all `rows` outputs of command `index`, and return OK.

    Return COMPLETE if the command is complete and the kernel sent no outputs. It sends only the outputs of a small
    command that came alone. Return GONE if the kernel gave up.

    The host may have the outputs before they are in C. A command that reads them from C must therefore wait for this
    command, as the commands of one request do. A word of outputs has 32 bits for the command's number. After 2**32
    commands the number repeats, so old outputs of a slot could be taken for new ones.
    """
    outputs, state = outputs_of(queue, index), _word(queue, QueueWord.STATE)
    done = _word(queue, QueueWord.DONE) + 8 * slot_of(queue, index)
    stamp, looks, complete = (index + 1) & STAMP_MASK, 0, False
    while True:
        differ = np.int64(0)
        for row in range(rows):  # no early exit: the words are in two cache lines, which arrive together
            differ |= ((load_word(outputs + 8 * row) >> STAMP_SHIFT) & STAMP_MASK) ^ stamp
        if differ == 0:
            return OK
        if complete:
            return COMPLETE
        if load_word(state) == KernelState.GAVE_UP:
            return GONE
        complete = load_word(done) == index + 1  # outputs arrive before the completion, so poll them once more
        looks += 1
        if looks > PROMPT_LOOKS:
            cpu_pause()
