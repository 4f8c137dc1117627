"""The policy of the step batcher, for compiled loops: which bucket of whole steps is flushed next, and why.

A bucket is flushed when it is full, when its oldest step has waited for the timeout, at the end of the workload, at a
stall, or when no record has come for a while. No function reads a clock: callers pass the time, CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import numpy as np

from launchopt.batching.batch import FlushReason
from launchopt.batching.buckets import NEVER_IDLE
from launchopt.batching.step_buckets import (
    KindCode,
    KindColumn,
    StepArrays,
    StepBuckets,
    StepColumn,
    StepState,
    StepWord,
    copy_at,
    take_steps,
)
from launchopt.command import RecordWord
from launchopt.native import compiled
from launchopt.types import Int, Table, Words


@compiled
def _largest(kinds: Table, counts: Table) -> Int:
    """Return the kind with the fullest bucket, of several the one that was opened first; NONE if all are empty."""
    best = kind = counts[StepWord.OLDEST]
    while kind != KindCode.NONE:
        if kinds[kind, KindColumn.COUNT] > kinds[best, KindColumn.COUNT]:
            best = kind
        kind = kinds[kind, KindColumn.NEWER]
    return best


@compiled
def steps_stalled(counts: Table) -> bool:
    """Return whether steps are held, and no other step can come before some of them are launched."""
    if counts[StepWord.ON_STALL] == 0 or counts[StepWord.HELD] == 0 or counts[StepWord.PARTIAL] > 0:
        return False
    if counts[StepWord.IN_ROUNDS] != 0:
        return bool(counts[StepWord.ROUND_ENDED] != 0)
    return bool(counts[StepWord.HELD] == counts[StepWord.LIVE])


@compiled
def next_kind(words: Words, start: Int, now_ns: Int, is_drained: Int, arrays: StepArrays) -> tuple[int, int, int]:
    """Take records until a bucket must be flushed; return (index of the next record, kind, FlushReason).

    The kind is a KindCode if no bucket must be flushed, or if a record has a fault, as in `take_steps`. `words` is
    empty if the ring has no record. is_drained: no record will come after `words`. arrays: a StepBuckets or its fields.
    """
    batcher = StepBuckets(*arrays)
    kinds, counts = batcher.kinds, batcher.counts
    if counts[StepWord.ALL_LEAVE] != 0:
        if counts[StepWord.HELD] > 0:
            return start, _largest(kinds, counts), FlushReason.stall
        counts[StepWord.ALL_LEAVE] = 0
    if len(words) > 0:
        counts[StepWord.LAST_NS] = now_ns
    start, kind = take_steps(words, start, now_ns, batcher)
    oldest = counts[StepWord.OLDEST]
    if kind != KindCode.NONE or oldest == KindCode.NONE:
        return start, kind, FlushReason.full
    if kinds[oldest, KindColumn.OPENED_NS] + counts[StepWord.TIMEOUT_NS] <= now_ns:
        return start, oldest, FlushReason.deadline
    if is_drained:
        return start, oldest, FlushReason.drain
    if len(words) == 0:
        if steps_stalled(counts):
            counts[StepWord.ALL_LEAVE] = 1
            return start, _largest(kinds, counts), FlushReason.stall
        idle_ns = counts[StepWord.IDLE_NS]
        if idle_ns != NEVER_IDLE and now_ns - counts[StepWord.LAST_NS] >= idle_ns:
            return start, oldest, FlushReason.idle
    return start, KindCode.NONE, FlushReason.full


@compiled
def next_due_ns(far_ns: Int, kinds: Table, counts: Table) -> Int:
    """Return the time at which a bucket is flushed if no record comes; `far_ns` while no step is held."""
    oldest = counts[StepWord.OLDEST]
    if oldest == KindCode.NONE:
        return far_ns
    due_ns = kinds[oldest, KindColumn.OPENED_NS] + counts[StepWord.TIMEOUT_NS]
    if counts[StepWord.IDLE_NS] == NEVER_IDLE:
        return due_ns
    return min(due_ns, counts[StepWord.LAST_NS] + counts[StepWord.IDLE_NS])


@compiled
def _gather(size: Int, rows: Int, batcher: StepBuckets) -> None:
    """Copy the records of the requests in `members` to `out`, row by row."""
    store, out, members, counts = batcher.store, batcher.out, batcher.members, batcher.counts
    for row in range(rows):
        for i in range(size):
            place = members[i] * counts[StepWord.REQUEST_STRIDE] + row * counts[StepWord.ROW_STRIDE]
            copy_at(out, np.uint64(row * size + i), store, place, store[place, RecordWord.ELIGIBLE_NS])


@compiled
def _sort(values: Table, count: Int) -> None:
    """Sort the first `count` values in place, ascending, by shellsort: values are few and mostly in order."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value, j = values[i], i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3


@compiled
def _unlink(bucket: Table, kinds: Table, counts: Table) -> None:
    """Remove a bucket from the list of buckets that hold steps."""
    older, newer = bucket[KindColumn.OLDER], bucket[KindColumn.NEWER]
    if older == KindCode.NONE:
        counts[StepWord.OLDEST] = newer
    else:
        kinds[older, KindColumn.NEWER] = newer
    if newer == KindCode.NONE:
        counts[StepWord.NEWEST] = older
    else:
        kinds[newer, KindColumn.OLDER] = older


@compiled
def let_go(kind: Int, arrays: StepArrays) -> tuple[int, int]:
    """Empty the bucket of a kind that is flushed; return its number of requests, and of records per request.

    The records are in `out` afterwards. They stay in `store` if the batch has a step of every request. arrays: a
    StepBuckets or its fields.
    """
    batcher = StepBuckets(*arrays)
    steps, members, counts = batcher.steps, batcher.members, batcher.counts
    bucket = batcher.kinds[kind]
    size, rows, request = bucket[KindColumn.COUNT], bucket[KindColumn.ROWS], bucket[KindColumn.FIRST]
    for i in range(size):
        members[i] = request
        request = steps[request, StepColumn.NEXT]
    _sort(members, size)
    if size < len(steps):
        _gather(size, rows, batcher)
    for i in range(size):
        steps[members[i], StepColumn.STATE] = StepState.FLYING
    _unlink(bucket, batcher.kinds, counts)
    bucket[KindColumn.COUNT] = 0
    counts[StepWord.HELD] -= size
    return size, rows


@compiled
def stamp_left(size: Int, rows: Int, arrays: StepArrays) -> None:
    """Write to each record of the batch flushed last the time at which its step was complete, if records come early."""
    batcher = StepBuckets(*arrays)
    if batcher.counts[StepWord.EARLY] != 0:
        words = batcher.store if size == len(batcher.steps) else batcher.out
        for row in range(rows):
            for i in range(size):
                complete_ns = batcher.steps[batcher.members[i], StepColumn.COMPLETE_NS]
                words[row * size + i, RecordWord.ELIGIBLE_NS] = np.uint64(complete_ns)


@compiled
def land_step(request: Int, arrays: StepArrays) -> None:
    """Record that the step of a request that was flushed has ended."""
    batcher = StepBuckets(*arrays)
    step = batcher.steps[request]
    step[StepColumn.STATE] = StepState.ARRIVING if step[StepColumn.FILLED] > 0 else StepState.AWAY
    step[StepColumn.LANDED] += 1
    batcher.counts[StepWord.LIVE] -= step[StepColumn.LANDED] == step[StepColumn.TOTAL]
