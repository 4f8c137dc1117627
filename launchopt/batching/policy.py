"""The policy of the batcher, for compiled loops: which bucket is flushed next, and why.

A bucket is flushed when it is full. Otherwise it is flushed when its oldest command has waited for the timeout, at the
end of the workload or of a group, at a stall, or when no command has come for the idle time. Callers pass the time.
"""

from __future__ import annotations

import numpy as np

from launchopt.batching.batch import FlushReason
from launchopt.batching.buckets import (
    NEVER_IDLE,
    NO_BUCKET,
    BucketArrays,
    BucketColumn,
    Buckets,
    RuleWord,
    add_group,
    add_words,
    empty_bucket,
    largest_bucket,
    oldest_bucket,
)
from launchopt.batching.order import Order, OrderArrays, is_stalled, release, take_ordered
from launchopt.native import compiled
from launchopt.types import Int, Words


@compiled
def _take(words: Words, start: Int, now_ns: Int, batcher: Buckets, order: Order | None) -> tuple[int, int]:
    """Put records into buckets until one is full. order: None if commands are independent of each other."""
    if order is None:
        if batcher.rules[RuleWord.GROUP_FLAG] != 0:
            return add_group(words, start, now_ns, batcher)
        return add_words(words, start, now_ns, batcher)
    return take_ordered(words, start, now_ns, batcher, order)


@compiled
def _is_stalled(order: Order | None) -> bool:
    if order is None:
        return False
    return is_stalled(order)


@compiled
def next_bucket(
    words: Words, start: Int, now_ns: Int, is_drained: Int, batcher: Buckets, order: Order | None
) -> tuple[int, int, int]:
    """Take records from words[start] on until a bucket must be flushed; return (next record, bucket, FlushReason).

    The bucket is NO_BUCKET if none must be flushed now, UNKNOWN_SHAPE as in `take_ordered`. `words` is empty if the
    ring has no record. is_drained: no record will come after `words`. order: None for independent commands.

    After a flush call this again, if need be without records: commands that waited for the batch may fill another
    bucket.
    """
    buckets, active, rules = batcher.buckets, batcher.active, batcher.rules
    if len(words) > 0:
        rules[RuleWord.LAST_NS] = now_ns
    start, bucket = _take(words, start, now_ns, batcher, order)
    if bucket != NO_BUCKET:
        return start, bucket, FlushReason.full
    oldest = oldest_bucket(buckets, active)
    if oldest == NO_BUCKET:
        return start, NO_BUCKET, FlushReason.full
    if rules[RuleWord.GROUP_ENDED] != 0:  # later commands wait for those in buckets
        return start, oldest, FlushReason.stall
    if is_drained and len(words) == 0:
        return start, oldest, FlushReason.drain
    if buckets[oldest, BucketColumn.OPENED_NS] + rules[RuleWord.TIMEOUT_NS] <= now_ns:
        return start, oldest, FlushReason.deadline
    if start < len(words):  # the pool is full: a flush frees space in it
        return start, largest_bucket(buckets, active), FlushReason.stall
    if len(words) == 0:
        if rules[RuleWord.ON_STALL] != 0 and _is_stalled(order):
            # Flush the largest bucket first. A smaller one waits until the other requests reach its shape and join it.
            # The timeout bounds this wait.
            return start, largest_bucket(buckets, active), FlushReason.stall
        if rules[RuleWord.IDLE_NS] != NEVER_IDLE and now_ns - rules[RuleWord.LAST_NS] >= rules[RuleWord.IDLE_NS]:
            return start, oldest, FlushReason.idle
    return start, NO_BUCKET, FlushReason.full


@compiled
def let_go(bucket: Int, batcher: Buckets, order: Order | None) -> Int:
    """Empty a bucket that is flushed; return the number of commands that it held. Their records stay in the store."""
    size = empty_bucket(bucket, batcher)
    if order is not None:
        release(bucket, size, batcher, order)
    return size


@compiled
def next_due_ns(far_ns: Int, batcher: Buckets) -> Int:
    """Return the time at which a bucket is flushed if no command comes; `far_ns` while all buckets are empty."""
    rules = batcher.rules
    bucket = oldest_bucket(batcher.buckets, batcher.active)
    if bucket == NO_BUCKET:
        return far_ns
    due_ns = batcher.buckets[bucket, BucketColumn.OPENED_NS] + rules[RuleWord.TIMEOUT_NS]
    if rules[RuleWord.IDLE_NS] != NEVER_IDLE:
        due_ns = min(due_ns, rules[RuleWord.LAST_NS] + rules[RuleWord.IDLE_NS])
    return due_ns


@compiled
def next_batch(
    words: Words, start: Int, now_ns: Int, is_drained: Int, batcher: BucketArrays, order: OrderArrays | None
) -> tuple[int, int, Int, int]:
    """Find the next bucket as `next_bucket` does, and empty it; for Python.

    `batcher` and `order` are the fields of Buckets and Order. Return (next record, bucket, FlushReason, number of
    commands in the bucket).
    """
    buckets = Buckets(*batcher)
    if order is None:
        start, bucket, reason = next_bucket(words, start, now_ns, is_drained, buckets, None)
        size = let_go(bucket, buckets, None) if bucket >= 0 else 0
    else:
        kept = Order(*order)
        start, bucket, reason = next_bucket(words, start, now_ns, is_drained, buckets, kept)
        size = let_go(bucket, buckets, kept) if bucket >= 0 else 0
    return start, bucket, np.int64(reason), size
