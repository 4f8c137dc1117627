"""Buckets of whole steps as arrays, for compiled loops: gather a step's records, find its bucket, empty the bucket.

store    uint64 [requests x rows, WORDS]: the records of each request's step, from place request x REQUEST_STEP on
steps    int64 [requests, STEP_COLUMNS]: where each request stands
table    uint64 [a power of two, 4]: hash table of kinds: two key words of the first record, rows, kind + 1
kinds    int64 [kinds, KIND_COLUMNS]: their buckets: a list of requests each; a list of those that hold any, by age
out      uint64 [limit x rows, WORDS]: the batch that left last
members  int64 [limit]: its requests
counts   int64 [COUNT_WORDS]
"""

from __future__ import annotations

import numpy as np

from launchopt.batching.buckets import KEY_MASK, FlushReason
from launchopt.batching.order import REQUEST_SHIFT, STEP_END
from launchopt.command import W_ELIGIBLE, W_K_OP_DTYPE, W_MN, W_SLOT_C_REQUEST, Flag
from launchopt.native import compiled
from launchopt.types import Int, Table, Words

NO_KIND, UNKNOWN_REQUEST, OUT_OF_TURN, TOO_LONG, TOO_MANY_KINDS = range(-1, -6, -1)
ROUND_END = np.uint64(int(Flag.ROUND_END) << 48)  # in its word of a record
FULL, DEADLINE, IDLE, DRAIN, STALL = (int(reason) for reason in FlushReason)
NEVER = -1
# Columns of `steps`. FILLED: records of the step that is arriving; NEXT: the next request of the same bucket;
# COMPLETE_NS: when the step was, where records come early.
TOTAL, LANDED, STATE, FILLED, NEXT, EXPECTED, COMPLETE_NS = range(7)
STEP_COLUMNS = 7
# Of STATE: nothing of a step is here, some, all; it left and is not told of (records of the next may be here).
AWAY, ARRIVING, HELD_HERE, LEFT = range(4)
# Columns of `kinds`. OPENED_NS: since when the oldest is held; FIRST, LAST: requests; OLDER, NEWER: buckets.
COUNT, ROWS, OPENED_NS, FIRST, LAST, OLDER, NEWER = range(7)
KIND_COLUMNS = 7
KEY_MN, KEY_K, KEY_ROWS, KEY_KIND = range(4)  # columns of `table`; the kind is stored + 1, 0 is an empty place
# Words of `counts`. OLDEST, NEWEST: buckets; ALL_LEAVE: a stall goes on until nothing is held.
HELD, LIVE, PARTIAL, KINDS, OLDEST, NEWEST, ALL_LEAVE, ROUND_ENDED, LAST_NS = range(9)
# Never changed. MOST_ROWS: of a step. REQUEST_STEP, ROW_STEP: places of the store to the next request, or row. EARLY:
# all records of a step but the last may come as soon as the one before it has left.
LIMIT, TIMEOUT_NS, IDLE_NS, ON_STALL, IN_ROUNDS, MOST_ROWS, REQUEST_STEP, ROW_STEP, EARLY = range(9, 18)
COUNT_WORDS = 18

StepArrays = tuple[Words, Table, Words, Table, Words, Table, Table]


@compiled
def _kind_of(mn: np.uint64, key: np.uint64, rows: Int, table: Words, kinds: Table, counts: Table) -> Int:
    """The kind of a step by its first record and its length, a new one if need be; TOO_MANY_KINDS."""
    mask, length = np.uint64(len(table) - 1), np.uint64(rows)
    mixed = (mn ^ (key * np.uint64(0x9E3779B97F4A7C15)) ^ (length << np.uint64(17))) * np.uint64(0xBF58476D1CE4E5B9)
    place = (mixed ^ (mixed >> np.uint64(29))) & mask
    while True:
        entry = table[np.intp(place)]
        if entry[KEY_KIND] == np.uint64(0):
            break
        if entry[KEY_MN] == mn and entry[KEY_K] == key and entry[KEY_ROWS] == length:
            return np.intp(entry[KEY_KIND]) - 1
        place = (place + np.uint64(1)) & mask
    if counts[KINDS] == len(kinds):
        return TOO_MANY_KINDS
    kind = counts[KINDS]
    counts[KINDS] += 1
    entry[KEY_MN], entry[KEY_K], entry[KEY_ROWS], entry[KEY_KIND] = mn, key, length, np.uint64(kind + 1)
    kinds[kind, ROWS] = rows
    return kind


