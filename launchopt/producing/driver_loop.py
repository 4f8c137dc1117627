"""The compiled loop of the driver: it queues requests, takes notifications of ended steps, and issues steps.

To issue a step the loop pushes its records into the ring. While the loop waits it prepares later steps
(`prepared_steps`). `request_steps` has the functions about single requests. Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import enum

import numpy as np

from launchopt.native import compiled, cpu_pause, monotonic_ns
from launchopt.producing.continuous import DriverWord, RequestLists, form_step
from launchopt.producing.early_records import push_early
from launchopt.producing.prepared_steps import (
    Ahead,
    DriverSetting,
    StreamArrays,
    StreamFields,
    fetch_free_slots,
    prepare_next,
    push_step,
    records_ahead,
)
from launchopt.producing.request_steps import (
    DriverArrays,
    DriverFields,
    IssueWord,
    TokenTimes,
    arrivals,
    complete,
    emit_queued,
    emit_rest,
    emit_together,
)
from launchopt.queue.ring import has_record, pop_words
from launchopt.queue.segment import RingArrays, RingWords
from launchopt.types import Int

POLLS = 16  # polls of the second ring between two readings of the clock
FETCHED_AT_ONCE = 64  # slots whose cache lines are fetched between two polls: under 1 us if another core has the lines
EARLY_AT_ONCE = 64  # records that are pushed early between two polls
MOST_FETCHED = 8192  # slots, 512 KiB: more would not fit into the core's own cache


class DriverExit(enum.IntEnum):
    """Reasons why the loop returns to Python."""

    DONE = 0  # every request has ended
    BLOCKED = 1  # the ring is full
    IDLE = 2  # no step ended and no request was due for SPIN_NS: Python sleeps


@compiled
def _get_ahead(ring: RingWords, stream: StreamArrays, run: DriverArrays) -> bool:
    """Do one piece of work that is possible before a step may be issued; return False if there was no such work.

    First prepare steps. Then push all records of each step but the last, if steps are pushed ahead. Then fetch the
    cache lines of the ring's slots that the other records will go to.
    """
    state, progress, ready = run.state, run.progress, run.ahead.ready
    if state[DriverWord.NEXT_AHEAD] < len(ready):
        state[DriverWord.NEXT_AHEAD] = prepare_next(state[DriverWord.NEXT_AHEAD], stream, progress, run.ahead)
        if state[DriverWord.NEXT_AHEAD] == len(ready):
            state[DriverWord.TO_FETCH] = min(records_ahead(ready, progress), MOST_FETCHED)
        return True
    if stream.settings[DriverSetting.AHEAD] != 0:
        early = push_early(ring, EARLY_AT_ONCE, state[DriverWord.SEQ], stream, progress, run.ahead)
        if early > 0:
            state[DriverWord.SEQ] += early
            state[DriverWord.FETCHED] = max(0, state[DriverWord.FETCHED] - early)
            state[DriverWord.TO_FETCH] = min(records_ahead(ready, progress), MOST_FETCHED)
            return True
    fetched, to_fetch = state[DriverWord.FETCHED], state[DriverWord.TO_FETCH]
    if fetched < to_fetch:
        state[DriverWord.FETCHED] = fetch_free_slots(
            ring.header, ring.data, fetched, min(to_fetch, fetched + FETCHED_AT_ONCE)
        )
    return bool(state[DriverWord.FETCHED] > fetched)  # False: all slots are fetched, or the ring is full


@compiled
def _spun(ring: RingWords, back: RingWords, stream: StreamArrays, run: DriverArrays) -> bool:
    """Work ahead until a step has ended or a request is due; return False if SPIN_NS passed first."""
    now_ns = monotonic_ns()
    until_ns = now_ns + stream.settings[DriverSetting.SPIN_NS]
    while now_ns < min(until_ns, run.state[DriverWord.WAKE_NS]):
        is_busy = _get_ahead(ring, stream, run)
        for _ in range(POLLS):
            if has_record(back.header, back.data):
                return True
            if is_busy:
                break  # a piece of work may take long: read the clock after each
            cpu_pause()
        now_ns = monotonic_ns()
    return bool(now_ns < until_ns)


@compiled
def _push_block(ring: RingWords, run: DriverArrays) -> bool:
    """Push the rest of the block; return whether the ring had space for all of it."""
    state = run.state
    if state[DriverWord.BLOCK_NEXT] < state[DriverWord.BLOCK_COUNT]:
        records = run.ahead.blocks[state[DriverWord.BLOCK]]
        block = records[state[DriverWord.BLOCK_NEXT] : state[DriverWord.BLOCK_COUNT]]
        pushed = push_step(ring.header, ring.data, block, state[DriverWord.SEQ], state[DriverWord.BLOCK_NS])
        state[DriverWord.BLOCK_NEXT] += pushed
        state[DriverWord.SEQ] += pushed
    return bool(state[DriverWord.BLOCK_NEXT] == state[DriverWord.BLOCK_COUNT])


@compiled
def _emit_round(stream: StreamArrays, run: DriverArrays) -> None:
    """Issue the steps of the round's next request."""
    issue = run.issue
    request = issue[IssueWord.REQUESTS + issue[IssueWord.ISSUED]]
    issue[IssueWord.ISSUED] += 1
    emit_together(request, run.state[DriverWord.ROUND_STEPS], monotonic_ns(), stream, run)


