"""Buckets of whole steps as arrays, for compiled loops: gather a step's records, find its bucket, empty the bucket.

`next_kind` says which bucket leaves next, and why. Pure: the caller says what time it is, CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.batching.buckets import NEVER_IDLE, FlushReason
from launchopt.command import W_ELIGIBLE
from launchopt.native import compiled
from launchopt.records import ends_round, ends_step, request_of, shape_key_of
from launchopt.types import Int, Table, Words

NO_KIND, UNKNOWN_REQUEST, OUT_OF_TURN, TOO_LONG, TOO_MANY_KINDS = range(-1, -6, -1)  # in place of a kind


class StepState(enum.IntEnum):
    """Where a request's step stands."""

    AWAY = 0  # no record of it is here
    ARRIVING = 1  # some records are here
    HELD = 2  # all are here: it is in the bucket of its kind
    FLYING = 3  # it left, and the request has not been notified of its end (records of the next step may be here)


class StepColumn(enum.IntEnum):
    """Columns of `StepBuckets.steps`, a row a request."""

    TOTAL = 0  # steps that the request has
    LANDED = 1  # steps whose end the request has been notified of
    STATE = 2  # StepState
    FILLED = 3  # records here of the step that is arriving
    NEXT = 4  # next request of the same bucket
    EXPECTED = 5  # whether the request counts as live before its first record comes
    COMPLETE_NS = 6  # when the last record of its step came, where records come early


class KindColumn(enum.IntEnum):
    """Columns of `StepBuckets.kinds`, a row a kind of step: its bucket. Buckets that hold steps form a list by age."""

    COUNT = 0  # steps held
    ROWS = 1  # records of a step
    OPENED_NS = 2  # when the oldest step was complete
    FIRST = 3  # first request held
    LAST = 4  # last request held
    OLDER = 5  # kind whose bucket was opened before, or NO_KIND
    NEWER = 6  # kind whose bucket was opened next, or NO_KIND


class KindKey(enum.IntEnum):
    """Columns of `StepBuckets.table`: what tells a kind from others, and the kind + 1 (0: an empty place)."""

    MN = 0  # key words of the step's first record
    KEY = 1
    ROWS = 2
    KIND = 3


class StepWord(enum.IntEnum):
    """Words of `StepBuckets.counts`. Those from LIMIT on never change."""

    HELD = 0  # steps in buckets
    LIVE = 1  # requests that have begun, or are expected, and have steps whose end they were not notified of
    PARTIAL = 2  # requests of whose step some records are here, and not the last
    KINDS = 3  # kinds known so far
    OLDEST = 4  # kind whose bucket was opened first, or NO_KIND
    NEWEST = 5  # kind whose bucket was opened last, or NO_KIND
    ALL_LEAVE = 6  # whether a stall goes on: it does until no step is held
    ROUND_ENDED = 7  # whether the last record of a round has come
    LAST_NS = 8  # when the last records came
    LIMIT = 9  # steps that fill a bucket
    TIMEOUT_NS = 10
    IDLE_NS = 11
    ON_STALL = 12
    IN_ROUNDS = 13  # whether requests go on in rounds (a continuous scheduler)
    MOST_ROWS = 14  # records of the longest step
    REQUEST_STRIDE = 15  # rows of `store` from a request to the next
    ROW_STRIDE = 16  # rows of `store` from a record of a step to the next
    EARLY = 17  # whether all records of a step but the last may come as soon as the step before it has left


class StepBuckets(NamedTuple):
    """A step batcher's arrays."""

    store: Words  # [requests x rows, WORDS]: the records of each request's step
    steps: Table  # [requests, StepColumn]
    table: Words  # [a power of two, KindKey]: hash table of kinds
    kinds: Table  # [kinds, KindColumn]
    out: Words  # [limit x rows, WORDS]: the batch that left last, unless it is all of `store`
    members: Table  # [limit]: requests of the batch that left last, ascending
    counts: Table  # [StepWord]


