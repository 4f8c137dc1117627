"""Order within requests: a command is flushed only after the previous command of its request was flushed.

A request has at most one command in a bucket. Its later commands wait in a pool, as one linked list per request. When a
batch is flushed, its requests become ready: their next commands enter buckets and are eligible from then on. All
launches go to one CUDA stream, which runs them in the order of submission. So a command that was submitted counts as
complete.
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

POOL_CAPACITY = 32_768  # commands that can wait in the pool, 2 MiB; further commands stay in the ring
NONE = -1  # in place of a command's index in the pool
NOT_BEGUN = -2  # in RequestColumn.LAST: the request's next step is expected soon, and no record of it has come


class RequestColumn(enum.IntEnum):
    """Columns of `Order.requests`."""

    FIRST = 0  # pool index of the request's first waiting command, or NONE
    LAST = 1  # pool index of its last waiting command, NONE or NOT_BEGUN
    HELD = 2  # 1: a command of the request is in a bucket, or the request is ready
    STEPS = 3  # steps of the request that have not ended


class OrderWord(enum.IntEnum):
    """Words of `Order.counts`."""

    FREE = 0  # first free index of the pool, or NONE
    WAITING = 1  # commands in the pool
    READY_FIRST = 2  # number of the first request in the ready queue
    READY_STOP = 3  # one past the number of the last request in the ready queue
    ENDS = 4  # commands in buckets that end a step
    VIOLATED = 5  # 1: no command waits for another, to test that verification notices it
    AWAITED = 6  # requests whose next step is expected soon and has not begun


class Order(NamedTuple):
    """The arrays that keep order."""

    pool: Words  # [capacity, WORDS]: records of the waiting commands
    links: Table  # [capacity]: pool index of the next command in the same list
    requests: Table  # [requests, RequestColumn]
    ready: Table  # [a power of two above requests]: queue of ready requests
    counts: Table  # [OrderWord]


OrderArrays = tuple[Words, Table, Table, Table, Table]  # the fields of Order, as Python passes them


def order_arrays(
    requests: int,
    capacity: int = POOL_CAPACITY,
    violated: bool = False,
    expected: NDArray[np.bool_] | None = None,
    steps: NDArray[np.int64] | None = None,
) -> OrderArrays:
    """Return the fields of an Order for requests 0 to `requests` - 1, before their first command.

    capacity: commands that the pool can hold. expected: [requests], whether a request is due at the start of the run.
    steps: [requests], the steps of each request, if its next step is issued as soon as the previous one has ended.
    None: a scheduler decides when it is issued.
    """
    pool = np.zeros((capacity, WORDS), np.uint64)
    links = np.arange(1, capacity + 1)
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
    """Append words[i] to the waiting commands of its request; return False if the pool is full."""
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
    """Put the next commands of ready requests into buckets until a bucket is full; return that bucket.

    Return NO_BUCKET if no bucket is full and no request is ready any more, UNKNOWN_SHAPE if a shape has no bucket.
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
    """Take commands of ready requests, then records from words[start] on, until a bucket is full.

    Return (index of the next record, that bucket). The bucket is NO_BUCKET if all records were taken, or if the pool is
    full (then the index is below len(words)). It is UNKNOWN_SHAPE if the shape of the next record has no bucket, or
    that of a command in the pool (then the index is len(words)).
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
    """Make the requests of a bucket's first `count` records ready: these records were flushed."""
    store, ready, counts = batcher.store, order.ready, order.counts
    base, mask = batcher.buckets[bucket, BucketColumn.BASE], len(ready) - 1
    for i in range(base, base + count):
        counts[OrderWord.ENDS] -= ends_step(store, i)
        if counts[OrderWord.VIOLATED] == 0:
            ready[counts[OrderWord.READY_STOP] & mask] = request_of(store, i)
            counts[OrderWord.READY_STOP] += 1


@compiled
def land_step(request: Int, order: Order) -> None:
    """Record that a step of a request has ended. If the request has another step, it is expected soon."""
    state = order.requests[request]
    state[RequestColumn.STEPS] -= 1
    if state[RequestColumn.STEPS] > 0:
        state[RequestColumn.LAST] = NOT_BEGUN
        order.counts[OrderWord.AWAITED] += 1


@compiled
def is_stalled(order: Order) -> bool:
    """Return whether commands wait in the pool, or requests wait for the end of a step, and all wait for buckets.

    There is no stall while an expected step has not begun. Otherwise a request could run ahead alone, and stay one
    layer ahead of the others for the rest of the run.
    """
    counts = order.counts
    if counts[OrderWord.AWAITED] > 0:
        return False
    waits = counts[OrderWord.WAITING] + counts[OrderWord.ENDS] > 0
    return bool(waits and counts[OrderWord.READY_FIRST] == counts[OrderWord.READY_STOP])
