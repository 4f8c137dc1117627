"""The consumer's compiled loop for batches: ring -> batcher -> launches -> recorder. No Python runs between launches.

The loop serves independent commands and commands of requests. For requests it keeps their order, and the results of
steps are fed back. When a batch held the last command of a step, the loop returns ENDED and Python submits the
feedback.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from launchopt.batching.buckets import NO_BUCKET, UNKNOWN_SHAPE, BucketArrays, BucketColumn, Buckets
from launchopt.batching.order import Order, OrderArrays
from launchopt.batching.policy import let_go, next_bucket, next_due_ns
from launchopt.devices.cublaslt.launch import OK, TOO_MANY_LAUNCHES, Flush, launch_strided
from launchopt.devices.cublaslt.launch_tables import LaunchTables, TableArrays
from launchopt.devices.feedback.landing import (
    FeedbackArrays,
    FeedbackFields,
    FlightArrays,
    collect_ends,
    feedback_quiet,
    in_flight,
    land,
)
from launchopt.devices.loops.state import (
    FAR_NS,
    LoopArrays,
    LoopExit,
    LoopFields,
    LoopWord,
    SettingWord,
    is_drained,
    is_stopped,
    refill,
    wait,
)
from launchopt.native import compiled, monotonic_ns
from launchopt.queue.segment import RingArrays, RingWords
from launchopt.recording.launch_rows import CursorWord, Recording, RecordingArrays
from launchopt.recording.row_writer import must_spool
from launchopt.types import Int, Table, Words

UNLIMITED = 1 << 40  # limit on the launches of a batch that is never packed


class Launching(NamedTuple):
    """The tables and arrays that a loop needs to launch."""

    tables: LaunchTables
    recording: Recording
    slot_bytes: Table  # [shapes]: bytes of a command's A, B and C if packing may pay off, else 0


LaunchingFields = tuple[TableArrays, RecordingArrays, Table]  # the fields of Launching, as Python passes them


@compiled
def _most_launches(bucket: Int, size: Int, launching: Launching, settings: Table) -> Int:
    """Return the largest number of launches that a batch may take before packing it is cheaper."""
    slot_bytes = launching.slot_bytes[bucket]
    if slot_bytes > 0:
        return 1 + size * slot_bytes // settings[SettingWord.PACK_BYTES_PER_LAUNCH]
    return UNLIMITED


@compiled
def end_launch(words: Words, feedback: FeedbackArrays | None, state: Table) -> Int:
    """Collect the steps that end with the launched `words`; return ENDED, or GO_ON if there are none."""
    if feedback is not None:
        state[LoopWord.ENDS] = collect_ends(words, feedback.ended)
        if state[LoopWord.ENDS] > 0:
            return LoopExit.ENDED
    return LoopExit.GO_ON


@compiled
def _flush(
    bucket: Int,
    reason: Int,
    batcher: Buckets,
    order: Order | None,
    launching: Launching,
    feedback: FeedbackArrays | None,
    loop: LoopArrays,
) -> Int:
    """Flush a bucket and launch its batch; return GO_ON, ENDED, FAILED, or SPECIAL: Python must launch the batch."""
    state, cursor = loop.state, launching.recording.cursor
    size, flush_ns = let_go(bucket, batcher, order), monotonic_ns()
    state[LoopWord.BUCKET], state[LoopWord.SIZE] = bucket, size
    state[LoopWord.REASON], state[LoopWord.FLUSH_NS] = reason, flush_ns
    state[LoopWord.FLUSHES + reason] += 1
    if order is not None:
        state[LoopWord.NOW_NS] = flush_ns  # the commands that waited for this batch are eligible from now on
    if state[LoopWord.LAUNCHES_LEFT] <= 0:
        return LoopExit.SPECIAL
    base, batch, launched = (
        batcher.buckets[bucket, BucketColumn.BASE],
        cursor[CursorWord.NEXT_BATCH],
        cursor[CursorWord.NEXT_LAUNCH],
    )
    words, most = batcher.store[base : base + size], _most_launches(bucket, size, launching, loop.settings)
    flush = Flush(batch, reason, flush_ns)
    status = launch_strided(words, bucket, most, launching.tables, launching.recording, flush)
    if status == TOO_MANY_LAUNCHES:
        return LoopExit.SPECIAL
    cursor[CursorWord.NEXT_BATCH] = batch + 1
    state[LoopWord.LAUNCHES_LEFT] -= cursor[CursorWord.NEXT_LAUNCH] - launched
    if status != OK:
        state[LoopWord.STATUS] = status
        return LoopExit.FAILED
    return end_launch(words, feedback, state)


@compiled
def _loop(
    ring: RingWords,
    block: Words,
    batcher: Buckets,
    order: Order | None,
    launching: Launching,
    feedback: FeedbackArrays | None,
    loop: LoopArrays,
) -> Int:
    """Run until Python is needed; return the LoopExit."""
    state, recording = loop.state, launching.recording
    while True:
        land(feedback, order, None)
        if state[LoopWord.NEXT] == state[LoopWord.COUNT]:
            if must_spool(recording):
                return LoopExit.SPOOL
            refill(ring, block, state)
            if is_stopped(ring):
                return LoopExit.STOPPED
        words, now_ns = block[: state[LoopWord.COUNT]], state[LoopWord.NOW_NS]
        # `is_drained` reads HEAD, whose cache line the producer writes; so call it only if no record has come.
        drained = state[LoopWord.COUNT] == 0 and is_drained(ring)
        state[LoopWord.NEXT], bucket, reason = next_bucket(words, state[LoopWord.NEXT], now_ns, drained, batcher, order)
        if bucket == UNKNOWN_SHAPE:
            return LoopExit.UNKNOWN
        if bucket != NO_BUCKET:
            code = _flush(bucket, np.int64(reason), batcher, order, launching, feedback, loop)
            if code != LoopExit.GO_ON:
                return code
            continue
        if state[LoopWord.COUNT] > 0:
            continue
        if drained and batcher.active[0] == 0 and not in_flight(feedback):
            return LoopExit.DRAINED
        if feedback_quiet(now_ns, recording.cursor[CursorWord.NEXT_LAUNCH], feedback):
            return LoopExit.QUIET
        if not wait(ring, next_due_ns(now_ns + FAR_NS, batcher), feedback, order, None, loop):
            return LoopExit.IDLE


@compiled
def pump_batches(
    ring: RingArrays,
    block: Words,
    batcher: BucketArrays,
    order: OrderArrays | None,
    launching: LaunchingFields,
    feedback: FeedbackFields | None,
    loop: LoopFields,
) -> Int:
    """Run until Python is needed; return the LoopExit, as an integer.

    Arguments are the fields of RingWords, Buckets, Order, Launching, FeedbackArrays and LoopArrays, nested in the same
    way. order and feedback are None for independent commands.
    """
    tables, recording, slot_bytes = launching
    ring_words, buckets, arrays = RingWords(*ring), Buckets(*batcher), LoopArrays(*loop)
    given = Launching(LaunchTables(*tables), Recording(*recording), slot_bytes)
    if order is None or feedback is None:
        return np.int64(_loop(ring_words, block, buckets, None, given, None, arrays))
    back, ended, flights = feedback
    fed_back = FeedbackArrays(RingWords(*back), ended, FlightArrays(*flights))
    return np.int64(_loop(ring_words, block, buckets, Order(*order), given, fed_back, arrays))
