"""Commands in, batches out: a bucket a shape, flushed when full, due, idle, at a stall or at the end.

Pure: it has no clock (the caller passes `now_ns`) and starts nothing. Every command leaves exactly once, in
order within its bucket. Where requests are told of, a command enters its bucket only when the one before
it in its request has left (`order`); when all that is left waits for commands in buckets, that is a stall. A bucket's
deadline is `timeout_ns` after its oldest command *entered the bucket*: the
timeout bounds how long a command waits for company. Time spent in the ring because the consumer is behind is
not counted, for then flushing small batches would only put it further behind; queue wait, measured from
enqueue, shows it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.buckets import (
    BASE,
    COUNT,
    LIMIT,
    NO_BUCKET,
    OPENED_NS,
    UNKNOWN_SHAPE,
    BatcherArrays,
    FlushReason,
    add_words,
    classify_words,
    empty_bucket,
    insert_shape,
    largest_bucket,
    oldest_bucket,
)
from launchopt.batching.order import WAITING, OrderArrays, is_stalled, order_arrays, release, take_ordered
from launchopt.command import COMMAND_DTYPE, WORDS, Records, ShapeKey, as_words
from launchopt.errors import RunError

SEVERAL = -1  # in place of a shape's index


class Batch:
    """Commands of one shape (or of SEVERAL) that leave together.

    `words` views the batcher's store: uint64 [count, WORDS], valid until the batcher is next given commands.
    """

    __slots__ = ("reason", "shape_index", "words")

    def __init__(self, shape_index: int, words: NDArray[np.uint64], reason: FlushReason) -> None:
        self.shape_index, self.words, self.reason = shape_index, words, reason

    def __len__(self) -> int:
        return len(self.words)


class Batcher:
    """A bucket for each of `shapes`, flushed at its `limits` entry or `timeout_ns` after it was opened.

    A shape that is not among `shapes` is a RunError: its plan was not warmed up. With one limit for all shapes they
    share one bucket, and a batch's `shape_index` is SEVERAL. With `requests`, order is kept within each of that many
    (unless `violated`); without (None) commands are independent. expected, steps: as in `order.order_arrays`.
    """

    def __init__(
        self,
        shapes: Sequence[ShapeKey],
        limits: Sequence[int],
        timeout_ns: int,
        requests: int | None = None,
        violated: bool = False,
        expected: NDArray[np.bool_] | None = None,
        steps: NDArray[np.int64] | None = None,
    ) -> None:
        self._shapes, self._timeout_ns = shapes, timeout_ns
        size = 1 << max(3, (2 * len(shapes)).bit_length())
        self._table = np.zeros((size, 3), np.uint64)
        self._shared = len(limits) == 1 and len(shapes) > 1
        self._buckets = np.zeros((len(limits), 5), np.int64)
        self._buckets[:, LIMIT] = limits
        self._buckets[:, BASE] = np.concatenate([[0], np.cumsum(limits)[:-1]])
        self._store = np.zeros((int(np.sum(limits)), WORDS), np.uint64)
        self._active = np.zeros(len(limits) + 1, np.int64)
        self.flushes = [0] * len(FlushReason)
        for index, shape in enumerate(shapes):
            mn, key = shape.packed
            insert_shape(self._table, np.uint64(mn), np.uint64(key), 0 if self._shared else index)
        for find in (oldest_bucket, largest_bucket):  # their machine code is loaded here, not when one is first due
            find(self._buckets, self._active)
        self.order: OrderArrays | None = (
            None if requests is None else order_arrays(requests, violated=violated, expected=expected, steps=steps)
        )
        if self.order is not None:
            is_stalled(self.order)  # likewise: a rehearsal may meet no stall

    @property
    def arrays(self) -> BatcherArrays:
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

    def add(self, records: Records, now_ns: int) -> Generator[Batch, int | None, None]:
        """Take `records`, yielding each bucket as it fills; exhaust the iterator before the next call.

        With order kept, taking up the iterator again means that the batch was submitted. So after a batch from `due`,
        `flush` or `stalled` call it again, if with no records.
        """
        if self.order is not None:
            yield from self._add_ordered(as_words(records), now_ns)
            return
        words, start = as_words(records), 0
        while start < len(words):
            start, bucket = add_words(words, start, now_ns, self._table, self._buckets, self._store, self._active)
            if bucket == UNKNOWN_SHAPE:
                raise self.unknown(records[start])
            if bucket != NO_BUCKET:
                yield self._take(bucket, FlushReason.full)

    def _add_ordered(self, words: NDArray[np.uint64], now_ns: int) -> Generator[Batch, int | None, None]:
        start = 0
        assert self.order is not None
        while True:
            start, bucket = take_ordered(words, start, now_ns, self.arrays, self.order)
            if bucket == UNKNOWN_SHAPE and start == len(words):
                raise RunError("a command that waited has a shape which the workload did not announce")
            if bucket == UNKNOWN_SHAPE:
                raise self.unknown(words[start].view(COMMAND_DTYPE)[0])
            if bucket != NO_BUCKET:
                now_ns = (yield self._take(bucket, FlushReason.full)) or now_ns
            elif start == len(words):
                return
            else:  # no room for those that wait: make some
                now_ns = (yield self._take(largest_bucket(self._buckets, self._active), FlushReason.stall)) or now_ns

    @property
    def waiting(self) -> int:
        """Commands that wait for one before them."""
        return 0 if self.order is None else int(self.order[4][WAITING])

    def stalled(self) -> Batch | None:
        """The largest bucket, where everything that waits does so for a command in a bucket.

        The largest: the few then wait until the many come by, and go on with them. Their deadline bounds that.
        """
        if self.order is None or not is_stalled(self.order):
            return None
        return self._take(largest_bucket(self._buckets, self._active), FlushReason.stall)

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
        if self.order is not None:
            release(bucket, count, self.arrays, self.order)
        self.flushes[reason] += 1
        return self.batch(bucket, base, count, reason)

    def batch(self, bucket: int, base: int, count: int, reason: FlushReason) -> Batch:
        """`count` commands of a bucket, which start at `base` in the store."""
        return Batch(SEVERAL if self._shared else bucket, self._store[base : base + count], reason)

    def unknown(self, record: np.void) -> RunError:
        """The error for a record of a shape that was not announced."""
        shape = f"{record['m']}x{record['n']}x{record['k']} (dtype {record['dtype']}, op {record['op']})"
        return RunError(f"command {record['seq']} has shape {shape}, which the workload did not announce")