StepArrays = tuple[Words, Table, Words, Table, Words, Table, Table]  # the fields of StepBuckets, as Python passes them


@compiled
def _kind_of(first: Words, place: Int, rows: Int, batcher: StepBuckets) -> Int:
    """Return the kind of a step of `rows` records, of which first[place] is the first; a new kind if need be.

    TOO_MANY_KINDS: there is no room for a new kind.
    """
    table, kinds, counts = batcher.table, batcher.kinds, batcher.counts
    mn, key = shape_key_of(first, place)
    mask, length = np.uint64(len(table) - 1), np.uint64(rows)
    mixed = (mn ^ (key * np.uint64(0x9E3779B97F4A7C15)) ^ (length << np.uint64(17))) * np.uint64(0xBF58476D1CE4E5B9)
    at = (mixed ^ (mixed >> np.uint64(29))) & mask
    while True:
        entry = table[np.intp(at)]
        if entry[KindKey.KIND] == np.uint64(0):
            break
        if entry[KindKey.MN] == mn and entry[KindKey.KEY] == key and entry[KindKey.ROWS] == length:
            return np.intp(entry[KindKey.KIND]) - 1
        at = (at + np.uint64(1)) & mask
    if counts[StepWord.KINDS] == len(kinds):
        return TOO_MANY_KINDS
    kind = counts[StepWord.KINDS]
    counts[StepWord.KINDS] += 1
    entry[KindKey.MN], entry[KindKey.KEY] = mn, key
    entry[KindKey.ROWS], entry[KindKey.KIND] = length, np.uint64(kind + 1)
    kinds[kind, KindColumn.ROWS] = rows
    return kind


@compiled
def _hold(request: Int, rows: Int, before: Int, now_ns: Int, batcher: StepBuckets) -> Int:
    """Put a request's complete step into its bucket; return that, or TOO_MANY_KINDS.

    before: how many of its `rows` records were taken at an earlier time.
    """
    store, steps, kinds, counts = batcher.store, batcher.steps, batcher.kinds, batcher.counts
    place = request * counts[StepWord.REQUEST_STRIDE]
    if counts[StepWord.EARLY] != 0:
        steps[request, StepColumn.COMPLETE_NS] = now_ns  # written to its records when it has left: that can wait
    else:
        for row in range(before):
            store[place + row * counts[StepWord.ROW_STRIDE], W_ELIGIBLE] = np.uint64(now_ns)
    kind = _kind_of(store, place, rows, batcher)
    if kind == TOO_MANY_KINDS:
        return kind
    bucket, step, newest = kinds[kind], steps[request], counts[StepWord.NEWEST]
    step[StepColumn.STATE], step[StepColumn.FILLED] = StepState.HELD, 0
    if bucket[KindColumn.COUNT] == 0:
        bucket[KindColumn.OPENED_NS], bucket[KindColumn.FIRST] = now_ns, request
        bucket[KindColumn.OLDER], bucket[KindColumn.NEWER] = newest, NO_KIND
        if newest == NO_KIND:
            counts[StepWord.OLDEST] = kind
        else:
            kinds[newest, KindColumn.NEWER] = kind
        counts[StepWord.NEWEST] = kind
    else:
        steps[bucket[KindColumn.LAST], StepColumn.NEXT] = request
    bucket[KindColumn.LAST] = request
    bucket[KindColumn.COUNT] += 1
    counts[StepWord.PARTIAL] -= 1
    counts[StepWord.HELD] += 1
    return kind


@compiled
def _copy(to: Words, at: np.uint64, words: Words, i: Int, eligible: np.uint64) -> None:
    """Copy words[i] to to[at], eligible since `eligible`.

    All words are read before any is written, so that the compiler moves the record in one piece.
    """
    a, b, c, d = words[i, 0], words[i, 1], words[i, 2], words[i, 3]
    e, f, g = words[i, 4], words[i, 5], words[i, 6]
    to[at, 0], to[at, 1], to[at, 2], to[at, 3] = a, b, c, d
    to[at, 4], to[at, 5], to[at, 6], to[at, W_ELIGIBLE] = e, f, g, eligible


