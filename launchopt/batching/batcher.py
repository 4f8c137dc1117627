"""Commands in, batches out: a bucket a shape, which leaves when full, due, idle, at a stall or at the end.

The batcher has no clock: its callers say what time it is. Every command leaves exactly once, in order within its
bucket. Where order is kept, a command enters its bucket only when the one before it in its request has left.

A bucket is due `timeout_ns` after its oldest command *entered the bucket*: the timeout bounds how long a command waits
for company. Time in the ring, while the consumer is behind, is not counted. Small batches would put the consumer
further behind then. Queue wait is measured from enqueue and shows that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from launchopt.batching.buckets import (
    NEVER_IDLE,
    UNKNOWN_SHAPE,
    BucketArrays,
    BucketColumn,
    FlushReason,
    HashColumn,
    RuleWord,
    classify_words,
    insert_shape,
)
from launchopt.batching.order import OrderArrays, OrderWord
from launchopt.batching.policy import next_batch
from launchopt.command import WORDS, Records, ShapeKey, as_words
from launchopt.errors import RunError
from launchopt.types import ShapeIndices, Words

SEVERAL = -1  # in place of a shape's index
REASONS = tuple(FlushReason)  # by number


@dataclass(frozen=True, slots=True)
class FlushRules:
    """When a bucket that is not full leaves."""

    timeout_ns: int  # after its oldest command entered
    idle_ns: int | None = None  # after the last command came; None: never because nothing comes
    on_stall: bool = True  # when every command that waits does so for a command in a bucket
    in_rounds: bool = False  # of whole steps: requests go on in rounds, and a stall is the end of a round


class Batch:
    """Commands of one shape (or of SEVERAL) that leave together.

    `words` views the batcher's store, [count, WORDS], and is valid until the batcher is next given commands.
    """

    __slots__ = ("reason", "shape_index", "words")

    def __init__(self, shape_index: int, words: Words, reason: FlushReason) -> None:
        self.shape_index, self.words, self.reason = shape_index, words, reason

    def __len__(self) -> int:
        return len(self.words)


class Batcher:
    """A bucket for each of `shapes`, which is full at its entry of `limits`.

    With one limit for several shapes they share one bucket, and a batch's `shape_index` is SEVERAL. order: the arrays
    that keep order within requests (`order.order_arrays`); None: commands are independent of each other.
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
        self._rules[RuleWord.IDLE_NS] = NEVER_IDLE if rules.idle_ns is None else rules.idle_ns
        self.order, self.flushes = order, [0] * len(FlushReason)
        for index, shape in enumerate(shapes):
            mn, key = shape.packed
            insert_shape(self._table, np.uint64(mn), np.uint64(key), 0 if self._is_shared else index)

    @property
    def arrays(self) -> BucketArrays:
        """The fields of Buckets, for compiled loops over a batcher."""
        return self._table, self._buckets, self._store, self._active, self._rules

    @property
    def held(self) -> int:
        """Commands in buckets."""
        return int(self._buckets[:, BucketColumn.COUNT].sum())

    @property
    def waiting(self) -> int:
        """Commands that wait for one before them."""
        return 0 if self.order is None else int(self.order[-1][OrderWord.WAITING])

    def start(self, now_ns: int) -> None:
        """Count idleness from now on."""
        self._rules[RuleWord.LAST_NS] = now_ns

    def classify(self, records: Records, out: ShapeIndices) -> ShapeIndices:
        """Write the index of each record's shape to the front of `out`, and return that; buckets stay as they are.

        RunError where a record's shape is not among `shapes`: no plan was made for it.
        """
        known = classify_words(as_words(records), self._table, out)
        if known < len(records):
            raise self.unknown(records[known])
        return out[: len(records)]

    def take(self, records: Records, now_ns: int, is_drained: bool = False) -> Iterator[Batch]:
        """Take `records` (none: none are at hand), and yield every batch that is to leave now.

        is_drained: none will come after these. Exhaust the iterator before the next call. RunError as in `classify`.
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
        """The batch of the `size` commands that a bucket held when it left."""
        base = self._bases[bucket]
        return Batch(SEVERAL if self._is_shared else bucket, self._store[base : base + size], REASONS[reason])

    def unknown_at(self, records: Records, at: int) -> RunError:
        """The error for records[at], whose shape has no bucket; past the last record: for a command that waited."""
        if at < len(records):
            return self.unknown(records[at])
        return RunError("a command that waited has a shape which the workload did not announce")

    @staticmethod
    def unknown(record: np.void) -> RunError:
        """The error for a record whose shape has no bucket."""
        shape = f"{record['m']}x{record['n']}x{record['k']} (dtype {record['dtype']}, op {record['op']})"
        return RunError(f"command {record['seq']} has shape {shape}, which the workload did not announce")


def shape_finder(shapes: Sequence[ShapeKey]) -> Batcher:
    """A batcher that only finds the shapes of records (`Batcher.classify`)."""
    return Batcher(shapes, [1] * len(shapes), FlushRules(0))
