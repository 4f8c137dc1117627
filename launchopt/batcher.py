"""Commands in, batches out: a bucket a shape, flushed when full, due, idle or at the end.

Pure: it has no clock (the caller passes `now_ns`) and starts nothing. Every command leaves exactly once, in
order within its bucket. A bucket's deadline is `timeout_ns` after its oldest command *entered the bucket*: the
timeout bounds how long a command waits for company. Time spent in the ring because the consumer is behind is
not counted, for then flushing small batches would only put it further behind; queue wait, measured from
enqueue, shows it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from launchopt.command import W_K_OP_DTYPE, W_MN, WORDS, Records, ShapeKey, as_words
from launchopt.errors import RunError
from launchopt.native import Int, compiled

NO_BUCKET, UNKNOWN_SHAPE = -1, -2
KEY_MASK = np.uint64(0x0000_FFFF_FFFF_FFFF)  # word 3 less the flags
COUNT, LIMIT, BASE, OPENED_NS, POSITION = range(5)  # columns of a bucket's state
KEY_MN, KEY_K, KEY_BUCKET = range(3)  # columns of the hash table; bucket is stored + 1, 0 is an empty place


class FlushReason(enum.IntEnum):
    """Why a batch left its bucket."""

    full = 0
    deadline = 1
    idle = 2
    drain = 3


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
def _insert(table: NDArray[np.uint64], mn: np.uint64, key: np.uint64, bucket: int) -> None:
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
        for w in range(WORDS):
            store[row, w] = words[i, w]
        buckets[bucket, COUNT] = count + 1
        if count + 1 == buckets[bucket, LIMIT]:
            return i + 1, bucket
    return len(words), NO_BUCKET


@compiled
def oldest_bucket(buckets: NDArray[np.int64], active: NDArray[np.int64]) -> Int:
    """The bucket whose oldest command entered first, or NO_BUCKET."""
    oldest = NO_BUCKET
    for i in range(1, active[0] + 1):
        if oldest == NO_BUCKET or buckets[active[i], OPENED_NS] < buckets[oldest, OPENED_NS]:
            oldest = active[i]
    return oldest


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


class Batch:
    """Commands of one shape that leave together.

    `words` views the batcher's store: uint64 [count, WORDS], valid until the batcher is next given commands.
    """

    __slots__ = ("reason", "shape_index", "words")

    def __init__(self, shape_index: int, words: NDArray[np.uint64], reason: FlushReason) -> None:
        self.shape_index, self.words, self.reason = shape_index, words, reason

    def __len__(self) -> int:
        return len(self.words)


class Batcher:
    """A bucket for each of `shapes`, flushed at its `limits` entry or `timeout_ns` after it was opened.

    A shape that is not among `shapes` is a RunError: its plan was not warmed up.
    """

    def __init__(self, shapes: Sequence[ShapeKey], limits: Sequence[int], timeout_ns: int) -> None:
        self._shapes, self._timeout_ns = shapes, timeout_ns
        size = 1 << max(3, (2 * len(shapes)).bit_length())
        self._table = np.zeros((size, 3), np.uint64)
        self._buckets = np.zeros((len(shapes), 5), np.int64)
        self._buckets[:, LIMIT] = limits
        self._buckets[:, BASE] = np.concatenate([[0], np.cumsum(limits)[:-1]])
        self._store = np.zeros((int(np.sum(limits)), WORDS), np.uint64)
        self._active = np.zeros(len(shapes) + 1, np.int64)
        self.flushes = [0] * len(FlushReason)
        for index, shape in enumerate(shapes):
            mn, key = shape.packed
            _insert(self._table, np.uint64(mn), np.uint64(key), index)

    @property
    def arrays(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
        """Hash table, buckets, store and active list, for compiled loops over a batcher."""
        return self._table, self._buckets, self._store, self._active

    @property
    def held(self) -> int:
        """Commands in buckets."""
        return int(self._buckets[:, COUNT].sum())

    def classify(self, records: Records, out: NDArray[np.int32]) -> NDArray[np.int32]:
        """Index of each record's shape, written to the front of `out`; buckets stay as they are."""
        known = classify_words(as_words(records), self._table, out)
        if known < len(records):
            raise self.unknown(records[known])
        return out[: len(records)]

    def add(self, records: Records, now_ns: int) -> Iterator[Batch]:
        """Take `records`, yielding each bucket as it fills; exhaust the iterator before the next call."""
        words, start = as_words(records), 0
        while start < len(words):
            start, bucket = add_words(words, start, now_ns, self._table, self._buckets, self._store, self._active)
            if bucket == UNKNOWN_SHAPE:
                raise self.unknown(records[start])
            if bucket != NO_BUCKET:
                yield self._take(bucket, FlushReason.full)

    def due(self, now_ns: int) -> Batch | None:
        """The bucket that opened first, if its time is up."""
        bucket = oldest_bucket(self._buckets, self._active)
        if bucket == NO_BUCKET or self._buckets[bucket, OPENED_NS] + self._timeout_ns > now_ns:
            return None
        return self._take(bucket, FlushReason.deadline)

    def next_deadline_ns(self) -> int | None:
        """When `due` will next have something, None while every bucket is empty."""
        bucket = oldest_bucket(self._buckets, self._active)
        return None if bucket == NO_BUCKET else int(self._buckets[bucket, OPENED_NS]) + self._timeout_ns

    def flush(self, reason: FlushReason) -> Iterator[Batch]:
        """Every bucket that holds commands, oldest first."""
        while (bucket := oldest_bucket(self._buckets, self._active)) != NO_BUCKET:
            yield self._take(bucket, reason)

    def _take(self, bucket: int, reason: FlushReason) -> Batch:
        base = int(self._buckets[bucket, BASE])
        count = empty_bucket(bucket, self._buckets, self._active)
        self.flushes[reason] += 1
        return Batch(bucket, self._store[base : base + count], reason)

    def unknown(self, record: np.void) -> RunError:
        """The error for a record of a shape that was not announced."""
        shape = f"{record['m']}x{record['n']}x{record['k']} (dtype {record['dtype']}, op {record['op']})"
        return RunError(f"command {record['seq']} has shape {shape}, which the workload did not announce")