@compiled
def _begin(request: Int, batcher: StepBuckets) -> bool:
    """Begin a request's next step, whose first record has come, early or not; return False where it may not come."""
    step, counts = batcher.steps[request], batcher.counts
    goes_on = step[StepColumn.LANDED] + 1 < step[StepColumn.TOTAL]
    if step[StepColumn.STATE] == StepState.FLYING and counts[StepWord.EARLY] != 0 and goes_on:
        counts[StepWord.PARTIAL] += 1
        return True
    if step[StepColumn.STATE] != StepState.AWAY or step[StepColumn.LANDED] == step[StepColumn.TOTAL]:
        return False
    step[StepColumn.STATE] = StepState.ARRIVING
    counts[StepWord.LIVE] += step[StepColumn.LANDED] == 0 and step[StepColumn.EXPECTED] == 0
    counts[StepWord.PARTIAL] += 1
    counts[StepWord.ROUND_ENDED] = 0
    return True


@compiled
def _take_run(words: Words, start: Int, request: Int, row: Int, now_ns: Int, batcher: StepBuckets) -> Int:
    """Take records from `start` on while they are of the same step; return the first that is not.

    row: how many records of the step are here already.
    """
    store, counts = batcher.store, batcher.counts
    stop = min(len(words), start + counts[StepWord.MOST_ROWS] - row)
    place = np.uint64(request * counts[StepWord.REQUEST_STRIDE] + row * counts[StepWord.ROW_STRIDE])
    for i in range(start, stop):
        if request_of(words, i) != request:
            return i
        _copy(store, place, words, i, np.uint64(now_ns))
        if ends_step(words, i):
            return i + 1
        place += np.uint64(counts[StepWord.ROW_STRIDE])
    return stop


@compiled
def take_steps(words: Words, start: Int, now_ns: Int, batcher: StepBuckets) -> tuple[int, int]:
    """Take records from `start` on until a bucket is full: return (next record, that bucket).

    NO_KIND: all were taken. UNKNOWN_REQUEST, OUT_OF_TURN, TOO_LONG, TOO_MANY_KINDS: what is wrong with the next record.
    """
    steps, kinds, counts = batcher.steps, batcher.kinds, batcher.counts
    while start < len(words):
        request = request_of(words, start)
        if request >= len(steps):
            return start, UNKNOWN_REQUEST
        row = steps[request, StepColumn.FILLED]
        if row == 0 and not _begin(request, batcher):
            return start, OUT_OF_TURN
        if row == counts[StepWord.MOST_ROWS]:
            return start, TOO_LONG
        stop = _take_run(words, start, request, row, now_ns, batcher)
        rows = row + stop - start
        steps[request, StepColumn.FILLED], start = rows, stop
        if ends_step(words, stop - 1):
            if steps[request, StepColumn.STATE] == StepState.FLYING:
                return stop - 1, OUT_OF_TURN  # nobody could know by then that the step before is done
            counts[StepWord.ROUND_ENDED] |= ends_round(words, stop - 1)
            kind = _hold(request, rows, row, now_ns, batcher)
            if kind == TOO_MANY_KINDS:
                return stop - 1, kind
            if kinds[kind, KindColumn.COUNT] == counts[StepWord.LIMIT]:
                return stop, kind
    return len(words), NO_KIND


@compiled
def _largest(kinds: Table, counts: Table) -> Int:
    """Return the bucket that holds most, of several the one opened first; NO_KIND where all are empty."""
    best = kind = counts[StepWord.OLDEST]
    while kind != NO_KIND:
        if kinds[kind, KindColumn.COUNT] > kinds[best, KindColumn.COUNT]:
            best = kind
        kind = kinds[kind, KindColumn.NEWER]
    return best


