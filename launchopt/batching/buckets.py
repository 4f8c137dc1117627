"""Buckets of commands as arrays, for compiled loops: find a record's bucket, put it in, empty the bucket.

table    uint64 [a power of two, 3]: hash table of shapes: two key words, bucket + 1
buckets  int64 [shapes, 5]: count, limit, first row in the store, when it was opened, place in `active`
store    uint64 [sum of limits, WORDS]: the records held; the last word is when each became eligible
active   int64 [shapes + 1]: how many buckets hold commands, and which
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from launchopt.command import W_ELIGIBLE, W_K_OP_DTYPE, W_MN, W_TURN
from launchopt.native import compiled
from launchopt.types import Int

BatcherArrays = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]

NO_BUCKET, UNKNOWN_SHAPE = -1, -2


class FlushReason(enum.IntEnum):
    """Why a batch left its bucket."""

    full = 0
    deadline = 1  # its oldest command has waited for the timeout
    idle = 2  # no command came for a while
    drain = 3  # no command will come
    stall = 4  # every command that waits does so for a command in a bucket


KEY_MASK = np.uint64(0x0000_FFFF_FFFF_FFFF)  # word 3 less the flags
COUNT, LIMIT, BASE, OPENED_NS, POSITION = range(5)  # columns of a bucket's state
KEY_MN, KEY_K, KEY_BUCKET = range(3)  # columns of the hash table; bucket is stored + 1, 0 is an empty place


@compiled
def _hash(mn: np.uint64, key: np.uint64) -> np.uint64:
    mixed = (mn ^ (key * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(29))


@compiled
def _find(table: NDArray[np.uint64], mn: np.uint64, key: np.uint64) -> Int:
    """The bucket of a shape, or NO_BUCKET. Open addressing; the table is at most half full."""
    mask = np.uint64(len(table) - 1)
    place = _hash(mn, key) & mask
    while True:
        entry = np.intp(place)
        if table[entry, KEY_BUCKET] == np.uint64(0):
            return NO_BUCKET
        if table[entry, KEY_MN] == mn and table[entry, KEY_K] == key:
            return np.intp(table[entry, KEY_BUCKET]) - 1
        place = (place + np.uint64(1)) & mask


@compiled
def insert_shape(table: NDArray[np.uint64], mn: np.uint64, key: np.uint64, bucket: int) -> None:
    """Put a shape's key and bucket into the hash table."""
    mask = np.uint64(len(table) - 1)
    place = _hash(mn, key) & mask
    while table[np.intp(place), KEY_BUCKET] != np.uint64(0):
        place = (place + np.uint64(1)) & mask
    entry = np.intp(place)
    table[entry, KEY_MN], table[entry, KEY_K] = mn, key
    table[entry, KEY_BUCKET] = np.uint64(bucket + 1)


@compiled
def classify_words(words: NDArray[np.uint64], table: NDArray[np.uint64], out: NDArray[np.int32]) -> int:
    """The bucket of each record into `out`; returns the first record of an unknown shape, or len(words)."""
    last_mn, last_key, bucket = np.uint64(0), np.uint64(0), NO_BUCKET
    for i in range(len(words)):
        mn, key = words[i, W_MN], words[i, W_K_OP_DTYPE] & KEY_MASK
        if bucket == NO_BUCKET or mn != last_mn or key != last_key:
            bucket = _find(table, mn, key)
            if bucket == NO_BUCKET:
                return i
            last_mn, last_key = mn, key
        out[i] = bucket
    return len(words)


@compiled
def add_words(
    words: NDArray[np.uint64],
    start: int,
    now_ns: int,
    table: NDArray[np.uint64],
    buckets: NDArray[np.int64],
    store: NDArray[np.uint64],
    active: NDArray[np.int64],
) -> tuple[int, int]:
    """Put records from `start` on into buckets until one is full: (next record, that bucket or NO_BUCKET).

    active[0] is how many buckets hold commands, active[1:] which.
    """
    last_mn, last_key, bucket = np.uint64(0), np.uint64(0), NO_BUCKET
    for i in range(start, len(words)):
        mn, key = words[i, W_MN], words[i, W_K_OP_DTYPE] & KEY_MASK
        if bucket == NO_BUCKET or mn != last_mn or key != last_key:
            bucket = _find(table, mn, key)
            if bucket == NO_BUCKET:
                return i, UNKNOWN_SHAPE
            last_mn, last_key = mn, key
        count = buckets[bucket, COUNT]
        if count == 0:
            buckets[bucket, OPENED_NS] = now_ns
            active[0] += 1
            active[active[0]] = bucket
            buckets[bucket, POSITION] = active[0]
        row = buckets[bucket, BASE] + count
        for w in range(W_TURN):
            store[row, w] = words[i, w]
        store[row, W_ELIGIBLE] = np.uint64(now_ns)
        buckets[bucket, COUNT] = count + 1
        if count + 1 == buckets[bucket, LIMIT]:
            return i + 1, bucket
    return len(words), NO_BUCKET


@compiled
def put_word(
    words: NDArray[np.uint64],
    i: int,
    now_ns: int,
    batcher: BatcherArrays,
) -> Int:
    """Put one record into its bucket: the bucket where that filled it, else NO_BUCKET; UNKNOWN_SHAPE."""
    table, buckets, store, active = batcher
    bucket = _find(table, words[i, W_MN], words[i, W_K_OP_DTYPE] & KEY_MASK)
    if bucket == NO_BUCKET:
        return UNKNOWN_SHAPE
    count = buckets[bucket, COUNT]
    if count == 0:
        buckets[bucket, OPENED_NS] = now_ns
        active[0] += 1
        active[active[0]] = bucket
        buckets[bucket, POSITION] = active[0]
    row = buckets[bucket, BASE] + count
    for w in range(W_TURN):
        store[row, w] = words[i, w]
    store[row, W_ELIGIBLE] = np.uint64(now_ns)
    buckets[bucket, COUNT] = count + 1
    return bucket if count + 1 == buckets[bucket, LIMIT] else NO_BUCKET


@compiled
def oldest_bucket(buckets: NDArray[np.int64], active: NDArray[np.int64]) -> Int:
    """The bucket whose oldest command entered first, or NO_BUCKET."""
    oldest = NO_BUCKET
    for i in range(1, active[0] + 1):
        if oldest == NO_BUCKET or buckets[active[i], OPENED_NS] < buckets[oldest, OPENED_NS]:
            oldest = active[i]
    return oldest


@compiled
def largest_bucket(buckets: NDArray[np.int64], active: NDArray[np.int64]) -> Int:
    """The bucket that holds most, of several the one opened first; NO_BUCKET where all are empty."""
    best = NO_BUCKET
    for i in range(1, active[0] + 1):
        bucket = active[i]
        more = 1 if best == NO_BUCKET else buckets[bucket, COUNT] - buckets[best, COUNT]
        if more > 0 or (more == 0 and buckets[bucket, OPENED_NS] < buckets[best, OPENED_NS]):
            best = bucket
    return best


@compiled
def empty_bucket(bucket: int, buckets: NDArray[np.int64], active: NDArray[np.int64]) -> Int:
    """Take a bucket off the active list; returns how many commands it held. Their records stay in the store."""
    count = buckets[bucket, COUNT]
    buckets[bucket, COUNT] = 0
    last = active[active[0]]
    active[buckets[bucket, POSITION]] = last
    buckets[last, POSITION] = buckets[bucket, POSITION]
    active[0] -= 1
    return count
