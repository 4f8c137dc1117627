"""The host's end of a resident kernel's ring: four words a command, written by compiled code (kernels/persistent.cu).

Each word carries its ring's lap in its upper 16 bits, so words may become visible in any order. A slot is written anew
when the GPU has told that its command is complete. All memory is given by address: `queue` is that of QUEUE_WORDS
int64. A kernel that ended in order (ENDED) may have been started again meanwhile, so that alone stops nobody.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.resident.shapes import SMALL_ROWS
from launchopt.native import compiled, cpu_pause, load_word, store_fence, store_word
from launchopt.types import Int

# Words of a queue: addresses of the ring, of the completions, of the outputs that come with them, of the kernel's state
# and of the last command of each request (0: no order is asked for); the capacity's logarithm; how many commands were
# posted; how many requests have a word, less one. They are a power of two: requests that share one are in order, too.
RING, DONE, OUTPUTS, STATE, LAST, BITS, NEXT, MASK = range(8)
QUEUE_WORDS = 8
COMMAND_WORDS = 4
OUTPUT_WORDS = SMALL_ROWS  # of a command: an output each
RUNNING, ENDED, GAVE_UP = range(3)  # the kernel's state
TAG_SHIFT, TAG_MASK = 48, 0xFFFF
END = 0xFFFF  # a shape: no command follows
OK, COMPLETE, GONE = 0, 1, -2  # GONE: the kernel gave up
STAMP_SHIFT, STAMP_MASK = 32, 0xFFFFFFFF  # of a word of `host_outputs`: the command's number, from 1, above the output
PROMPT_LOOKS = 256  # for outputs, some microseconds; between later ones the core pauses, and sees them later
GAVE_UP_LINE = "the resident kernel gave up: no command came within mode.patience_s"


@compiled
def tag_of(index: Int, bits: Int) -> Int:
    """What the words of command `index` carry in their upper 16 bits."""
    return (((index >> bits) + 1) & TAG_MASK) << TAG_SHIFT


@compiled
def post(queue: Int, a: Int, b: Int, c: Int, request: Int, shape: Int) -> Int:
    """One command of `shape`, a number of the kernel's; waits for its slot, or returns GONE.

    The caller puts a `store_fence` behind the last of several.
    """
    index, bits = load_word(queue + 8 * NEXT), load_word(queue + 8 * BITS)
    capacity, state = np.int64(1) << bits, load_word(queue + 8 * STATE)
    slot = index & (capacity - 1)
    if load_word(state) == GAVE_UP:
        return GONE
    if index >= capacity:
        free = load_word(queue + 8 * DONE) + 8 * slot
        while load_word(free) != index + 1 - capacity:
            if load_word(state) == GAVE_UP:
                return GONE
            cpu_pause()
    before, last = np.int64(0), load_word(queue + 8 * LAST)
    if last != 0 and shape != END:
        last += 8 * (request & load_word(queue + 8 * MASK))
        then = load_word(last)  # the request's last command, counted from 1
        if then != 0 and index + 1 - then < capacity:
            before = index + 1 - then
        store_word(last, index + 1)
    tag = tag_of(index, bits)
    at = load_word(queue + 8 * RING) + 8 * COMMAND_WORDS * slot
    store_word(at, tag | a)
    store_word(at + 8, tag | b)
    store_word(at + 16, tag | c)
    store_word(at + 24, tag | (before << 16) | shape)
    store_word(queue + 8 * NEXT, index + 1)
    return OK


@compiled
def post_end(queue: Int) -> Int:
    """No command follows."""
    status = post(queue, 0, 0, 0, 0, END)
    store_fence()
    return status


@compiled
def outputs_of(queue: Int, index: Int) -> Int:
    """Address of the words in which the outputs of command `index` come."""
    slot = index & ((np.int64(1) << load_word(queue + 8 * BITS)) - 1)
    return load_word(queue + 8 * OUTPUTS) + 8 * OUTPUT_WORDS * slot


def values_of(words: NDArray[Any]) -> NDArray[np.float32]:
    """Outputs out of their words, [...] of int64 or uint64."""
    values: NDArray[np.float32] = (words & words.dtype.type(STAMP_MASK)).astype(np.uint32).view(np.float32)
    return values


@compiled
def await_outputs(queue: Int, index: Int, rows: Int) -> Int:
    """Wait until the host has all `rows` outputs of command `index`: OK.

    The kernel sends those of a small one that came alone. COMPLETE: it did not, and the command is complete. GONE: it
    gave up. Outputs come before they are known to be in memory: a command that reads them there has to wait for this
    one, as those of a request do. They tell by 32 bits whose they are, so that a slot for which none were sent for
    2**32 commands may hold what looks like the next ones.
    """
    outputs, slot = outputs_of(queue, index), index & ((np.int64(1) << load_word(queue + 8 * BITS)) - 1)
    done, state = load_word(queue + 8 * DONE) + 8 * slot, load_word(queue + 8 * STATE)
    stamp, looks, complete = (index + 1) & STAMP_MASK, 0, False
    while True:
        differ = np.int64(0)
        for row in range(rows):  # all of them: they lie in two lines, which come together
            differ |= ((load_word(outputs + 8 * row) >> STAMP_SHIFT) & STAMP_MASK) ^ stamp
        if differ == 0:
            return OK
        if complete:
            return COMPLETE
        if load_word(state) == GAVE_UP:
            return GONE
        complete = load_word(done) == index + 1  # outputs come before that: one more look
        looks += 1
        if looks > PROMPT_LOOKS:
            cpu_pause()