@compiled
def _hold(request: Int, rows: Int, before: Int, now_ns: Int, batcher: StepArrays) -> Int:
    """A request's step is complete: into its bucket; returns that, or TOO_MANY_KINDS. `before`: rows taken earlier."""
    store, steps, table, kinds, _, _, counts = batcher
    place = request * counts[REQUEST_STEP]
    first = store[place]
    if counts[EARLY] != 0:
        steps[request, COMPLETE_NS] = now_ns  # into its records when it has left: it is waited for
    else:
        for row in range(before):
            store[place + row * counts[ROW_STEP], W_ELIGIBLE] = np.uint64(now_ns)
    kind = _kind_of(first[W_MN], first[W_K_OP_DTYPE] & KEY_MASK, rows, table, kinds, counts)
    if kind == TOO_MANY_KINDS:
        return kind
    bucket, step = kinds[kind], steps[request]
    step[STATE], step[FILLED] = HELD_HERE, 0
    if bucket[COUNT] == 0:
        bucket[OPENED_NS], bucket[FIRST] = now_ns, request
        bucket[OLDER], bucket[NEWER] = counts[NEWEST], NO_KIND
        if counts[NEWEST] == NO_KIND:
            counts[OLDEST] = kind
        else:
            kinds[counts[NEWEST], NEWER] = kind
        counts[NEWEST] = kind
    else:
        steps[bucket[LAST], NEXT] = request
    bucket[LAST] = request
    bucket[COUNT] += 1
    counts[PARTIAL] -= 1
    counts[HELD] += 1
    return kind


@compiled
def _copy(to: Words, at: np.uint64, words: Words, i: Int, eligible: np.uint64) -> None:
    """A record, eligible since then. All of it is read before any is written, so that it moves in one piece."""
    a, b, c, d = words[i, 0], words[i, 1], words[i, 2], words[i, 3]
    e, f, g = words[i, 4], words[i, 5], words[i, 6]
    to[at, 0], to[at, 1], to[at, 2], to[at, 3] = a, b, c, d
    to[at, 4], to[at, 5], to[at, 6], to[at, W_ELIGIBLE] = e, f, g, eligible


@compiled
def _begin(request: Int, steps: Table, counts: Table) -> Int:
    """A request's next step begins to arrive, early or not; False where it may not."""
    step = steps[request]
    if step[STATE] == LEFT and counts[EARLY] != 0 and step[LANDED] + 1 < step[TOTAL]:
        counts[PARTIAL] += 1
        return True
    if step[STATE] != AWAY or step[LANDED] == step[TOTAL]:
        return False
    step[STATE] = ARRIVING
    counts[LIVE] += step[LANDED] == 0 and step[EXPECTED] == 0
    counts[PARTIAL] += 1
    counts[ROUND_ENDED] = 0
    return True


@compiled
def _take_run(words: Words, start: Int, request: Int, row: Int, now_ns: Int, store: Words, counts: Table) -> Int:
    """Take records from `start` on, as long as they are of this step; returns the first that is not."""
    stop = min(len(words), start + counts[MOST_ROWS] - row)
    place = np.uint64(request * counts[REQUEST_STEP] + row * counts[ROW_STEP])
    for i in range(start, stop):
        if np.intp(words[i, W_SLOT_C_REQUEST] >> REQUEST_SHIFT) != request:
            return i
        _copy(store, place, words, i, np.uint64(now_ns))
        if words[i, W_K_OP_DTYPE] & STEP_END != np.uint64(0):
            return i + 1
        place += np.uint64(counts[ROW_STEP])
    return stop


@compiled
def take_steps(words: Words, start: Int, now_ns: Int, batcher: StepArrays) -> tuple[int, int]:
    """Take records from `start` on until a bucket is full: (next record, that bucket).

    NO_KIND: all were taken. UNKNOWN_REQUEST and so on: what is wrong with the next record.
    """
    store, steps, _, kinds, _, _, counts = batcher
    while start < len(words):
        request = np.intp(words[start, W_SLOT_C_REQUEST] >> REQUEST_SHIFT)
        if request >= len(steps):
            return start, UNKNOWN_REQUEST
        row = steps[request, FILLED]
        if row == 0 and not _begin(request, steps, counts):
            return start, OUT_OF_TURN
        if row == counts[MOST_ROWS]:
            return start, TOO_LONG
        stop = _take_run(words, start, request, row, now_ns, store, counts)
        rows, last = row + stop - start, words[stop - 1, W_K_OP_DTYPE]
        steps[request, FILLED], start = rows, stop
        if last & STEP_END != np.uint64(0):
            if steps[request, STATE] == LEFT:
                return stop - 1, OUT_OF_TURN  # nobody could know by then that the step before is done
            counts[ROUND_ENDED] |= last & ROUND_END != np.uint64(0)
            kind = _hold(request, rows, row, now_ns, batcher)
            if kind == TOO_MANY_KINDS:
                return stop - 1, kind
            if kinds[kind, COUNT] == counts[LIMIT]:
                return stop, kind
    return len(words), NO_KIND


@compiled
def _largest(kinds: Table, counts: Table) -> Int:
    """The bucket that holds most, of several the one opened first; NO_KIND where all are empty."""
    best = kind = counts[OLDEST]
    while kind != NO_KIND:
        if kinds[kind, COUNT] > kinds[best, COUNT]:
            best = kind
        kind = kinds[kind, NEWER]
    return best


