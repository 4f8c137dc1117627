"""Prepare the records of a request's next step from the workload's template, before the step may be issued.

All words of a record but two depend on the step only. `push_step` writes these two, the sequence number and the time of
arrival. So the driver prepares next steps while it waits. It also fetches the cache lines of the ring's slots that the
steps will fill (`fetch_free_slots`).

`early_records` pushes records of prepared steps before the steps are issued.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import NO_TOKEN, WORDS, RecordWord
from launchopt.native import compiled, store_release
from launchopt.queue.ring import free_slots
from launchopt.queue.segment import HeaderWord
from launchopt.records import join_halves, slot_a_of, slot_b_of, slot_c_of, token_of
from launchopt.streams.chains.chain_table import NO_PROMPT, ChainColumn
from launchopt.streams.chains.placement import Origin
from launchopt.types import Int, Table, Words


class DriverSetting(enum.IntEnum):
    """Words of `StreamArrays.settings`. They never change."""

    REQUESTS = 0  # number of requests
    DECODE_KIND = 1  # kind of step that generates a token
    CHUNK_KIND = 2  # kind of step that is a whole chunk of a prompt
    CHUNK_UNITS = 3  # slots from the inputs of one chunk to those of the next
    REPLICAS = 4  # copies of the weights
    SPIN_NS = 5  # length of a spin before a sleep
    CONTINUOUS = 6  # 1: steps are issued in rounds
    BUDGET = 7  # largest number of columns of a round
    MOST_RUNNING = 8  # largest number of requests in a round
    AHEAD = 9  # 1: all records of a step but the last are pushed once the previous step was flushed
    TOGETHER = 10  # most decode steps of a request that are issued together


class ProgressColumn(enum.IntEnum):
    """Columns of `progress`, one row per request."""

    STEPS = 0  # steps that have ended
    COMMANDS = 1  # commands issued
    ARRIVED_NS = 2  # time at which the request was due
    NOTICED_NS = 3  # time at which the driver noticed that the request is due
    TOKENS_DONE = 4  # tokens generated
    ENDED_AT = 5  # number of pushed records, up to the last record of the step issued last
    EARLY = 6  # records of the next step that were pushed early; whole steps are in EARLY_STEPS
    ISSUED = 7  # steps issued
    EARLY_STEPS = 8  # steps behind these whose records were all pushed early


class ReadyColumn(enum.IntEnum):
    """Columns of `Ahead.ready`, one row per place."""

    REQUEST = 0  # request whose step the place holds, or NOBODY
    STEP = 1  # number of the step within the request
    COUNT = 2  # records of the step
    IS_ISSUED = 3  # 1: the step was issued, and the next step may take its place


NOBODY = -1  # in place of a request: the place holds no step
MOST_PLACES = 64  # a power of two; prepared steps of 64 requests fit in a core's cache

Origins = NDArray[np.int8]  # [rows]: an Origin of an operand's slot


class StreamArrays(NamedTuple):
    """A workload and the settings of its scheduler. They never change during a run."""

    settings: Table  # [DriverSetting]
    table: Table  # [requests, ChainColumn]
    stops: Table  # [kinds]: one past the template's last row of each kind of step
    template: Words  # [rows, WORDS]: records of one step of each kind
    moves: Table  # [rows]: slots from one copy of the weights to the next
    a_from: Origins  # [rows]: origin of the template's slot of A
    b_from: Origins  # [rows]: origin of the template's slot of B
    c_from: Origins  # [rows]: origin of the template's slot of C


# The fields of StreamArrays, as Python passes them.
StreamFields = tuple[Table, Table, Table, Words, Table, Origins, Origins, Origins]


class Ahead(NamedTuple):
    """Places in which steps are prepared. A request has one place, which it may share with other requests."""

    blocks: Words  # [places + 1, longest step, WORDS]; the last place holds last records that are pushed together
    ready: Table  # [places, ReadyColumn]: the step in each place


AheadArrays = tuple[Words, Table]  # the fields of Ahead, as Python passes them


def ahead_of(requests: int, longest: int) -> AheadArrays:
    """Return places for the steps of `requests` requests, of up to `longest` commands each; no step is prepared."""
    places = min(1 << (requests - 1).bit_length(), MOST_PLACES)
    ready = np.full((places, len(ReadyColumn)), NOBODY, np.int64)
    return np.full((places + 1, longest, WORDS), 0, np.uint64), ready  # np.full writes it, so that its pages are mapped


@compiled
def kind_of(request: Int, step: Int, table: Table, settings: Table) -> Int:
    """Return the kind of a step of a request; -1 if the request has no such step."""
    step -= table[request, ChainColumn.FULL_CHUNKS]
    if step < 0:
        return settings[DriverSetting.CHUNK_KIND]
    if table[request, ChainColumn.REST_KIND] != NO_PROMPT:
        if step == 0:
            return table[request, ChainColumn.REST_KIND]
        step -= 1
    return settings[DriverSetting.DECODE_KIND] if step < table[request, ChainColumn.DECODES] else -1


@compiled
def under_way(request: Int, progress: Table) -> Int:
    """Return the number of steps of a request that were issued and have not ended."""
    return progress[request, ProgressColumn.ISSUED] - progress[request, ProgressColumn.STEPS]


@compiled
def _origin(of: Int, lane: Int, region: Int, source: Int) -> np.uint64:
    """Return the slot from which a template's slot of origin `of` counts.

    lane, region: first slots of the request's lane and of its prompt's memory. source: slot of the step's input.
    """
    if of == Origin.LANE:
        return np.uint64(lane)
    if of == Origin.PREFILL:
        return np.uint64(region)
    return np.uint64(source if of == Origin.INPUT else 0)


@compiled
def _fill(request: Int, step: Int, kind: Int, token: Int, command: Int, stream: StreamArrays, block: Words) -> Int:
    """Fill `block` with the records of a step of a kind; return their number.

    command: number of the step's first command within the request. token: the token that the step helps to generate.
    """
    settings, table, template = stream.settings, stream.table, stream.template
    first = 0 if kind == 0 else stream.stops[kind - 1]
    count = stream.stops[kind] - first
    lane, region = table[request, ChainColumn.LANE], table[request, ChainColumn.PREFILL]
    given = table[request, ChainColumn.PROMPT] + step * settings[DriverSetting.CHUNK_UNITS]
    prompt_steps = table[request, ChainColumn.FULL_CHUNKS] + (table[request, ChainColumn.REST_KIND] != NO_PROMPT)
    source = given if step == 0 or step < prompt_steps else lane  # the prompt's inputs, or the input that was fed back
    replica = token % settings[DriverSetting.REPLICAS]
    for i in range(count):
        row = first + i
        a = np.uint64(slot_a_of(template, row)) + np.uint64(replica * stream.moves[row])
        a += _origin(stream.a_from[row], lane, region, source)
        b = np.uint64(slot_b_of(template, row)) + _origin(stream.b_from[row], lane, region, source)
        c = np.uint64(slot_c_of(template, row)) + _origin(stream.c_from[row], lane, region, source)
        works_for = token if token_of(template, row) != NO_TOKEN else NO_TOKEN
        mn, key = template[row, RecordWord.MN], template[row, RecordWord.K_OP_DTYPE]
        block[i, RecordWord.MN], block[i, RecordWord.K_OP_DTYPE] = mn, key
        block[i, RecordWord.SLOTS_AB], block[i, RecordWord.SLOT_C_REQUEST] = join_halves(a, b), join_halves(c, request)
        block[i, RecordWord.STEP_TOKEN] = join_halves(command + i, works_for)
    return count


@compiled
def prepare_step(request: Int, step: Int, token: Int, stream: StreamArrays, progress: Table, ahead: Ahead) -> None:
    """Prepare a request's next step in its place, if the request has such a step. token: as in `_fill`."""
    blocks, ready = ahead.blocks, ahead.ready
    place = request & (len(ready) - 1)
    kind, entry = kind_of(request, step, stream.table, stream.settings), ready[place]
    entry[ReadyColumn.REQUEST], entry[ReadyColumn.STEP], entry[ReadyColumn.IS_ISSUED] = NOBODY, step, False
    if kind >= 0:
        command = progress[request, ProgressColumn.COMMANDS]
        entry[ReadyColumn.COUNT] = _fill(request, step, kind, token, command, stream, blocks[place])
        entry[ReadyColumn.REQUEST] = request


