"""The records of a request's next step, filled in from the stream's template before the step may be issued.

All words but two follow from the step alone: the sequence number and the time of arrival, which are written when the
step is pushed (`push_step`). So a driver that waits prepares what comes next, and shows it to nobody before its time.
Meanwhile the slots of the ring that it will go to are made this core's own (`own_room`). Where steps are pushed ahead
all records but the last go into the ring as soon as the request's step before has left (`push_early`): no step can be
launched before its last record, and that is pushed when the step is issued.

`Ahead` is where steps are prepared: `blocks`, uint64 [places + 1, longest step, WORDS], and `ready`, int64 [places,
READY_COLUMNS], what is in each. A request has one place, which it may share with others; the place behind these is for
the last records of several steps, which are pushed together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.command import (
    NO_TOKEN,
    W_ENQUEUE,
    W_K_OP_DTYPE,
    W_MN,
    W_SEQ,
    W_SLOT_A_B,
    W_SLOT_C_REQUEST,
    W_STEP,
    W_TURN,
    WORDS,
)
from launchopt.native import compiled, load_acquire, monotonic_ns, store_release
from launchopt.queue.ring import HeaderWord, room_for
from launchopt.types import Int, Table, Words
from launchopt.workloads import chain as ch

# Words of `settings`.
REQUESTS, DECODE_KIND, CHUNK_KIND, CHUNK_UNITS, REPLICAS, SPIN_NS, CONTINUOUS, BUDGET, MOST_RUNNING, AHEAD = range(10)
SETTING_WORDS = 10
# Columns of `progress`, a row a request: steps done, commands issued, times, tokens done. ENDED_AT: records pushed when
# the last of the step issued last is; EARLY: records of the next step that are.
STEPS, COMMANDS, ARRIVED_NS, NOTICED_NS, TOKENS_DONE, ENDED_AT, EARLY = range(7)
PROGRESS_COLUMNS = 7
# Columns of `ready`. REQUEST: whose step a place holds, NOBODY's where there is none; COUNT: its records; IS_ISSUED: it
# was issued, so that the one after it may take its place.
REQUEST, STEP, COUNT, IS_ISSUED = range(4)
READY_COLUMNS = 4
NOBODY = -1
MOST_PLACES = 64  # a power of two; the steps of so many requests stay in a core's cache
LOW = np.uint64(0xFFFF_FFFF)
HIGH = np.uint64(32)

Ahead = tuple[Words, Table]


def ahead_of(requests: int, longest: int) -> Ahead:
    """Places for the steps of `requests` requests, of up to `longest` commands each; nothing is prepared."""
    places = min(1 << (requests - 1).bit_length(), MOST_PLACES)
    ready = np.full((places, READY_COLUMNS), NOBODY, np.int64)
    return np.full((places + 1, longest, WORDS), 0, np.uint64), ready  # written to, so that the memory is there


@compiled
def kind_of(request: Int, step: Int, table: Table, settings: Table) -> Int:
    """The kind of a request's step, -1 when it has none."""
    step -= table[request, ch.FULL_CHUNKS]
    if step < 0:
        return settings[CHUNK_KIND]
    if table[request, ch.REST_KIND] != ch.NO_PROMPT:
        if step == 0:
            return table[request, ch.REST_KIND]
        step -= 1
    return settings[DECODE_KIND] if step < table[request, ch.DECODES] else -1


@compiled
def _origin(of: Int, lane: Int, region: Int, source: Int) -> np.uint64:
    """What a slot of a template counts from."""
    if of == ch.FROM_LANE:
        return np.uint64(lane)
    if of == ch.FROM_PREFILL:
        return np.uint64(region)
    return np.uint64(source if of == ch.FROM_INPUT else 0)


@compiled
def _fill(request: Int, step: Int, kind: Int, token: Int, command: Int, static: Any, block: Words) -> Int:
    """Fill `block` with the records of a step of a kind, whose first command is the request's `command`th; how many."""
    settings, table, stops, template, moves, a_from, b_from, c_from = static
    first = 0 if kind == 0 else stops[kind - 1]
    count = stops[kind] - first
    lane, region = table[request, ch.LANE], table[request, ch.PREFILL]
    given = table[request, ch.PROMPT] + step * settings[CHUNK_UNITS]
    prompt_steps = table[request, ch.FULL_CHUNKS] + (table[request, ch.REST_KIND] != ch.NO_PROMPT)
    source = given if step == 0 or step < prompt_steps else lane  # the table, or what was fed back
    replica = token % settings[REPLICAS]
    for i in range(count):
        row = first + i
        a = (template[row, W_SLOT_A_B] & LOW) + np.uint64(replica * moves[row])
        a += _origin(a_from[row], lane, region, source)
        b = (template[row, W_SLOT_A_B] >> HIGH) + _origin(b_from[row], lane, region, source)
        c = (template[row, W_SLOT_C_REQUEST] & LOW) + _origin(c_from[row], lane, region, source)
        ends_token = template[row, W_STEP] >> HIGH != np.uint64(NO_TOKEN)
        block[i, W_MN], block[i, W_K_OP_DTYPE] = template[row, W_MN], template[row, W_K_OP_DTYPE]
        block[i, W_SLOT_A_B] = a | b << HIGH
        block[i, W_SLOT_C_REQUEST] = c | np.uint64(request) << HIGH
        block[i, W_STEP] = np.uint64(command + i) | (np.uint64(token) if ends_token else np.uint64(NO_TOKEN)) << HIGH
    return count


