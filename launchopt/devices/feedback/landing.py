"""Compiled code for steps in flight: a step takes off when it is launched, and lands when its result is fed back.

When the last command of a step is launched, `take_off` writes the step's arguments for feedback. The device feeds the
result back on the same CUDA stream, and then writes a word of `done`. The loop polls that word. Then the step lands:
the loop pushes a record into the second ring, which notifies the driver.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.batching.order import Order, land_step
from launchopt.batching.step_buckets import StepBuckets
from launchopt.batching.step_policy import land_step as land_whole_step
from launchopt.command import LOW_HALF, NO_TOKEN, WORDS, RecordWord
from launchopt.native import compiled, load_acquire
from launchopt.queue.ring import push_words
from launchopt.queue.segment import RingArrays, RingWords
from launchopt.records import columns_of, ends_step, join_halves, request_of, slot_c_of, token_of
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.placement import UNIT_BYTES
from launchopt.types import Int, Table, Words

QUIET_NS = 250_000_000  # time without progress of steps in flight after which the device is checked for errors
NOT_YET = np.uint64(0xFFFF_FFFF_8000_0000)  # in `done`: the token is not complete; its id overwrites the lower half


class FlightWord(enum.IntEnum):
    """Words of `Flights.cursor`. Steps are numbered in the order in which they took off."""

    FIRST = 0  # number of the first step in flight
    STOP_AT = 1  # one past the number of the last step in flight
    PROGRESS = 2  # sum of launches and landings at the last check
    SINCE_NS = 3  # time at which PROGRESS changed last


class FeedbackFact(enum.IntEnum):
    """Words of `facts`: sizes of a workload, and addresses of its data. On the CPU addresses are byte offsets."""

    TOKENS = 0  # tokens of the workload
    COLUMN_BYTES = 1  # bytes from one column of an output to the next
    BASE_BYTES = 2  # address of the activations
    HISTORY_BYTES = 3  # address of the history of the tokens' last outputs; 0: no history is kept
    ROW_BYTES = 4  # bytes of a row of the history
    DONE_BYTES = 5  # address of `done`
    HAS_HEAD = 6  # 1: the last output of a token is logits


class StagedRow(enum.IntEnum):
    """Rows of the arguments for feedback, uint64, one column per step."""

    SOURCE = 0  # address of the step's last output
    TARGET = 1  # address of the request's next input
    HISTORY = 2  # address of the step's row of the history; 0: no history is kept
    ID = 3  # address of the step's word of `done`
    DRAW = 4  # token | request << 32: selects the random number


class FlightArrays(NamedTuple):
    """Arrays of the steps in flight, a ring buffer."""

    rows: Words  # [a power of two, WORDS]: the last record of each step
    places: Table  # [a power of two]: index into `done` of each step
    done: Words  # [tokens + requests]: the id of each token, or NOT_YET; the device writes it
    cursor: Table  # [FlightWord]


class FeedbackArrays(NamedTuple):
    """The arrays that a loop needs to feed back results of steps, and to notify the driver."""

    back: RingWords  # the ring to the driver
    ended: Words  # [requests, WORDS]: last records of the steps that end with a batch
    flights: FlightArrays


FlightFields = tuple[Words, Table, Words, Table]  # the fields of FlightArrays, as Python passes them
FeedbackFields = tuple[RingArrays, Words, FlightFields]  # the fields of FeedbackArrays, likewise


@compiled
def collect_ends(words: Words, ended: Words) -> Int:
    """Copy the records of `words` that end a step to `ended`; return their number."""
    count = 0
    for i in range(len(words)):
        if ends_step(words, i):
            for w in range(WORDS):
                ended[count, w] = words[i, w]
            count += 1
    return count


@compiled
def take_off(
    ended: Words, count: Int, table: Table, facts: Table, sampled: Words, plain: Words, flights: FlightFields
) -> Int:
    """Stage the first `count` records of `ended` for feedback, and count their steps as in flight.

    Steps whose token is sampled go to `sampled`, other steps to `plain`; return the number of steps in `sampled`.
    table: the requests of the workload. facts: [FeedbackFact]. sampled, plain: [StagedRow, steps]. flights:
    FlightArrays or its fields.
    """
    rows, places, done, cursor = flights
    mask, samples = len(places) - 1, 0
    for i in range(count):
        request, token = request_of(ended, i), token_of(ended, i)
        ends_token = token != NO_TOKEN
        place = facts[FeedbackFact.TOKENS] + request
        if ends_token:
            place = table[request, ChainColumn.FIRST_TOKEN] + token
        at = cursor[FlightWord.STOP_AT] & mask
        for w in range(WORDS):
            rows[at, w] = ended[i, w]
        places[at] = place
        done[place] = NOT_YET  # all chunks of a request's prompt share one word
        cursor[FlightWord.STOP_AT] += 1
        last_column = columns_of(ended, i) - 1
        source = slot_c_of(ended, i) * UNIT_BYTES + last_column * facts[FeedbackFact.COLUMN_BYTES]
        is_sampled = ends_token and facts[FeedbackFact.HAS_HEAD] != 0
        out, column = (sampled, samples) if is_sampled else (plain, i - samples)
        base, history = facts[FeedbackFact.BASE_BYTES], facts[FeedbackFact.HISTORY_BYTES]
        out[StagedRow.SOURCE, column] = np.uint64(base + source)
        out[StagedRow.TARGET, column] = np.uint64(base + table[request, ChainColumn.LANE] * UNIT_BYTES)
        row = history + place * facts[FeedbackFact.ROW_BYTES]
        out[StagedRow.HISTORY, column] = np.uint64(row) if ends_token and history != 0 else np.uint64(0)
        out[StagedRow.ID, column] = np.uint64(facts[FeedbackFact.DONE_BYTES] + place * 8)
        out[StagedRow.DRAW, column] = join_halves(token, request)
        samples += is_sampled
    return samples


@compiled
def in_flight(feedback: FeedbackArrays | None) -> bool:
    """Return whether steps are in flight. feedback: None if no results are fed back."""
    if feedback is None:
        return False
    cursor = feedback.flights.cursor
    return bool(cursor[FlightWord.FIRST] != cursor[FlightWord.STOP_AT])


@compiled
def _notify_driver(feedback: FeedbackArrays) -> None:
    """Notify the driver of each step that the device has completed, in the order in which the steps took off."""
    rows, places, done, cursor = feedback.flights
    while cursor[FlightWord.FIRST] != cursor[FlightWord.STOP_AT]:
        first = stop = cursor[FlightWord.FIRST] & (len(places) - 1)
        most = min(len(places), first + cursor[FlightWord.STOP_AT] - cursor[FlightWord.FIRST])
        while stop < most:
            token = load_acquire(done, places[stop])
            if token == NOT_YET:
                break
            rows[stop, RecordWord.SLOTS_AB] = token & LOW_HALF
            stop += 1
        if stop == first:
            return
        back = feedback.back
        # The ring always has space, since it holds a record of each step that may be in flight (`Job.back_capacity`).
        push_words(back.header, back.data, rows[first:stop], False)
        cursor[FlightWord.FIRST] += stop - first


@compiled
def land(feedback: FeedbackArrays | None, order: Order | None, steps: StepBuckets | None) -> None:
    """Notify the driver and the batcher of the steps that the device has completed.

    feedback: None if no results are fed back. order, steps: the arrays of the batcher; one of them is None.
    """
    if feedback is not None:
        rows, cursor = feedback.flights.rows, feedback.flights.cursor
        landed = cursor[FlightWord.FIRST]
        _notify_driver(feedback)
        while landed != cursor[FlightWord.FIRST]:
            request = request_of(rows, landed & (len(rows) - 1))
            if order is not None:
                land_step(request, order)
            if steps is not None:
                land_whole_step(request, steps)
            landed += 1


@compiled
def is_quiet(now_ns: Int, launches: Int, cursor: Table) -> bool:
    """Return whether steps are in flight, and no step landed and no launch was made for QUIET_NS.

    Call this before every wait. It returns True at most once per QUIET_NS. launches: number of launches so far. cursor:
    `FlightArrays.cursor`.
    """
    progress = cursor[FlightWord.FIRST] + launches
    if cursor[FlightWord.FIRST] == cursor[FlightWord.STOP_AT] or progress != cursor[FlightWord.PROGRESS]:
        cursor[FlightWord.PROGRESS], cursor[FlightWord.SINCE_NS] = progress, now_ns
        return False
    if now_ns - cursor[FlightWord.SINCE_NS] < QUIET_NS:
        return False
    cursor[FlightWord.SINCE_NS] = now_ns
    return True


@compiled
def feedback_quiet(now_ns: Int, launches: Int, feedback: FeedbackArrays | None) -> bool:
    """Return what `is_quiet` returns; False if no results are fed back."""
    if feedback is None:
        return False
    return is_quiet(now_ns, launches, feedback.flights.cursor)
