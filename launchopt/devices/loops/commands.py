"""The consumer's loop, compiled: ring -> batcher -> cuBLASLt -> recorder, with no Python between two commands.

It is the same loop as the consumer's in Python, made of the same compiled parts, for the common case. Whenever a
batch needs more than plain launches (events around it because it is sampled, or packing) it is handed to Python
(SPECIAL), and the loop is entered again; so it is when the recorder must make room before the next block (SPOOL).
State that must survive that is in `state`; times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.buckets import (
    BASE,
    NO_BUCKET,
    OPENED_NS,
    UNKNOWN_SHAPE,
    add_words,
    classify_words,
    empty_bucket,
    oldest_bucket,
)
from launchopt.devices.cublaslt.launch import OK, TOO_MANY_LAUNCHES, launch_each, launch_strided
from launchopt.native import compiled, cpu_pause, load_acquire, monotonic_ns
from launchopt.queue.ring import CLOSED_BIT, HeaderWord, has_record, is_closed, pop_words
from launchopt.recording.recorder import CursorWord, wants_room
from launchopt.types import Int, Table

# Why the loop came back.
DRAINED, STOPPED, IDLE, SPECIAL, FAILED, UNKNOWN, SPOOL = range(7)
GO_ON = -1
# Words of `state`. COUNT records of the block were popped at NOW_NS, those before NEXT are dealt with.
COUNT, NEXT, NOW_NS, LAST_NS, LEFT, BUCKET, SIZE, REASON, FLUSH_NS, STATUS, BATCH0, FLUSHES = range(12)
STATE_WORDS = FLUSHES + 5  # batches flushed, by reason
# Words of `settings`.
TIMEOUT_NS, IDLE_NS, SPIN_NS, SLEEP_NS, PACK_BYTES_PER_LAUNCH = range(5)
NEVER_IDLE = -1
FULL, DEADLINE, IDLE_FLUSH, DRAIN, STALL = range(5)  # batcher.FlushReason, as plain integers for compiled code
UNLIMITED = 1 << 40


@compiled
def refill(header: NDArray[np.uint64], data: NDArray[np.uint64], block: NDArray[np.uint64], state: Table) -> None:
    """Pop the next block."""
    state[COUNT], state[NEXT] = pop_words(header, data, block), 0
    state[NOW_NS] = monotonic_ns()
    if state[COUNT] > 0:
        state[LAST_NS] = state[NOW_NS]


@compiled
def _spin(header: NDArray[np.uint64], data: NDArray[np.uint64], until_ns: Int) -> Int:
    """Until there is a record, or none will come (True), or the time has come (False)."""
    while True:
        for _ in range(16):
            if has_record(header, data):
                return True
            cpu_pause()
        if is_closed(header):
            return True
        if monotonic_ns() >= until_ns:
            return False


@compiled
def is_drained(header: NDArray[np.uint64]) -> Int:
    """The producer has closed the ring, and every record was popped."""
    return load_acquire(header, HeaderWord.HEAD) == load_acquire(header, HeaderWord.TAIL) | np.uint64(CLOSED_BIT)


@compiled
def _flush(
    bucket: Int, reason: Int, batcher: Any, tables: Any, records: Any, slot_bytes: Table, settings: Table, state: Table
) -> Int:
    """Launch what a bucket holds: GO_ON, SPECIAL (Python must launch state's batch) or FAILED."""
    buckets, store, active = batcher[1], batcher[2], batcher[3]
    cursor = records[2]
    size = empty_bucket(bucket, buckets, active)
    flush_ns = monotonic_ns()
    state[BUCKET], state[SIZE], state[REASON], state[FLUSH_NS] = bucket, size, reason, flush_ns
    state[FLUSHES + reason] += 1
    if state[LEFT] <= 0:
        return SPECIAL
    base = buckets[bucket, BASE]
    most = UNLIMITED
    if slot_bytes[bucket] > 0:
        most = 1 + size * slot_bytes[bucket] // settings[PACK_BYTES_PER_LAUNCH]
    launched = cursor[CursorWord.NEXT_LAUNCH]
    batch = cursor[CursorWord.NEXT_BATCH]
    status = launch_strided(store[base : base + size], bucket, most, tables, records, batch, reason, flush_ns)
    if status == TOO_MANY_LAUNCHES:
        return SPECIAL
    cursor[CursorWord.NEXT_BATCH] = batch + 1
    state[LEFT] -= cursor[CursorWord.NEXT_LAUNCH] - launched
    if status != OK:
        state[STATUS] = status
        return FAILED
    return GO_ON


@compiled
def _flush_due(
    batcher: Any,
    tables: Any,
    records: Any,
    slot_bytes: Table,
    settings: Table,
    state: Table,
    older_ns: Int,
    reason: Int,
) -> Int:
    """Flush every bucket that was opened at `older_ns` or before, oldest first."""
    buckets, active = batcher[1], batcher[3]
    while True:
        bucket = oldest_bucket(buckets, active)
        if bucket == NO_BUCKET or buckets[bucket, OPENED_NS] > older_ns:
            return GO_ON
        code = _flush(bucket, reason, batcher, tables, records, slot_bytes, settings, state)
        if code != GO_ON:
            return code


@compiled
def wake_ns(buckets: Table, active: Table, settings: Table, state: Table) -> Int:
    """When something must be done although nothing arrives; far away while every bucket is empty."""
    bucket = oldest_bucket(buckets, active)
    if bucket == NO_BUCKET:
        return state[NOW_NS] + UNLIMITED
    due_ns = buckets[bucket, OPENED_NS] + settings[TIMEOUT_NS]
    if settings[IDLE_NS] != NEVER_IDLE:
        due_ns = min(due_ns, state[LAST_NS] + settings[IDLE_NS])
    return due_ns


@compiled
def pump_batches(
    ring: Any,
    block: NDArray[np.uint64],
    batcher: Any,
    tables: Any,
    records: Any,
    slot_bytes: Table,
    settings: Table,
    state: Table,
) -> Int:
    """Buckets of strided launches. `slot_bytes[shape]`: bytes of A, B and C where packing may pay, else 0."""
    header, data = ring
    table, buckets, store, active = batcher
    while True:
        if state[NEXT] == state[COUNT]:
            if wants_room(records):
                return SPOOL
            refill(header, data, block, state)
            if load_acquire(header, HeaderWord.STOP) != np.uint64(0):
                return STOPPED
        words = block[: state[COUNT]]
        while state[NEXT] < state[COUNT]:
            state[NEXT], bucket = add_words(words, state[NEXT], state[NOW_NS], table, buckets, store, active)
            if bucket == UNKNOWN_SHAPE:
                return UNKNOWN
            if bucket != NO_BUCKET:
                code = _flush(bucket, FULL, batcher, tables, records, slot_bytes, settings, state)
                if code != GO_ON:
                    return code
        older_ns, reason = state[NOW_NS] - settings[TIMEOUT_NS], DEADLINE
        if state[COUNT] == 0:
            if is_drained(header):
                older_ns, reason = state[NOW_NS], DRAIN
            elif settings[IDLE_NS] != NEVER_IDLE and state[NOW_NS] - state[LAST_NS] >= settings[IDLE_NS]:
                older_ns, reason = state[NOW_NS], IDLE_FLUSH
        code = _flush_due(batcher, tables, records, slot_bytes, settings, state, older_ns, reason)
        if code != GO_ON:
            return code
        if state[COUNT] == 0:
            if reason == DRAIN:
                return DRAINED
            due_ns = wake_ns(buckets, active, settings, state)
            until_ns = state[NOW_NS] + settings[SPIN_NS]
            if due_ns <= until_ns + settings[SLEEP_NS]:
                until_ns = due_ns  # a sleep would overshoot it
            if not _spin(header, data, until_ns) and until_ns < due_ns:
                return IDLE


@compiled
def pump_commands(
    ring: Any,
    block: NDArray[np.uint64],
    shape_of: NDArray[np.int32],
    batcher: Any,
    tables: Any,
    records: Any,
    settings: Table,
    state: Table,
) -> Int:
    """One launch a command, in arrival order."""
    header, data = ring
    cursor = records[2]
    while True:
        if state[NEXT] == state[COUNT]:
            if wants_room(records):
                return SPOOL
            refill(header, data, block, state)
            if load_acquire(header, HeaderWord.STOP) != np.uint64(0):
                return STOPPED
            if state[COUNT] == 0:
                if is_drained(header):
                    return DRAINED
                if not _spin(header, data, state[NOW_NS] + settings[SPIN_NS]):
                    return IDLE
                continue
            known = classify_words(block[: state[COUNT]], batcher[0], shape_of)
            if known < state[COUNT]:
                state[NEXT] = known
                return UNKNOWN
            state[FLUSHES + FULL] += state[COUNT]
            state[BATCH0] = cursor[CursorWord.NEXT_BATCH]
            cursor[CursorWord.NEXT_BATCH] += state[COUNT]
        if state[LEFT] <= 0:
            return SPECIAL
        first = state[NEXT]
        stop = min(state[COUNT], first + state[LEFT])
        status = launch_each(block, shape_of, first, stop, tables, records, state[BATCH0], FULL, state[NOW_NS])
        if status != OK:
            state[STATUS] = status
            return FAILED
        state[LEFT] -= stop - first
        state[NEXT] = stop
