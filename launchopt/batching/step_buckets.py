"""Buckets of whole steps as arrays, for compiled loops: gather the records of each step, and find its bucket.

A kind of step is a set of steps with the same rows. Each kind has one bucket. Steps of a request that are issued
together (`Flag.GOES_ON`) are one long step here. `step_policy` says which bucket is flushed next. No function reads a
clock: callers pass the time, CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.command import RecordWord
from launchopt.native import compiled
from launchopt.records import ends_round, ends_steps, request_of, shape_key_of
from launchopt.types import Int, Table, Words


class KindCode(enum.IntEnum):
    """Values that functions return in place of the number of a kind. Those below NONE name a fault of a record."""

    NONE = -1  # no kind: no bucket is full, or the list of buckets ends here
    UNKNOWN_REQUEST = -2
    OUT_OF_TURN = -3  # the record belongs to a step that may not begin or end yet
    TOO_LONG = -4  # the step has more records than the longest step
    TOO_MANY_KINDS = -5  # `StepBuckets.kinds` has no space for another kind


class StepState(enum.IntEnum):
    """States of a request's step."""

    AWAY = 0  # the batcher has no record of the step
    ARRIVING = 1  # the batcher has some of its records
    HELD = 2  # the batcher has all records: the step is in the bucket of its kind
    # The step was flushed, and the batcher does not know of its end. The batcher may have records of the next step.
    FLYING = 3


class StepColumn(enum.IntEnum):
    """Columns of `StepBuckets.steps`, one row per request."""

    TOTAL = 0  # steps that the request has
    LANDED = 1  # steps of the request that have ended, as far as the batcher knows
    STATE = 2  # StepState
    FILLED = 3  # records that the batcher has of the arriving step
    NEXT = 4  # next request in the same bucket
    EXPECTED = 5  # whether the request counts as live before its first record comes
    COMPLETE_NS = 6  # arrival of the step's last record; used only if records come early


class KindColumn(enum.IntEnum):
    """Columns of `StepBuckets.kinds`, one row per kind of step: its bucket.

    Buckets that hold steps form a doubly linked list, from the one that was opened first to the one opened last.
    """

    COUNT = 0  # steps held
    ROWS = 1  # records of a step
    OPENED_NS = 2  # time at which the bucket's oldest step was complete
    FIRST = 3  # request of the oldest step in the bucket
    LAST = 4  # request of the newest step in the bucket
    OLDER = 5  # kind of the previous bucket in the list, or KindCode.NONE
    NEWER = 6  # kind of the next bucket in the list, or KindCode.NONE


class KindKey(enum.IntEnum):
    """Columns of `StepBuckets.table`: the key of a kind, and its number."""

    MN = 0  # first key word of the step's first record
    KEY = 1  # second key word of the step's first record
    ROWS = 2  # records of the step
    KIND = 3  # number of the kind, plus 1; 0: the entry is empty


class StepWord(enum.IntEnum):
    """Words of `StepBuckets.counts`. The words from LIMIT on never change."""

    HELD = 0  # steps in buckets
    LIVE = 1  # requests that have begun or are expected, and have steps that have not ended
    PARTIAL = 2  # requests whose arriving step lacks its last record
    KINDS = 3  # kinds found so far
    OLDEST = 4  # kind whose bucket was opened first, or KindCode.NONE
    NEWEST = 5  # kind whose bucket was opened last, or KindCode.NONE
    ALL_LEAVE = 6  # 1: a stall flushes every bucket, until no step is held
    ROUND_ENDED = 7  # 1: the last record of a round has come
    LAST_NS = 8  # time at which the last records came
    LIMIT = 9  # steps that fill a bucket
    TIMEOUT_NS = 10  # a bucket is flushed this long after its oldest step was complete
    IDLE_NS = 11  # a bucket is flushed this long after the last record came; NEVER_IDLE: no such limit
    ON_STALL = 12  # 1: buckets are flushed at a stall
    IN_ROUNDS = 13  # 1: a continuous scheduler issues steps in rounds
    MOST_ROWS = 14  # records of the longest step
    REQUEST_STRIDE = 15  # rows of `store` from a request to the next
    ROW_STRIDE = 16  # rows of `store` from a record of a step to the next
    EARLY = 17  # 1: all records of a step but the last may come once the request's previous step was flushed


class StepBuckets(NamedTuple):
    """A step batcher's arrays."""

    store: Words  # [requests x rows, WORDS]: the records of each request's step
    steps: Table  # [requests, StepColumn]
    table: Words  # [a power of two, KindKey]: hash table of kinds
    kinds: Table  # [kinds, KindColumn]
    out: Words  # [limit x rows, WORDS]: the records of the batch flushed last, unless it is all of `store`
    members: Table  # [limit]: requests of the batch flushed last, ascending
    counts: Table  # [StepWord]


StepArrays = tuple[Words, Table, Words, Table, Words, Table, Table]  # the fields of StepBuckets, as Python passes them


