"""The batcher: it collects commands in one bucket per shape, and yields a bucket's commands as a batch.

A bucket is flushed when it is full, due or idle, at a stall, or at the end of the workload (`FlushReason`). Every
command is flushed exactly once, in order within its bucket. If order within requests is kept, a command enters its
bucket only after the previous command of its request was flushed. The batcher reads no clock: callers pass the time.

A bucket is due `timeout_ns` after its oldest command entered it. So the timeout bounds the wait for other commands of
the shape. It does not count the time in the ring while the consumer falls behind: smaller batches would make that
worse. The measured queue wait counts that time, because it starts at enqueue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from launchopt.batching.batch import REASONS, SEVERAL, Batch, FlushReason, FlushRules
from launchopt.batching.buckets import (
    NEVER_IDLE,
    UNKNOWN_SHAPE,
    BucketArrays,
    BucketColumn,
    HashColumn,
    RuleWord,
    classify_words,
    insert_shape,
)
from launchopt.batching.order import OrderArrays, OrderWord
from launchopt.batching.policy import next_batch
from launchopt.command import WORDS, Flag, Records, ShapeKey, as_words
from launchopt.errors import RunError
from launchopt.types import ShapeIndices


class Batcher:
    """Buckets for `shapes`. The bucket of shapes[i] is full at limits[i] commands.

    If there is one limit and several shapes, the shapes share one bucket, and a batch's `shape_index` is SEVERAL.
    order: arrays that keep order within requests (`order_arrays`). None: commands are independent of each other.
    """

    def __init__(
        self, shapes: Sequence[ShapeKey], limits: Sequence[int], rules: FlushRules, order: OrderArrays | None = None
    ) -> None:
        size = 1 << max(3, (2 * len(shapes)).bit_length())
        self._table = np.zeros((size, len(HashColumn)), np.uint64)
        self._is_shared = len(limits) == 1 and len(shapes) > 1
        self._buckets = np.zeros((len(limits), len(BucketColumn)), np.int64)
        self._buckets[:, BucketColumn.LIMIT] = limits
        self._bases = [0, *np.cumsum(limits)[:-1].tolist()]
        self._buckets[:, BucketColumn.BASE] = self._bases
        self._store = np.zeros((int(np.sum(limits)), WORDS), np.uint64)
        self._active = np.zeros(len(limits) + 1, np.int64)
        self._rules = np.zeros(len(RuleWord), np.int64)
        self._rules[RuleWord.TIMEOUT_NS], self._rules[RuleWord.ON_STALL] = rules.timeout_ns, rules.on_stall
        self._rules[RuleWord.GROUP_FLAG] = Flag.STEP_END if rules.whole_steps else Flag.GROUP_END * rules.has_groups
        self._rules[RuleWord.IDLE_NS] = NEVER_IDLE if rules.idle_ns is None else rules.idle_ns
        self.order, self.flushes = order, [0] * len(FlushReason)
        for index, shape in enumerate(shapes):
            mn, key = shape.packed
            insert_shape(self._table, np.uint64(mn), np.uint64(key), 0 if self._is_shared else index)

    @property
    def arrays(self) -> BucketArrays:
        """The fields of Buckets, for compiled loops."""
        return self._table, self._buckets, self._store, self._active, self._rules

    @property
    def held(self) -> int:
        """Number of commands in buckets."""
        return int(self._buckets[:, BucketColumn.COUNT].sum())

    @property
    def waiting(self) -> int:
        """Number of commands that wait for a previous command of their request."""
        return 0 if self.order is None else int(self.order[-1][OrderWord.WAITING])

    def start(self, now_ns: int) -> None:
        """Start a run at `now_ns`: idle time counts from then."""
        self._rules[RuleWord.LAST_NS] = now_ns

    def classify(self, records: Records, out: ShapeIndices) -> ShapeIndices:
        """Write the index of each record's shape to the front of `out`, and return that part. Buckets do not change.

        Raise RunError if a record has a shape that is not among `shapes`.
        """
        known = classify_words(as_words(records), self._table, out)
        if known < len(records):
            raise self.unknown(records[known])
        return out[: len(records)]

    def take(self, records: Records, now_ns: int, is_drained: bool = False) -> Iterator[Batch]:
        """Take `records`, and yield every batch that must be flushed now. `records` may be empty.

        is_drained: no record will come after these. Exhaust the iterator before the next call. Raise RunError as
        `classify` does.
        """
        words, start = as_words(records), 0
        while True:
            start, bucket, reason, size = next_batch(words, start, now_ns, is_drained, self.arrays, self.order)
            if bucket == UNKNOWN_SHAPE:
                raise self.unknown_at(records, start)
            if bucket < 0:
                return
            self.flushes[reason] += 1
            yield self.left(bucket, size, reason)

    def left(self, bucket: int, size: int, reason: int) -> Batch:
        """Return the batch of a bucket that was flushed with `size` commands."""
        base = self._bases[bucket]
        return Batch(SEVERAL if self._is_shared else bucket, self._store[base : base + size], REASONS[reason])

    def unknown_at(self, records: Records, at: int) -> RunError:
        """Return the error for a shape without a bucket.

        It is that of records[at]; if `at` is past their end, that of a waiting command.
        """
        if at < len(records):
            return self.unknown(records[at])
        return RunError("a command that waited has a shape which the workload did not announce")

    @staticmethod
    def unknown(record: np.void) -> RunError:
        """Return the error for a record whose shape has no bucket."""
        shape = f"{record['m']}x{record['n']}x{record['k']} (dtype {record['dtype']}, op {record['op']})"
        return RunError(f"command {record['seq']} has shape {shape}, which the workload did not announce")


def shape_finder(shapes: Sequence[ShapeKey]) -> Batcher:
    """Return a batcher that is only used to find the shapes of records (`Batcher.classify`)."""
    return Batcher(shapes, [1] * len(shapes), FlushRules(0))