@compiled
def is_prepared(request: Int, progress: Table, ready: Table) -> bool:
    """Return whether the next of a request's steps that was neither issued nor pushed early is in its place."""
    entry = ready[request & (len(ready) - 1)]
    step = progress[request, ProgressColumn.ISSUED] + progress[request, ProgressColumn.EARLY_STEPS]
    return bool(entry[ReadyColumn.REQUEST] == request and entry[ReadyColumn.STEP] == step)


@compiled
def next_step(request: Int, stream: StreamArrays, progress: Table, ahead: Ahead) -> Int:
    """Issue a request's next step; return its place."""
    ready = ahead.ready
    place, step = request & (len(ready) - 1), progress[request, ProgressColumn.ISSUED]
    if not is_prepared(request, progress, ready):
        token = progress[request, ProgressColumn.TOKENS_DONE] + under_way(request, progress)
        prepare_step(request, step, token, stream, progress, ahead)
    progress[request, ProgressColumn.ISSUED] += 1
    progress[request, ProgressColumn.COMMANDS] += ready[place, ReadyColumn.COUNT]
    ready[place, ReadyColumn.IS_ISSUED] = True
    return place


@compiled
def push_step(header: Words, data: Words, words: Words, seq: Int, enqueue_ns: Int) -> Int:
    """Push a step's records as `ring.push_words` does, numbered from `seq` on, with `enqueue_ns`; return their number.

    The records are written last to first. The consumer polls the first slot only, and then finds all records. If they
    were written first to last, the consumer would take away cache lines that this core still writes.
    """
    mask, head = np.uint64(len(data) - 1), header[HeaderWord.HEAD]
    count: Int = free_slots(header, data, len(words))
    for i in range(count - 1, -1, -1):
        place = head + np.uint64(i)
        slot = place & mask
        # All words are read before any is written: so the compiler uses wide loads and stores.
        mn, key, a_b = words[i, RecordWord.MN], words[i, RecordWord.K_OP_DTYPE], words[i, RecordWord.SLOTS_AB]
        c_request, step = words[i, RecordWord.SLOT_C_REQUEST], words[i, RecordWord.STEP_TOKEN]
        data[slot, RecordWord.SEQ], data[slot, RecordWord.ENQUEUE_NS] = np.uint64(seq + i), np.uint64(enqueue_ns)
        data[slot, RecordWord.MN], data[slot, RecordWord.K_OP_DTYPE], data[slot, RecordWord.SLOTS_AB] = mn, key, a_b
        data[slot, RecordWord.SLOT_C_REQUEST], data[slot, RecordWord.STEP_TOKEN] = c_request, step
        store_release(data, (slot, RecordWord.TURN), place + np.uint64(1))
    store_release(header, HeaderWord.HEAD, head + np.uint64(count))
    return count


