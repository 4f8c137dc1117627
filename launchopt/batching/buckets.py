"""Buckets of commands, one per shape, as arrays for compiled loops: find a record's bucket, fill it, empty it.

`next_bucket` (launchopt/batching/policy.py) says which bucket is flushed next. Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.command import RecordWord
from launchopt.native import compiled
from launchopt.records import copy_record, has_flag, shape_key_of
from launchopt.types import Int, ShapeIndices, Table, Words

NO_BUCKET, UNKNOWN_SHAPE = -1, -2  # in place of a bucket's number


class BucketColumn(enum.IntEnum):
    """Columns of `Buckets.buckets`."""

    COUNT = 0  # commands held
    LIMIT = 1  # commands that fill the bucket
    BASE = 2  # first row of the bucket in `store`
    OPENED_NS = 3  # time at which the oldest command entered
    POSITION = 4  # index of the bucket in `active`


class HashColumn(enum.IntEnum):
    """Columns of `Buckets.shapes`: the two words of a shape's key, and its bucket + 1 (0: the entry is empty)."""

    MN = 0
    KEY = 1
    BUCKET = 2


class RuleWord(enum.IntEnum):
    """Words of `Buckets.rules`: when a bucket that is not full is flushed. LAST_NS and GROUP_ENDED change."""

    TIMEOUT_NS = 0  # flush a bucket this long after its oldest command entered
    IDLE_NS = 1  # flush a bucket this long after the last command came; NEVER_IDLE: no such limit
    ON_STALL = 2  # 1: flush at a stall
    LAST_NS = 3  # time at which the last commands came
    GROUP_FLAG = 4  # Flag of the last command of a group; 0: there are no groups
    GROUP_ENDED = 5  # 1: a group is complete; all buckets are flushed before the next command enters one


NEVER_IDLE = -1


class Buckets(NamedTuple):
    """A batcher's arrays."""

    shapes: Words  # [a power of two, HashColumn]: hash table of shapes
    buckets: Table  # [buckets, BucketColumn]
    store: Words  # [sum of limits, RecordWord]: the records held, each with its ELIGIBLE_NS
    active: Table  # [buckets + 1]: the number of buckets that hold commands, then these buckets
    rules: Table  # [RuleWord]


BucketArrays = tuple[Words, Table, Words, Table, Table]  # the fields of Buckets, as Python passes them


