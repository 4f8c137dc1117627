"""Order within requests: a command may leave only when the one before it in its request has left.

In: popped records, each request's in the order of its steps. A request has at most one command in a bucket, its
frontier; the others wait in `pool`, a linked list a request. When a batch is flushed its requests go to `ready`, and
their next commands enter buckets, eligible from then on. Everything is launched on one stream, where what was
submitted later runs later: submitted is as good as finished.

Arrays, so that the compiled consumer shares them with the batcher: pool uint64 [room, WORDS]; links int64 [room], the
next of the same list; chains int64 [requests, 4]; ready int64 [a power of two above requests], a queue; counts int64.
With counts[VIOLATED] nothing waits for anything: the order is broken on purpose, to see whether the check sees it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.buckets import BASE, NO_BUCKET, UNKNOWN_SHAPE, BatcherArrays, put_word
from launchopt.command import W_K_OP_DTYPE, W_SLOT_C_REQUEST, WORDS, Flag
from launchopt.native import compiled
from launchopt.types import Int

POOL_ROOM = 32_768  # commands that wait, 2 MiB; more are left in the ring
# Columns of chains: list of those that wait (or NONE), whether one is held or ready, steps that are not told of yet.
FIRST, LAST, HELD, STEPS = range(4)
# Words of counts; ENDS: step ends in buckets; AWAITED: requests that come at once, of whose step nothing has come yet.
FREE, WAITING, READY_FIRST, READY_STOP, ENDS, VIOLATED, AWAITED = range(7)
COUNT_WORDS = 7
NOT_BEGUN = -2  # in place of LAST: one of the AWAITED
STEP_END = np.uint64(int(Flag.STEP_END) << 48)  # in its word of a record
NONE = -1
REQUEST_SHIFT = np.uint64(32)

OrderArrays = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def order_arrays(
    requests: int,
    room: int = POOL_ROOM,
    violated: bool = False,
    expected: NDArray[np.bool_] | None = None,
    steps: NDArray[np.int64] | None = None,
) -> OrderArrays:
    """pool, links, chains, ready, counts for requests 0 to `requests` - 1.

    expected: which of them come at once. steps: how many each has, of which one comes as soon as the one before it is
    told of; None: nobody knows when.
    """
    pool = np.zeros((room, WORDS), np.uint64)
    links = np.arange(1, room + 1)
    links[-1] = NONE
    chains = np.full((requests, 4), NONE)
    chains[:, HELD] = chains[:, STEPS] = 0
    if steps is not None:
        chains[: len(steps), STEPS] = steps
    ready = np.zeros(1 << requests.bit_length(), np.int64)
    counts = np.zeros(COUNT_WORDS, np.int64)
    counts[VIOLATED] = violated
    if expected is not None:
        chains[: len(expected)][expected, LAST] = NOT_BEGUN
        counts[AWAITED] = np.count_nonzero(expected)
    return pool, links, chains, ready, counts


@compiled
def ends_step(words: NDArray[np.uint64], i: int) -> Int:
    """1 where words[i] is the last command of a step, else 0."""
    return np.int64(words[i, W_K_OP_DTYPE] & STEP_END != np.uint64(0))


@compiled
def _wait(words: NDArray[np.uint64], i: int, request: Int, order: OrderArrays) -> bool:
    """Append words[i] to those of its request that wait; False where there is no room."""
    pool, links, chains, _, counts = order
    place = counts[FREE]
    if place == NONE:
        return False
    counts[FREE] = links[place]
    counts[WAITING] += 1
    for w in range(WORDS):
        pool[place, w] = words[i, w]
    links[place] = NONE
    if chains[request, FIRST] == NONE:
        chains[request, FIRST] = place
    else:
        links[chains[request, LAST]] = place
    chains[request, LAST] = place
    return True


@compiled
def _advance(now_ns: int, batcher: BatcherArrays, order: OrderArrays) -> Int:
    """Next commands of ready requests into buckets, until one is full: that bucket, NO_BUCKET or UNKNOWN_SHAPE."""
    pool, links, chains, ready, counts = order
    mask = len(ready) - 1
    while counts[READY_FIRST] != counts[READY_STOP]:
        request = ready[counts[READY_FIRST] & mask]
        counts[READY_FIRST] += 1
        place = chains[request, FIRST]
        if place == NONE:
            chains[request, HELD] = 0
            continue
        chains[request, FIRST] = links[place]
        links[place] = counts[FREE]
        counts[FREE] = place
        counts[WAITING] -= 1
        counts[ENDS] += ends_step(pool, place)
        bucket = put_word(pool, place, now_ns, batcher)
        if bucket != NO_BUCKET:
            return bucket
    return NO_BUCKET


@compiled
def take_ordered(
    words: NDArray[np.uint64], start: int, now_ns: int, batcher: BatcherArrays, order: OrderArrays
) -> tuple[int, int]:
    """Ready requests first, then records from `start` on, until a bucket is full: (next record, that bucket).

    NO_BUCKET: all were taken, or (next record < len(words)) there is no room left for those that must wait.
    UNKNOWN_SHAPE: that of the next record, or (len(words)) of one that waited.
    """
    chains = order[2]
    bucket = _advance(now_ns, batcher, order)
    if bucket == UNKNOWN_SHAPE:
        return len(words), bucket
    if bucket != NO_BUCKET:
        return start, bucket
    for i in range(start, len(words)):
        request = np.intp(words[i, W_SLOT_C_REQUEST] >> REQUEST_SHIFT)
        if chains[request, LAST] == NOT_BEGUN:
            chains[request, LAST] = NONE
            order[4][AWAITED] -= 1
        if chains[request, HELD] != 0:
            if not _wait(words, i, request, order):
                return i, NO_BUCKET
            continue
        bucket = put_word(words, i, now_ns, batcher)
        if bucket == UNKNOWN_SHAPE:
            return i, bucket
        chains[request, HELD] = 1 - order[4][VIOLATED]
        order[4][ENDS] += ends_step(words, i)
        if bucket != NO_BUCKET:
            return i + 1, bucket
    return len(words), NO_BUCKET


@compiled
def release(bucket: int, count: int, batcher: BatcherArrays, order: OrderArrays) -> None:
    """The first `count` records of a bucket's store were flushed: their requests may go on."""
    buckets, store = batcher[1], batcher[2]
    _, _, _, ready, counts = order
    base, mask = buckets[bucket, BASE], len(ready) - 1
    for i in range(count):
        counts[ENDS] -= ends_step(store, base + i)
        if counts[VIOLATED] == 0:
            ready[counts[READY_STOP] & mask] = np.int64(store[base + i, W_SLOT_C_REQUEST] >> REQUEST_SHIFT)
            counts[READY_STOP] += 1


@compiled
def land_step(request: Int, order: OrderArrays) -> None:
    """It was told of that a request's step is done: its next one, where there is one, comes at once."""
    chains, counts = order[2], order[4]
    chains[request, STEPS] -= 1
    if chains[request, STEPS] > 0:
        chains[request, LAST] = NOT_BEGUN
        counts[AWAITED] += 1


@compiled
def is_stalled(order: OrderArrays) -> Int:
    """Something waits (commands, or whoever issued a step for its end), and all of it for commands in buckets.

    Not before everyone who comes at once is there: who goes ahead alone may stay a layer ahead for good.
    """
    counts = order[4]
    if counts[AWAITED] > 0:
        return False
    return counts[WAITING] + counts[ENDS] > 0 and counts[READY_FIRST] == counts[READY_STOP]