@compiled
def steps_stalled(counts: Table) -> Int:
    """Steps are held, and nobody else can come before some of them left."""
    if counts[ON_STALL] == 0 or counts[HELD] == 0 or counts[PARTIAL] > 0:
        return False
    return counts[ROUND_ENDED] != 0 if counts[IN_ROUNDS] != 0 else counts[HELD] == counts[LIVE]


@compiled
def next_kind(words: Words, start: Int, now_ns: Int, is_drained: Int, batcher: StepArrays) -> tuple[int, int, int]:
    """Take records until a bucket is to leave: (next record, that bucket or what `take_steps` says, why it leaves).

    No `words`: none are at hand now. `is_drained`: none will come after these.
    """
    kinds, counts = batcher[3], batcher[6]
    if counts[ALL_LEAVE] != 0:
        if counts[HELD] > 0:
            return start, _largest(kinds, counts), STALL
        counts[ALL_LEAVE] = 0
    if len(words) > 0:
        counts[LAST_NS] = now_ns
    start, kind = take_steps(words, start, now_ns, batcher)
    oldest = counts[OLDEST]
    if kind != NO_KIND or oldest == NO_KIND:
        return start, kind, FULL
    if kinds[oldest, OPENED_NS] + counts[TIMEOUT_NS] <= now_ns:
        return start, oldest, DEADLINE
    if is_drained:
        return start, oldest, DRAIN
    if len(words) == 0:
        if steps_stalled(counts):
            counts[ALL_LEAVE] = 1
            return start, _largest(kinds, counts), STALL
        if counts[IDLE_NS] != NEVER and now_ns - counts[LAST_NS] >= counts[IDLE_NS]:
            return start, oldest, IDLE
    return start, NO_KIND, FULL


@compiled
def next_due_ns(far_ns: Int, kinds: Table, counts: Table) -> Int:
    """When something must be done although nothing arrives; `far_ns` while nothing is held."""
    oldest = counts[OLDEST]
    if oldest == NO_KIND:
        return far_ns
    due_ns = kinds[oldest, OPENED_NS] + counts[TIMEOUT_NS]
    return min(due_ns, counts[LAST_NS] + counts[IDLE_NS]) if counts[IDLE_NS] != NEVER else due_ns


@compiled
def _gather(size: Int, rows: Int, batcher: StepArrays) -> None:
    """The records of `members` into `out`."""
    store, _, _, _, out, members, counts = batcher
    for row in range(rows):
        for i in range(size):
            place = members[i] * counts[REQUEST_STEP] + row * counts[ROW_STEP]
            _copy(out, np.uint64(row * size + i), store, place, store[place, W_ELIGIBLE])


@compiled
def _sort(values: Table, count: Int) -> None:
    """Sort the first `count` values in place, ascending: a shellsort, fast for few values that are mostly in order."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value, j = values[i], i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3


@compiled
def let_go(kind: Int, batcher: StepArrays) -> tuple[int, int]:
    """Empty a bucket into `out`: (requests, rows). Where it holds all requests there are, they stay in `store`."""
    _, steps, _, kinds, _, members, counts = batcher
    bucket = kinds[kind]
    size, rows, request = bucket[COUNT], bucket[ROWS], bucket[FIRST]
    for i in range(size):
        members[i] = request
        request = steps[request, NEXT]
    _sort(members, size)
    if size < len(steps):
        _gather(size, rows, batcher)
    for i in range(size):
        steps[members[i], STATE] = LEFT
    if bucket[OLDER] == NO_KIND:
        counts[OLDEST] = bucket[NEWER]
    else:
        kinds[bucket[OLDER], NEWER] = bucket[NEWER]
    if bucket[NEWER] == NO_KIND:
        counts[NEWEST] = bucket[OLDER]
    else:
        kinds[bucket[NEWER], OLDER] = bucket[OLDER]
    bucket[COUNT] = 0
    counts[HELD] -= size
    return size, rows


@compiled
def stamp_left(size: Int, rows: Int, batcher: StepArrays) -> None:
    """Records that came early are eligible since their step was complete: into those of the batch that left last."""
    store, steps, _, _, out, members, counts = batcher
    if counts[EARLY] != 0:
        words = store if size == len(steps) else out
        for row in range(rows):
            for i in range(size):
                words[row * size + i, W_ELIGIBLE] = np.uint64(steps[members[i], COMPLETE_NS])


@compiled
def land_step(request: Int, batcher: StepArrays) -> None:
    """A request was told that the step which left is done."""
    step, counts = batcher[1][request], batcher[6]
    step[STATE] = ARRIVING if step[FILLED] > 0 else AWAY
    step[LANDED] += 1
    counts[LIVE] -= step[LANDED] == step[TOTAL]