@compiled
def _take_ended(back: RingWords, stream: StreamArrays, run: DriverArrays) -> None:
    """Pop the notifications of steps that have ended from the second ring."""
    while has_record(back.header, back.data):
        count = pop_words(back.header, back.data, run.got)
        now_ns = monotonic_ns()
        for i in range(count):
            complete(i, now_ns, stream, run)


@compiled
def _drive(ring: RingWords, back: RingWords, stream: StreamArrays, run: DriverArrays) -> Int:
    """Run until every request has ended, or Python is needed; return the DriverExit."""
    settings, state, issue = stream.settings, run.state, run.issue
    while True:
        arrivals(run)  # before the push: a full ring must not delay the times of arrival
        if not _push_block(ring, run):
            return DriverExit.BLOCKED
        if state[DriverWord.TOGETHER_LEFT] > 0:
            _take_ended(back, stream, run)  # of other requests
            emit_rest(monotonic_ns(), stream, run)
            continue
        if issue[IssueWord.COUNT] > issue[IssueWord.ISSUED]:
            _emit_round(stream, run)
            continue
        _take_ended(back, stream, run)
        if state[DriverWord.FINISHED] == settings[DriverSetting.REQUESTS]:
            return DriverExit.DONE
        if settings[DriverSetting.CONTINUOUS] == 0:
            if state[DriverWord.QUEUE_FIRST] != state[DriverWord.QUEUE_STOP]:
                emit_queued(stream, run)
                continue
        elif state[DriverWord.OUTSTANDING] == 0:
            issue[IssueWord.ISSUED] = 0
            issue[IssueWord.COUNT] = form_step(stream, state, run.progress, run.lists, issue[IssueWord.REQUESTS :])
            if issue[IssueWord.COUNT] > 0:
                continue
        if not _spun(ring, back, stream, run):
            return DriverExit.IDLE


@compiled
def drive(ring: RingArrays, back: RingArrays, stream: StreamFields, run: DriverFields) -> Int:
    """Run until every request has ended, or Python is needed; return the DriverExit, as an integer.

    Arguments are the fields of two RingWords, StreamArrays and DriverArrays, nested in the same way.
    """
    order, state, progress, tokens, lists, issue, ahead, got = run
    named = (TokenTimes(*tokens), RequestLists(*lists), Ahead(*ahead))
    arrays = DriverArrays(order, state, progress, named[0], named[1], issue, named[2], got)
    return np.int64(_drive(RingWords(*ring), RingWords(*back), StreamArrays(*stream), arrays))