@compiled
def _hash(mn: np.uint64, key: np.uint64) -> np.uint64:
    mixed = (mn ^ (key * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(29))


@compiled
def _find(shapes: Words, mn: np.uint64, key: np.uint64) -> Int:
    """Return the bucket of a shape, or NO_BUCKET. The hash table uses open addressing and is at most half full."""
    mask = np.uint64(len(shapes) - 1)
    place = _hash(mn, key) & mask
    while True:
        entry = np.intp(place)
        if shapes[entry, HashColumn.BUCKET] == np.uint64(0):
            return NO_BUCKET
        if shapes[entry, HashColumn.MN] == mn and shapes[entry, HashColumn.KEY] == key:
            return np.intp(shapes[entry, HashColumn.BUCKET]) - 1
        place = (place + np.uint64(1)) & mask


@compiled
def insert_shape(shapes: Words, mn: np.uint64, key: np.uint64, bucket: int) -> None:
    """Put a shape's key and bucket into the hash table."""
    mask = np.uint64(len(shapes) - 1)
    place = _hash(mn, key) & mask
    while shapes[np.intp(place), HashColumn.BUCKET] != np.uint64(0):
        place = (place + np.uint64(1)) & mask
    entry = np.intp(place)
    shapes[entry, HashColumn.MN], shapes[entry, HashColumn.KEY] = mn, key
    shapes[entry, HashColumn.BUCKET] = np.uint64(bucket + 1)


@compiled
def classify_words(words: Words, shapes: Words, out: ShapeIndices) -> int:
    """Write the bucket of each record to `out`; return the index of the first of unknown shape, or len(words)."""
    last_mn, last_key, bucket = np.uint64(0), np.uint64(0), NO_BUCKET
    for i in range(len(words)):
        mn, key = shape_key_of(words, i)
        if bucket == NO_BUCKET or mn != last_mn or key != last_key:
            bucket = _find(shapes, mn, key)
            if bucket == NO_BUCKET:
                return i
            last_mn, last_key = mn, key
        out[i] = bucket
    return len(words)


@compiled
def _put(words: Words, i: Int, now_ns: Int, bucket: Int, batcher: Buckets) -> bool:
    """Put words[i] into `bucket`; return whether the bucket is now full."""
    state, active = batcher.buckets[bucket], batcher.active
    count = state[BucketColumn.COUNT]
    if count == 0:
        active[0] += 1
        active[active[0]] = bucket
        state[BucketColumn.OPENED_NS], state[BucketColumn.POSITION] = now_ns, active[0]
    row = state[BucketColumn.BASE] + count
    copy_record(words, i, batcher.store, row)
    batcher.store[row, RecordWord.ELIGIBLE_NS] = np.uint64(now_ns)
    state[BucketColumn.COUNT] = count + 1
    return bool(count + 1 == state[BucketColumn.LIMIT])


@compiled
def add_words(words: Words, start: Int, now_ns: Int, batcher: Buckets) -> tuple[int, int]:
    """Put records from words[start] on into buckets until one is full; return (index of the next record, that bucket).

    The bucket is NO_BUCKET if all records were taken, UNKNOWN_SHAPE if the next record's shape has no bucket.
    """
    last_mn, last_key, bucket = np.uint64(0), np.uint64(0), NO_BUCKET
    for i in range(start, len(words)):
        mn, key = shape_key_of(words, i)
        if bucket == NO_BUCKET or mn != last_mn or key != last_key:
            bucket = _find(batcher.shapes, mn, key)
            if bucket == NO_BUCKET:
                return i, UNKNOWN_SHAPE
            last_mn, last_key = mn, key
        if _put(words, i, now_ns, bucket, batcher):
            return i + 1, bucket
    return len(words), NO_BUCKET


@compiled
def put_word(words: Words, i: Int, now_ns: Int, batcher: Buckets) -> Int:
    """Put words[i] into its bucket; return the bucket if it is now full, else NO_BUCKET, or UNKNOWN_SHAPE."""
    mn, key = shape_key_of(words, i)
    bucket = _find(batcher.shapes, mn, key)
    if bucket == NO_BUCKET:
        return UNKNOWN_SHAPE
    return bucket if _put(words, i, now_ns, bucket, batcher) else NO_BUCKET


@compiled
def add_group(words: Words, start: Int, now_ns: Int, batcher: Buckets) -> tuple[int, int]:
    """Do as `add_words`, but stop behind the last command of a group, and set GROUP_ENDED.

    Then take no record while a bucket holds commands.
    """
    if batcher.rules[RuleWord.GROUP_ENDED] != 0 and batcher.active[0] > 0:
        return start, NO_BUCKET
    batcher.rules[RuleWord.GROUP_ENDED] = 0
    flag = batcher.rules[RuleWord.GROUP_FLAG]
    for i in range(start, len(words)):
        bucket = put_word(words, i, now_ns, batcher)
        if bucket == UNKNOWN_SHAPE:
            return i, bucket
        if has_flag(words, i, flag):
            batcher.rules[RuleWord.GROUP_ENDED] = 1
            return i + 1, bucket
        if bucket != NO_BUCKET:
            return i + 1, bucket
    return len(words), NO_BUCKET


@compiled
def oldest_bucket(buckets: Table, active: Table) -> Int:
    """Return the bucket that was opened first, or NO_BUCKET if all are empty."""
    oldest = NO_BUCKET
    for i in range(1, active[0] + 1):
        bucket = active[i]
        if oldest == NO_BUCKET or buckets[bucket, BucketColumn.OPENED_NS] < buckets[oldest, BucketColumn.OPENED_NS]:
            oldest = bucket
    return oldest


@compiled
def largest_bucket(buckets: Table, active: Table) -> Int:
    """Return the fullest bucket, of several the one that was opened first; NO_BUCKET if all are empty."""
    best = NO_BUCKET
    for i in range(1, active[0] + 1):
        bucket = active[i]
        more = 1 if best == NO_BUCKET else buckets[bucket, BucketColumn.COUNT] - buckets[best, BucketColumn.COUNT]
        is_older = more == 0 and buckets[bucket, BucketColumn.OPENED_NS] < buckets[best, BucketColumn.OPENED_NS]
        if more > 0 or is_older:
            best = bucket
    return best


@compiled
def empty_bucket(bucket: Int, batcher: Buckets) -> Int:
    """Empty a bucket; return the number of commands that it held. Their records stay in the store."""
    buckets, active = batcher.buckets, batcher.active
    count = buckets[bucket, BucketColumn.COUNT]
    buckets[bucket, BucketColumn.COUNT] = 0
    last, position = active[active[0]], buckets[bucket, BucketColumn.POSITION]
    active[position] = last
    buckets[last, BucketColumn.POSITION] = position
    active[0] -= 1
    return count