@compiled
def _prepare(request: Int, step: Int, token: Int, static: Any, progress: Table, ahead: Any) -> None:
    """Have a step of a request at hand, if there is one; `token`: that it works for. It is to be issued next."""
    blocks, ready = ahead
    place = request & (len(ready) - 1)
    kind = kind_of(request, step, static[1], static[0])
    ready[place, REQUEST], ready[place, STEP], ready[place, IS_ISSUED] = NOBODY, step, False
    if kind >= 0:
        ready[place, COUNT] = _fill(request, step, kind, token, progress[request, COMMANDS], static, blocks[place])
        ready[place, REQUEST] = request


@compiled
def next_step(request: Int, static: Any, progress: Table, ahead: Any) -> Int:
    """The place of a request's next step, which is issued with that."""
    ready = ahead[1]
    place, step = request & (len(ready) - 1), progress[request, STEPS]
    if ready[place, REQUEST] != request or ready[place, STEP] != step:
        _prepare(request, step, progress[request, TOKENS_DONE], static, progress, ahead)
    progress[request, COMMANDS] += ready[place, COUNT]
    ready[place, IS_ISSUED] = True
    return place


@compiled
def lacks_last(request: Int, progress: Table, ready: Table) -> Int:
    """Whether a request's next step is at hand, of which all records but the last were pushed early."""
    place, early = request & (len(ready) - 1), progress[request, EARLY]
    if ready[place, REQUEST] != request or ready[place, STEP] != progress[request, STEPS]:
        return False  # the place was another's since
    return early > 0 and early + 1 == ready[place, COUNT]


@compiled
def push_step(header: Words, data: Words, words: Words, seq: Int, enqueue_ns: Int) -> Int:
    """As `ring.push_words`, of a step's `words`: numbered from `seq` on, and arrived at `enqueue_ns`.

    The last record first: the consumer looks at the first alone, and finds all there. In order it would follow record
    by record, and take each cache line away while it is being written.
    """
    mask, head = np.uint64(len(data) - 1), header[HeaderWord.HEAD]
    count: Int = room_for(header, data, len(words))
    for i in range(count - 1, -1, -1):
        place = head + np.uint64(i)
        slot = place & mask
        # All is read before any is written, so that the compiler moves it in one piece.
        mn, key, a_b = words[i, W_MN], words[i, W_K_OP_DTYPE], words[i, W_SLOT_A_B]
        c_request, step = words[i, W_SLOT_C_REQUEST], words[i, W_STEP]
        data[slot, W_SEQ], data[slot, W_ENQUEUE] = np.uint64(seq + i), np.uint64(enqueue_ns)
        data[slot, W_MN], data[slot, W_K_OP_DTYPE], data[slot, W_SLOT_A_B] = mn, key, a_b
        data[slot, W_SLOT_C_REQUEST], data[slot, W_STEP] = c_request, step
        store_release(data, (slot, W_TURN), place + np.uint64(1))
    store_release(header, HeaderWord.HEAD, head + np.uint64(count))
    return count


@compiled
def own_room(header: Words, data: Words, first: Int, stop: Int) -> Int:
    """Make slots `first` to `stop` from the head on this core's own, as far as they are free; returns where it ended.

    The consumer's core read each last, so that its cache line is fetched by who writes to it next. Fetched before there
    is a record for it, it keeps nobody waiting. Stored to is a word that nobody reads until the slot is published
    again; the turn, which the consumer looks at before that, is not touched.
    """
    mask, head = np.uint64(len(data) - 1), header[HeaderWord.HEAD]
    room: Int = room_for(header, data, stop)
    for i in range(first, room):
        data[(head + np.uint64(i)) & mask, W_SEQ] = np.uint64(0)
    return max(first, room)


@compiled
def push_early(header: Words, data: Words, most: Int, seq: Int, progress: Table, ahead: Any) -> Int:
    """Push up to `most` records, without the last, of one prepared step whose request's step has left; how many.

    Only where the ring has room for all of them, and for the last record of every prepared step: that never waits for
    room because of what came early. How far a request's step got is in `progress`: its place may be another's soon.
    """
    blocks, ready = ahead
    left = load_acquire(header, HeaderWord.STEPS_LEFT)
    for place in range(len(ready)):
        request = ready[place, REQUEST]
        if request == NOBODY or ready[place, IS_ISSUED] != 0 or np.uint64(progress[request, ENDED_AT]) > left:
            continue
        first, last = progress[request, EARLY], ready[place, COUNT] - 1
        wanted = last - first + len(ready)
        if first < last and room_for(header, data, wanted) == wanted:
            stop = min(last, first + most)
            push_step(header, data, blocks[place, first:stop], seq, monotonic_ns())
            progress[request, EARLY] = stop
            return stop - first
    return 0


@compiled
def records_ahead(ready: Table, progress: Table) -> Int:
    """How many records the steps have that are prepared and were not issued, less those that were pushed early."""
    count = 0
    for place in range(len(ready)):
        if ready[place, REQUEST] != NOBODY and ready[place, IS_ISSUED] == 0:
            count += ready[place, COUNT] - progress[ready[place, REQUEST], EARLY]
    return count


@compiled
def prepare_next(first: Int, static: Any, progress: Table, ahead: Any) -> Int:
    """Prepare what comes after one of the steps that were issued and pushed, of those from place `first` on.

    Returns the place after it, or that after the last one.
    """
    blocks, ready = ahead
    for place in range(first, len(ready)):
        request = ready[place, REQUEST]
        if request != NOBODY and ready[place, IS_ISSUED] != 0:
            last_token = blocks[place, ready[place, COUNT] - 1, W_STEP] >> HIGH
            token = progress[request, TOKENS_DONE]
            if last_token != np.uint64(NO_TOKEN):
                token = np.int64(last_token) + 1
            _prepare(request, ready[place, STEP] + 1, token, static, progress, ahead)
            return place + 1
    return len(ready)
