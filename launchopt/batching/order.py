"""Order within requests: a command may leave only when the one before it in its request has left.

A request has at most one command in a bucket. Its later commands wait in a pool, in a linked list a request. When a
batch leaves, its requests become ready: their next commands enter buckets and are eligible from then on. All launches
go to one stream, which runs them in the order of submission. So a command that was submitted counts as finished.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.buckets import NO_BUCKET, UNKNOWN_SHAPE, BucketColumn, Buckets, put_word
from launchopt.command import WORDS
from launchopt.native import compiled
from launchopt.records import ends_step, request_of
from launchopt.types import Int, Table, Words

POOL_ROOM = 32_768  # commands that wait, 2 MiB; more are left in the ring
NONE = -1  # in place of a command of the pool
NOT_BEGUN = -2  # in place of RequestColumn.LAST: the request's next step comes at once, and none of it is here yet


class RequestColumn(enum.IntEnum):
    """Columns of `Order.requests`."""

    FIRST = 0  # the first of the request's commands that wait, or NONE
    LAST = 1  # the last of them, NONE or NOT_BEGUN
    HELD = 2  # whether a command of the request is in a bucket, or the request is ready
    STEPS = 3  # steps whose end the request has not been notified of


class OrderWord(enum.IntEnum):
    """Words of `Order.counts`."""

    FREE = 0  # first free command of the pool, or NONE
    WAITING = 1  # commands that wait
    READY_FIRST = 2  # ready requests are those from here
    READY_STOP = 3  # to here of the queue
    ENDS = 4  # ends of steps in buckets
    VIOLATED = 5  # not 0: no command waits for another, to see whether the check notices
    AWAITED = 6  # requests whose next step comes at once and has not begun


class Order(NamedTuple):
    """The arrays that keep order."""

    pool: Words  # [room, WORDS]: the commands that wait
    links: Table  # [room]: the next command of the same list
    requests: Table  # [requests, RequestColumn]
    ready: Table  # [a power of two above requests]: queue of ready requests
    counts: Table  # [OrderWord]


OrderArrays = tuple[Words, Table, Table, Table, Table]  # the fields of Order, as Python passes them


def order_arrays(
    requests: int,
    room: int = POOL_ROOM,
    violated: bool = False,
    expected: NDArray[np.bool_] | None = None,
    steps: NDArray[np.int64] | None = None,
) -> OrderArrays:
    """Return the fields of an Order for requests 0 to `requests` - 1, of which nothing is here yet.

    expected: which requests come at once, [requests]. steps: how many steps each request has, [requests], where a step
    comes as soon as the request has been notified of the one before; None: nobody knows when it comes.
    """
    pool = np.zeros((room, WORDS), np.uint64)
    links = np.arange(1, room + 1)
    links[-1] = NONE
    table = np.full((requests, len(RequestColumn)), NONE)
    table[:, RequestColumn.HELD] = table[:, RequestColumn.STEPS] = 0
    if steps is not None:
        table[: len(steps), RequestColumn.STEPS] = steps
    ready = np.zeros(1 << requests.bit_length(), np.int64)
    counts = np.zeros(len(OrderWord), np.int64)
    counts[OrderWord.VIOLATED] = violated
    if expected is not None:
        table[: len(expected)][expected, RequestColumn.LAST] = NOT_BEGUN
        counts[OrderWord.AWAITED] = np.count_nonzero(expected)
    return pool, links, table, ready, counts


@compiled
def _wait(words: Words, i: Int, request: Int, order: Order) -> bool:
    """Append words[i] to the commands of its request that wait; return False where the pool has no room."""
    links, state, counts = order.links, order.requests[request], order.counts
    place = counts[OrderWord.FREE]
    if place == NONE:
        return False
    counts[OrderWord.FREE] = links[place]
    counts[OrderWord.WAITING] += 1
    for w in range(WORDS):
        order.pool[place, w] = words[i, w]
    links[place] = NONE
    if state[RequestColumn.FIRST] == NONE:
        state[RequestColumn.FIRST] = place
    else:
        links[state[RequestColumn.LAST]] = place
    state[RequestColumn.LAST] = place
    return True


@compiled
def _advance(now_ns: Int, batcher: Buckets, order: Order) -> Int:
    """Put the next commands of ready requests into buckets until one is full.

    Return that bucket; NO_BUCKET: none is full, and no request is ready; UNKNOWN_SHAPE.
    """
    links, counts, mask = order.links, order.counts, len(order.ready) - 1
    while counts[OrderWord.READY_FIRST] != counts[OrderWord.READY_STOP]:
        state = order.requests[order.ready[counts[OrderWord.READY_FIRST] & mask]]
        counts[OrderWord.READY_FIRST] += 1
        place = state[RequestColumn.FIRST]
        if place == NONE:
            state[RequestColumn.HELD] = 0
            continue
        state[RequestColumn.FIRST] = links[place]
        links[place] = counts[OrderWord.FREE]
        counts[OrderWord.FREE] = place
        counts[OrderWord.WAITING] -= 1
        counts[OrderWord.ENDS] += ends_step(order.pool, place)
        bucket = put_word(order.pool, place, now_ns, batcher)
        if bucket != NO_BUCKET:
            return bucket
    return NO_BUCKET


@compiled
def take_ordered(words: Words, start: Int, now_ns: Int, batcher: Buckets, order: Order) -> tuple[int, int]:
    """Take commands of ready requests, then records from `start` on, until a bucket is full.

    Return (next record, that bucket). NO_BUCKET: all records were taken, or (next record < len(words)) the pool has no
    room for those that must wait. UNKNOWN_SHAPE: that of the next record, or (len(words)) of one that waited.
    """
    counts = order.counts
    bucket = _advance(now_ns, batcher, order)
    if bucket == UNKNOWN_SHAPE:
        return len(words), bucket
    if bucket != NO_BUCKET:
        return start, bucket
    for i in range(start, len(words)):
        request = request_of(words, i)
        state = order.requests[request]
        if state[RequestColumn.LAST] == NOT_BEGUN:
            state[RequestColumn.LAST] = NONE
            counts[OrderWord.AWAITED] -= 1
        if state[RequestColumn.HELD] != 0:
            if not _wait(words, i, request, order):
                return i, NO_BUCKET
            continue
        bucket = put_word(words, i, now_ns, batcher)
        if bucket == UNKNOWN_SHAPE:
            return i, bucket
        state[RequestColumn.HELD] = 1 - counts[OrderWord.VIOLATED]
        counts[OrderWord.ENDS] += ends_step(words, i)
        if bucket != NO_BUCKET:
            return i + 1, bucket
    return len(words), NO_BUCKET


@compiled
def release(bucket: Int, count: Int, batcher: Buckets, order: Order) -> None:
    """Make ready the requests of the first `count` records of a bucket, which have left."""
    store, ready, counts = batcher.store, order.ready, order.counts
    base, mask = batcher.buckets[bucket, BucketColumn.BASE], len(ready) - 1
    for i in range(base, base + count):
        counts[OrderWord.ENDS] -= ends_step(store, i)
        if counts[OrderWord.VIOLATED] == 0:
            ready[counts[OrderWord.READY_STOP] & mask] = request_of(store, i)
            counts[OrderWord.READY_STOP] += 1


@compiled
def land_step(request: Int, order: Order) -> None:
    """Note that a request has been notified of the end of a step: its next step, if there is one, comes at once."""
    state = order.requests[request]
    state[RequestColumn.STEPS] -= 1
    if state[RequestColumn.STEPS] > 0:
        state[RequestColumn.LAST] = NOT_BEGUN
        order.counts[OrderWord.AWAITED] += 1


@compiled
def is_stalled(order: Order) -> bool:
    """Return whether something waits, and all of it for commands in buckets.

    What waits are commands, and requests that wait for the end of a step. There is no stall before every request that
    comes at once is here: a request that goes ahead alone may stay a layer ahead for good.
    """
    counts = order.counts
    if counts[OrderWord.AWAITED] > 0:
        return False
    waits = counts[OrderWord.WAITING] + counts[OrderWord.ENDS] > 0
    return bool(waits and counts[OrderWord.READY_FIRST] == counts[OrderWord.READY_STOP])