@compiled
def steps_stalled(counts: Table) -> bool:
    """Return whether steps are held, and no other step can come before some of them have left."""
    if counts[StepWord.ON_STALL] == 0 or counts[StepWord.HELD] == 0 or counts[StepWord.PARTIAL] > 0:
        return False
    if counts[StepWord.IN_ROUNDS] != 0:
        return bool(counts[StepWord.ROUND_ENDED] != 0)
    return bool(counts[StepWord.HELD] == counts[StepWord.LIVE])


@compiled
def next_kind(words: Words, start: Int, now_ns: Int, is_drained: Int, arrays: StepArrays) -> tuple[int, int, int]:
    """Take records until a bucket is to leave: return (next record, that bucket or what `take_steps` says, why).

    `words` is empty when no record is at hand. is_drained: none will come after these. arrays: a StepBuckets or its
    fields. The reason is a FlushReason.
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
    if kind != NO_KIND or oldest == NO_KIND:
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
    return start, NO_KIND, FlushReason.full


@compiled
def next_due_ns(far_ns: Int, kinds: Table, counts: Table) -> Int:
    """Return when a bucket leaves although nothing arrives; `far_ns` while no step is held."""
    oldest = counts[StepWord.OLDEST]
    if oldest == NO_KIND:
        return far_ns
    due_ns = kinds[oldest, KindColumn.OPENED_NS] + counts[StepWord.TIMEOUT_NS]
    if counts[StepWord.IDLE_NS] == NEVER_IDLE:
        return due_ns
    return min(due_ns, counts[StepWord.LAST_NS] + counts[StepWord.IDLE_NS])


@compiled
def _gather(size: Int, rows: Int, batcher: StepBuckets) -> None:
    """Copy the records of `members` to `out`, row by row."""
    store, out, members, counts = batcher.store, batcher.out, batcher.members, batcher.counts
    for row in range(rows):
        for i in range(size):
            place = members[i] * counts[StepWord.REQUEST_STRIDE] + row * counts[StepWord.ROW_STRIDE]
            _copy(out, np.uint64(row * size + i), store, place, store[place, W_ELIGIBLE])


@compiled
def _sort(values: Table, count: Int) -> None:
    """Sort the first `count` values in place, ascending: a shellsort, fast for few values that are mostly in order."""
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
    """Take a bucket off the list of buckets that hold steps."""
    older, newer = bucket[KindColumn.OLDER], bucket[KindColumn.NEWER]
    if older == NO_KIND:
        counts[StepWord.OLDEST] = newer
    else:
        kinds[older, KindColumn.NEWER] = newer
    if newer == NO_KIND:
        counts[StepWord.NEWEST] = older
    else:
        kinds[newer, KindColumn.OLDER] = older


@compiled
def let_go(kind: Int, arrays: StepArrays) -> tuple[int, int]:
    """Empty a bucket that leaves; return how many requests and rows it held. arrays: a StepBuckets or its fields.

    Its records are in `out` afterwards; they stay in `store` where the batch holds every request there is.
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
    """Write when its step was complete to each record of the batch that left last, where records come early."""
    batcher = StepBuckets(*arrays)
    if batcher.counts[StepWord.EARLY] != 0:
        words = batcher.store if size == len(batcher.steps) else batcher.out
        for row in range(rows):
            for i in range(size):
                complete_ns = batcher.steps[batcher.members[i], StepColumn.COMPLETE_NS]
                words[row * size + i, W_ELIGIBLE] = np.uint64(complete_ns)


@compiled
def land_step(request: Int, arrays: StepArrays) -> None:
    """Note that a request has been notified of the end of the step which left."""
    batcher = StepBuckets(*arrays)
    step = batcher.steps[request]
    step[StepColumn.STATE] = StepState.ARRIVING if step[StepColumn.FILLED] > 0 else StepState.AWAY
    step[StepColumn.LANDED] += 1
    batcher.counts[StepWord.LIVE] -= step[StepColumn.LANDED] == step[StepColumn.TOTAL]