@compiled
def _kind_of(first: Words, place: Int, rows: Int, batcher: StepBuckets) -> Int:
    """Return the kind of the step of `rows` records that begins with first[place]; make a new kind if there is none.

    Return TOO_MANY_KINDS if there is no space for a new kind.
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
        return KindCode.TOO_MANY_KINDS
    kind = counts[StepWord.KINDS]
    counts[StepWord.KINDS] += 1
    entry[KindKey.MN], entry[KindKey.KEY] = mn, key
    entry[KindKey.ROWS], entry[KindKey.KIND] = length, np.uint64(kind + 1)
    kinds[kind, KindColumn.ROWS] = rows
    return kind


@compiled
def _hold(request: Int, rows: Int, before: Int, now_ns: Int, batcher: StepBuckets) -> Int:
    """Put a request's complete step into the bucket of its kind; return the kind, or TOO_MANY_KINDS.

    before: number of the step's `rows` records that came before `now_ns`.
    """
    store, steps, kinds, counts = batcher.store, batcher.steps, batcher.kinds, batcher.counts
    place = request * counts[StepWord.REQUEST_STRIDE]
    if counts[StepWord.EARLY] != 0:
        steps[request, StepColumn.COMPLETE_NS] = now_ns  # `stamp_left` copies it to the records after the flush
    else:
        for row in range(before):
            store[place + row * counts[StepWord.ROW_STRIDE], RecordWord.ELIGIBLE_NS] = np.uint64(now_ns)
    kind = _kind_of(store, place, rows, batcher)
    if kind == KindCode.TOO_MANY_KINDS:
        return kind
    bucket, step, newest = kinds[kind], steps[request], counts[StepWord.NEWEST]
    step[StepColumn.STATE], step[StepColumn.FILLED] = StepState.HELD, 0
    if bucket[KindColumn.COUNT] == 0:
        bucket[KindColumn.OPENED_NS], bucket[KindColumn.FIRST] = now_ns, request
        bucket[KindColumn.OLDER], bucket[KindColumn.NEWER] = newest, KindCode.NONE
        if newest == KindCode.NONE:
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
def copy_at(to: Words, at: np.uint64, words: Words, i: Int, eligible: np.uint64) -> None:
    """Copy words[i] to to[at], and write `eligible` as the time at which the command became eligible, ns.

    All words are read before any is written, so that the compiler can move the record with wide loads and stores.
    """
    a, b, c, d = words[i, 0], words[i, 1], words[i, 2], words[i, 3]
    e, f, g = words[i, 4], words[i, 5], words[i, 6]
    to[at, 0], to[at, 1], to[at, 2], to[at, 3] = a, b, c, d
    to[at, 4], to[at, 5], to[at, 6], to[at, RecordWord.ELIGIBLE_NS] = e, f, g, eligible


@compiled
def _begin(request: Int, batcher: StepBuckets) -> bool:
    """Begin a request's next step, whose first record has come; return False if the step may not begin yet."""
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
    """Copy the records from words[start] on that belong to one step to `store`; return the index of the first other.

    row: number of the step's records that the batcher already has.
    """
    store, counts = batcher.store, batcher.counts
    stop = min(len(words), start + counts[StepWord.MOST_ROWS] - row)
    place = np.uint64(request * counts[StepWord.REQUEST_STRIDE] + row * counts[StepWord.ROW_STRIDE])
    for i in range(start, stop):
        if request_of(words, i) != request:
            return i
        copy_at(store, place, words, i, np.uint64(now_ns))
        if ends_steps(words, i):
            return i + 1
        place += np.uint64(counts[StepWord.ROW_STRIDE])
    return stop


@compiled
def take_steps(words: Words, start: Int, now_ns: Int, batcher: StepBuckets) -> tuple[int, int]:
    """Take records from words[start] on until a bucket is full; return (index of the next record, kind of that bucket).

    The kind is KindCode.NONE if all records were taken, and another KindCode if the next record has a fault.
    """
    steps, kinds, counts = batcher.steps, batcher.kinds, batcher.counts
    while start < len(words):
        request = request_of(words, start)
        if request >= len(steps):
            return start, KindCode.UNKNOWN_REQUEST
        row = steps[request, StepColumn.FILLED]
        if row == 0 and not _begin(request, batcher):
            return start, KindCode.OUT_OF_TURN
        if row == counts[StepWord.MOST_ROWS]:
            return start, KindCode.TOO_LONG
        stop = _take_run(words, start, request, row, now_ns, batcher)
        rows = row + stop - start
        steps[request, StepColumn.FILLED], start = rows, stop
        if ends_steps(words, stop - 1):
            if steps[request, StepColumn.STATE] == StepState.FLYING:
                return stop - 1, KindCode.OUT_OF_TURN  # the previous step has not ended
            counts[StepWord.ROUND_ENDED] |= ends_round(words, stop - 1)
            kind = _hold(request, rows, row, now_ns, batcher)
            if kind == KindCode.TOO_MANY_KINDS:
                return stop - 1, kind
            if kinds[kind, KindColumn.COUNT] == counts[StepWord.LIMIT]:
                return stop, kind
    return len(words), KindCode.NONE