@compiled
def fetch_free_slots(header: Words, data: Words, first: Int, stop: Int) -> Int:
    """Fetch the cache lines of slots `first` to `stop` from the head on, while they are free; return where it stopped.

    The consumer's core read each slot last, so this core must fetch its line before it can write it. A fetch before the
    record is known delays no record. It is a store to RecordWord.SEQ, which the consumer reads only after the slot is
    published again. The store leaves the turn, which the consumer polls, as it is.
    """
    mask, head = np.uint64(len(data) - 1), header[HeaderWord.HEAD]
    free: Int = free_slots(header, data, stop)
    for i in range(first, free):
        data[(head + np.uint64(i)) & mask, RecordWord.SEQ] = np.uint64(0)
    return max(first, free)


@compiled
def records_ahead(ready: Table, progress: Table) -> Int:
    """Return the number of records of prepared steps that were neither issued nor pushed early."""
    count = 0
    for place in range(len(ready)):
        if ready[place, ReadyColumn.REQUEST] != NOBODY and ready[place, ReadyColumn.IS_ISSUED] == 0:
            early = progress[ready[place, ReadyColumn.REQUEST], ProgressColumn.EARLY]
            count += ready[place, ReadyColumn.COUNT] - early
    return count


@compiled
def prepare_next(first: Int, stream: StreamArrays, progress: Table, ahead: Ahead) -> Int:
    """Find the first issued step from place `first` on, and prepare its request's next step.

    Return the place after it, or the number of places if there is no such step.
    """
    blocks, ready = ahead.blocks, ahead.ready
    for place in range(first, len(ready)):
        request = ready[place, ReadyColumn.REQUEST]
        if request != NOBODY and ready[place, ReadyColumn.IS_ISSUED] != 0:
            last_token = token_of(blocks[place], ready[place, ReadyColumn.COUNT] - 1)
            token = progress[request, ProgressColumn.TOKENS_DONE]
            if last_token != NO_TOKEN:
                token = last_token + 1
            prepare_step(request, ready[place, ReadyColumn.STEP] + 1, token, stream, progress, ahead)
            return place + 1
    return len(ready)
