"""The consumer's compiled loop for requests: as `lt_pump`, with order kept and the ends of steps told.

What `lt_pump` is for independent commands this is for chains: ring -> order -> buckets -> cuBLASLt -> recorder. When a
batch held the last command of a step, Python feeds its result back on the same stream (ENDED); a word in pinned memory
then tells that the GPU got there, and a record in the second ring tells whoever issued the step. A GPU that is lost
says nothing at all: where steps are under way and nothing has happened for long, Python is to ask after it (QUIET).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.batching.buckets import (
    BASE,
    NO_BUCKET,
    OPENED_NS,
    UNKNOWN_SHAPE,
    empty_bucket,
    largest_bucket,
    oldest_bucket,
)
from launchopt.batching.order import ends_step, is_stalled, land_step, release, take_ordered
from launchopt.command import NO_TOKEN, W_MN, W_SLOT_A_B, W_SLOT_C_REQUEST, W_STEP, WORDS
from launchopt.devices.cublaslt.launch import OK, launch_strided
from launchopt.devices.loops import commands as lp
from launchopt.native import compiled, cpu_pause, load_acquire, monotonic_ns
from launchopt.queue.ring import HeaderWord, has_record, is_closed, push_words
from launchopt.recording.recorder import CursorWord, wants_room
from launchopt.types import Int, Table, Words
from launchopt.workloads import chain as ch

# Why the loop came back, beside lt_pump's: steps ended; steps are under way, and nothing happens.
ENDED, QUIET = range(lp.SPOOL + 1, lp.SPOOL + 3)
QUIET_NS = 250_000_000  # how long that is; a step may well take longer
# Words of `state` behind those of lt_pump.
ENDS = lp.STATE_WORDS
STATE_WORDS = lp.STATE_WORDS + 1
# Words of a flights' cursor. PROGRESS grows with every launch and landing; SINCE_NS: when it was last seen to.
FIRST, STOP_AT, PROGRESS, SINCE_NS = range(4)
CURSOR_WORDS = 4
# Words of `facts` about a stream and where a device keeps its data (addresses; 0 for the CPU's offsets).
TOKENS, COLUMN_BYTES, BASE_BYTES, HISTORY_BYTES, ROW_BYTES, DONE_BYTES, HAS_HEAD = range(7)
FACT_WORDS = 7
# Rows of what is staged for feeding back, a column a step: addresses of what was computed last, of the next input, of
# the history's row (0: none) and of the id; and request << 32 | token, the number that is drawn.
SOURCE, TARGET, HISTORY, ID, DRAW = range(5)
# Words of `settings` behind those of lt_pump.
ON_STALL = lp.PACK_BYTES_PER_LAUNCH + 1
NOT_YET = np.uint64(0xFFFF_FFFF_8000_0000)  # a token that is not done; its id overwrites the lower half
LOW, HIGH = np.uint64(0xFFFF_FFFF), np.uint64(32)


@compiled
def collect_ends(store: Words, base: Int, size: Int, ended: Words) -> Int:
    """Copy those of store[base : base + size] that end a step to `ended`; returns how many."""
    count = 0
    for row in range(base, base + size):
        if ends_step(store, row) != 0:
            for w in range(WORDS):
                ended[count, w] = store[row, w]
            count += 1
    return count


@compiled
def take_off(ended: Words, count: Int, table: Table, facts: Table, sampled: Words, plain: Words, flights: Any) -> Int:
    """Stage `count` ended steps for feeding back; returns how many of them went to `sampled`, the rest to `plain`."""
    rows, places, done, cursor = flights
    mask, samples = len(places) - 1, 0
    for i in range(count):
        request = np.intp(ended[i, W_SLOT_C_REQUEST] >> HIGH)
        token = ended[i, W_STEP] >> HIGH
        ends_token = token != np.uint64(NO_TOKEN)
        place = facts[TOKENS] + request
        if ends_token:
            place = table[request, ch.FIRST_TOKEN] + np.intp(token)
        at = cursor[STOP_AT] & mask
        for w in range(WORDS):
            rows[at, w] = ended[i, w]
        places[at] = place
        done[place] = NOT_YET  # chunks of a request share a word
        cursor[STOP_AT] += 1
        last_column = np.int64(ended[i, W_MN] >> HIGH) - 1
        source = np.int64(ended[i, W_SLOT_C_REQUEST] & LOW) * ch.UNIT_BYTES + last_column * facts[COLUMN_BYTES]
        is_sampled = ends_token and facts[HAS_HEAD] != 0
        out, column = (sampled, samples) if is_sampled else (plain, i - samples)
        out[SOURCE, column] = np.uint64(facts[BASE_BYTES] + source)
        out[TARGET, column] = np.uint64(facts[BASE_BYTES] + table[request, ch.LANE] * ch.UNIT_BYTES)
        keeps = ends_token and facts[HISTORY_BYTES] != 0
        out[HISTORY, column] = np.uint64(facts[HISTORY_BYTES] + place * facts[ROW_BYTES]) if keeps else np.uint64(0)
        out[ID, column] = np.uint64(facts[DONE_BYTES] + place * 8)
        out[DRAW, column] = np.uint64(request) << HIGH | token
        samples += is_sampled
    return samples


@compiled
def land(back: Any, rows: Words, places: Table, done: Words, cursor: Table) -> None:
    """Tell of every step that the GPU has finished, in the order in which they were fed back."""
    while cursor[FIRST] != cursor[STOP_AT]:
        first = stop = cursor[FIRST] & (len(places) - 1)
        most = min(len(places), first + cursor[STOP_AT] - cursor[FIRST])
        while stop < most:
            token = load_acquire(done, places[stop])
            if token == NOT_YET:
                break
            rows[stop, W_SLOT_A_B] = token & LOW
            stop += 1
        if stop == first:
            return
        push_words(back[0], back[1], rows[first:stop], False)  # has room for a step of every request
        cursor[FIRST] += stop - first


@compiled
def land_in_order(back: Any, flights: Any, order: Any) -> None:
    """The same; whose steps they were is to come with the next ones."""
    rows, places, done, cursor = flights
    landed = cursor[FIRST]
    land(back, rows, places, done, cursor)
    while landed != cursor[FIRST]:
        land_step(np.intp(rows[landed & (len(places) - 1), W_SLOT_C_REQUEST] >> HIGH), order)
        landed += 1


@compiled
def is_quiet(now_ns: Int, launches: Int, cursor: Table) -> Int:
    """Whether steps are under way and none landed, nor was anything launched, for QUIET_NS; told once in that time.

    To be asked before every wait. `launches`: made so far.
    """
    progress = cursor[FIRST] + launches
    if cursor[FIRST] == cursor[STOP_AT] or progress != cursor[PROGRESS]:
        cursor[PROGRESS], cursor[SINCE_NS] = progress, now_ns
        return False
    if now_ns - cursor[SINCE_NS] < QUIET_NS:
        return False
    cursor[SINCE_NS] = now_ns
    return True


@compiled
def _flush(
    bucket: Int, reason: Int, batcher: Any, order: Any, tables: Any, records: Any, ended: Words, state: Table
) -> Int:
    """Launch what a bucket holds: GO_ON, ENDED, SPECIAL (Python must launch state's batch) or FAILED."""
    buckets, store, active = batcher[1], batcher[2], batcher[3]
    cursor = records[2]
    size = empty_bucket(bucket, buckets, active)
    release(bucket, size, batcher, order)
    flush_ns = monotonic_ns()
    state[lp.BUCKET], state[lp.SIZE], state[lp.REASON], state[lp.FLUSH_NS] = bucket, size, reason, flush_ns
    state[lp.NOW_NS] = flush_ns  # what this lets in is eligible from now on
    state[lp.FLUSHES + reason] += 1
    if state[lp.LEFT] <= 0:
        return lp.SPECIAL
    base, launched, batch = buckets[bucket, BASE], cursor[CursorWord.NEXT_LAUNCH], cursor[CursorWord.NEXT_BATCH]
    words = store[base : base + size]
    status = launch_strided(words, bucket, lp.UNLIMITED, tables, records, batch, reason, flush_ns)
    cursor[CursorWord.NEXT_BATCH] = batch + 1
    state[lp.LEFT] -= cursor[CursorWord.NEXT_LAUNCH] - launched
    if status != OK:
        state[lp.STATUS] = status
        return lp.FAILED
    state[ENDS] = collect_ends(store, base, size, ended)
    return ENDED if state[ENDS] > 0 else lp.GO_ON


@compiled
def _next_flush(more: Int, is_drained: Int, batcher: Any, order: Any, settings: Table, state: Table) -> tuple[int, int]:
    """The bucket to flush next although it is not full, and why; NO_BUCKET where none is due.

    `more`: whether records are at hand that found no room among those that wait. `is_drained`: none will come.
    """
    buckets, active = batcher[1], batcher[3]
    oldest = oldest_bucket(buckets, active)
    if oldest == NO_BUCKET:
        return NO_BUCKET, 0
    if buckets[oldest, OPENED_NS] + settings[lp.TIMEOUT_NS] <= state[lp.NOW_NS]:
        return oldest, lp.DEADLINE
    if more:
        return largest_bucket(buckets, active), lp.STALL
    if state[lp.COUNT] == 0:
        if is_drained:
            return oldest, lp.DRAIN
        if settings[ON_STALL] != 0 and is_stalled(order):
            return largest_bucket(buckets, active), lp.STALL
        if settings[lp.IDLE_NS] != lp.NEVER_IDLE and state[lp.NOW_NS] - state[lp.LAST_NS] >= settings[lp.IDLE_NS]:
            return oldest, lp.IDLE_FLUSH
    return NO_BUCKET, 0


@compiled
def pump_chains(
    ring: Any,
    back: Any,
    block: Words,
    batcher: Any,
    order: Any,
    tables: Any,
    records: Any,
    ended: Words,
    flights: Any,
    settings: Table,
    state: Table,
) -> Int:
    """Chains of commands, flushed when full, due, or at a stall."""
    header, data = ring
    buckets, active = batcher[1], batcher[3]
    cursor = flights[3]
    while True:
        land_in_order(back, flights, order)
        if wants_room(records):
            return lp.SPOOL
        if state[lp.NEXT] == state[lp.COUNT]:
            lp.refill(header, data, block, state)
            if load_acquire(header, HeaderWord.STOP) != np.uint64(0):
                return lp.STOPPED
        words = block[: state[lp.COUNT]]
        state[lp.NEXT], bucket = take_ordered(words, state[lp.NEXT], state[lp.NOW_NS], batcher, order)
        reason = lp.FULL
        if bucket == UNKNOWN_SHAPE:
            return lp.UNKNOWN
        if bucket == NO_BUCKET:
            more, drained = state[lp.NEXT] < state[lp.COUNT], lp.is_drained(header)
            bucket, reason = _next_flush(more, drained, batcher, order, settings, state)
        if bucket != NO_BUCKET:
            code = _flush(bucket, reason, batcher, order, tables, records, ended, state)
            if code != lp.GO_ON:
                return code
            continue
        if state[lp.COUNT] > 0:
            continue
        if lp.is_drained(header) and active[0] == 0 and cursor[FIRST] == cursor[STOP_AT]:
            return lp.DRAINED
        if is_quiet(state[lp.NOW_NS], records[2][CursorWord.NEXT_LAUNCH], cursor):
            return QUIET
        due_ns = lp.wake_ns(buckets, active, settings, state)
        until_ns = state[lp.NOW_NS] + settings[lp.SPIN_NS]
        if due_ns <= until_ns + settings[lp.SLEEP_NS]:
            until_ns = due_ns  # a sleep would overshoot it
        look_ns = until_ns  # when to look around
        if cursor[FIRST] != cursor[STOP_AT]:
            look_ns = min(until_ns, state[lp.NOW_NS] + QUIET_NS)
        while not (has_record(header, data) or is_closed(header)) and monotonic_ns() < look_ns:
            land_in_order(back, flights, order)
            cpu_pause()
        if cursor[FIRST] == cursor[STOP_AT] and monotonic_ns() >= until_ns and until_ns < due_ns:
            return lp.IDLE
