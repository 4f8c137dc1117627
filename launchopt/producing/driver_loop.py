"""The compiled loop of the driver: which request is due, which step has ended, which step comes next.

It pushes the records of the next step into the ring. While it waits it prepares later steps (`prepared_steps`). Times
are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.command import LOW_HALF, NO_TOKEN, W_K_OP_DTYPE, W_SLOT_A_B, WORDS
from launchopt.native import compiled, cpu_pause, monotonic_ns
from launchopt.producing.continuous import DriverWord, ListArrays, RequestLists, form_step, next_kind
from launchopt.producing.prepared_steps import (
    Ahead,
    AheadArrays,
    DriverSetting,
    ProgressColumn,
    ReadyColumn,
    StreamArrays,
    StreamFields,
    lacks_last,
    next_step,
    own_room,
    prepare_next,
    push_early,
    push_step,
    records_ahead,
)
from launchopt.queue.ring import RingArrays, RingWords, has_record, pop_words
from launchopt.records import ROUND_END, request_of, token_of
from launchopt.types import Int, Table, Words
from launchopt.workloads import chain as ch

POLLS = 16  # looks for a step that has ended between two looks at the clock
OWNED_AT_ONCE = 64  # slots between two such looks: under 1 us where another core has their lines
EARLY_AT_ONCE = 64  # records, likewise
MOST_OWNED = 8192  # slots: 512 KiB, which a core's own cache holds; more would drive out those owned first
FAR_NS = 1 << 62


class DriverExit(enum.IntEnum):
    """Why the loop came back."""

    DONE = 0  # every request has ended
    BLOCKED = 1  # the ring is full
    IDLE = 2  # nothing happened for SPIN_NS: sleep


class IssueWord(enum.IntEnum):
    """Words of `DriverArrays.issue`: the requests that take part in a round."""

    COUNT = 0  # how many there are
    ISSUED = 1  # how many of their steps were issued
    REQUESTS = 2  # from here: the requests


class TokenTimes(NamedTuple):
    """What became of every token, in order of request."""

    issue_ns: Table  # [tokens]: when its step was issued
    done_ns: Table  # [tokens]: when the driver was notified
    ids: Table  # [tokens]


class DriverArrays(NamedTuple):
    """What belongs to one run of the driver."""

    order: Table  # requests that depend on no other, by arrival
    state: Table  # [DriverWord]
    progress: Table  # [requests, ProgressColumn]
    tokens: TokenTimes
    lists: RequestLists
    issue: Table  # [IssueWord.REQUESTS + requests]
    ahead: Ahead
    got: Words  # [at once, WORDS]: records of the second ring


TimeArrays = tuple[Table, Table, Table]  # the fields of TokenTimes, as Python passes them
# The fields of DriverArrays, likewise.
DriverFields = tuple[Table, Table, Table, TimeArrays, ListArrays, Table, AheadArrays, Words]


@compiled
def _emit(request: Int, now_ns: Int, stream: StreamArrays, run: DriverArrays) -> None:
    """Issue a request's next step: its place is in BLOCK, and BLOCK_NEXT is its first record not pushed early."""
    state, progress, issue_ns = run.state, run.progress[request], run.tokens.issue_ns
    at = stream.table[request, ch.FIRST_TOKEN] + progress[ProgressColumn.TOKENS_DONE]
    enqueue_ns = progress[ProgressColumn.ARRIVED_NS] if progress[ProgressColumn.STEPS] == 0 else now_ns
    place = next_step(request, stream, run.progress, run.ahead)
    count = run.ahead.ready[place, ReadyColumn.COUNT]
    if issue_ns[at] == 0:
        issue_ns[at] = now_ns
    early, progress[ProgressColumn.EARLY] = progress[ProgressColumn.EARLY], 0
    progress[ProgressColumn.ENDED_AT] = state[DriverWord.SEQ] + count - early
    state[DriverWord.BLOCK], state[DriverWord.BLOCK_NS] = place, enqueue_ns
    state[DriverWord.BLOCK_NEXT], state[DriverWord.BLOCK_COUNT] = early, count
    state[DriverWord.OUTSTANDING] += 1
    state[DriverWord.NEXT_AHEAD] = state[DriverWord.OWNED] = 0


@compiled
def _emit_queued(stream: StreamArrays, run: DriverArrays) -> None:
    """Issue the next step of the first request in the queue, and of those behind it that lack their last record alone.

    These records become one block, in the last place of `ahead`, which belongs to no request. Pushed one by one, each
    would take the cache line of the next slot away from the consumer that looks for it.
    """
    state, queue, blocks, ready = run.state, run.lists.queue, run.ahead.blocks, run.ahead.ready
    lasts, count, now_ns = len(ready), 0, monotonic_ns()
    while state[DriverWord.QUEUE_FIRST] != state[DriverWord.QUEUE_STOP]:
        request = queue[state[DriverWord.QUEUE_FIRST] & (len(queue) - 1)]
        is_last = lacks_last(request, run.progress, ready)
        if count > 0 and not is_last:
            break
        state[DriverWord.QUEUE_FIRST] += 1
        _emit(request, now_ns, stream, run)
        if not is_last:
            return
        for w in range(WORDS):
            blocks[lasts, count, w] = blocks[state[DriverWord.BLOCK], state[DriverWord.BLOCK_NEXT], w]
        run.progress[request, ProgressColumn.ENDED_AT] += count
        count += 1
        if count == blocks.shape[1]:
            break
    state[DriverWord.BLOCK], state[DriverWord.BLOCK_NEXT], state[DriverWord.BLOCK_COUNT] = lasts, 0, count


@compiled
def _enqueue(request: Int, state: Table, queue: Table) -> None:
    queue[state[DriverWord.QUEUE_STOP] & (len(queue) - 1)] = request
    state[DriverWord.QUEUE_STOP] += 1


@compiled
def _arrive(request: Int, run: DriverArrays) -> None:
    run.progress[request, ProgressColumn.NOTICED_NS] = monotonic_ns()
    _enqueue(request, run.state, run.lists.queue)


@compiled
def _stop_running(request: Int, state: Table, running: Table) -> None:
    """Take a request that has ended off the list of those that take part in rounds."""
    for i in range(state[DriverWord.RUNNING]):
        if running[i] == request:
            for j in range(i, state[DriverWord.RUNNING] - 1):
                running[j] = running[j + 1]
            state[DriverWord.RUNNING] -= 1
            break


@compiled
def _complete(i: Int, now_ns: Int, stream: StreamArrays, run: DriverArrays) -> None:
    """Note that the step of record i of `got` has ended: its token, and what its request does next."""
    state, progress, tokens, lists = run.state, run.progress, run.tokens, run.lists
    request, token = request_of(run.got, i), token_of(run.got, i)
    state[DriverWord.OUTSTANDING] -= 1
    progress[request, ProgressColumn.STEPS] += 1
    if token != NO_TOKEN:
        at = stream.table[request, ch.FIRST_TOKEN] + token
        tokens.done_ns[at] = now_ns
        tokens.ids[at] = np.int64(np.int32(run.got[i, W_SLOT_A_B] & LOW_HALF))  # NO_ID is negative
        progress[request, ProgressColumn.TOKENS_DONE] += 1
    is_continuous = stream.settings[DriverSetting.CONTINUOUS] != 0
    if next_kind(request, stream, progress) >= 0:
        if not is_continuous:
            _enqueue(request, state, lists.queue)
        return
    state[DriverWord.FINISHED] += 1
    if is_continuous:
        _stop_running(request, state, lists.running)
    follower = lists.child[request]
    while follower >= 0:
        progress[follower, ProgressColumn.ARRIVED_NS] = max(progress[follower, ProgressColumn.ARRIVED_NS], now_ns)
        lists.later[state[DriverWord.LATER]] = follower
        state[DriverWord.LATER] += 1
        follower = lists.sibling[follower]


@compiled
def _arrivals(run: DriverArrays) -> None:
    """Enqueue the requests that are due by now, and note when the next one is."""
    order, state, progress, later = run.order, run.state, run.progress, run.lists.later
    state[DriverWord.WAKE_NS] = FAR_NS
    if state[DriverWord.NEXT_ARRIVAL] == len(order) and state[DriverWord.LATER] == 0:
        return  # without a reading of the clock, which costs as much as the rest of the loop
    now_ns = monotonic_ns()
    while state[DriverWord.NEXT_ARRIVAL] < len(order):
        request = order[state[DriverWord.NEXT_ARRIVAL]]
        if progress[request, ProgressColumn.ARRIVED_NS] > now_ns:
            state[DriverWord.WAKE_NS] = progress[request, ProgressColumn.ARRIVED_NS]
            break
        _arrive(request, run)
        state[DriverWord.NEXT_ARRIVAL] += 1
    i = 0
    while i < state[DriverWord.LATER]:
        request = later[i]
        if progress[request, ProgressColumn.ARRIVED_NS] <= now_ns:
            _arrive(request, run)
            state[DriverWord.LATER] -= 1
            later[i] = later[state[DriverWord.LATER]]
        else:
            state[DriverWord.WAKE_NS] = min(state[DriverWord.WAKE_NS], progress[request, ProgressColumn.ARRIVED_NS])
            i += 1


@compiled
def _get_ahead(ring: RingWords, stream: StreamArrays, run: DriverArrays) -> bool:
    """Do a piece of what can be done before a step may be issued; return whether there was any.

    Prepare steps first; where steps are pushed ahead, push all their records but the last; then own room for the rest.
    """
    state, progress, ready = run.state, run.progress, run.ahead.ready
    if state[DriverWord.NEXT_AHEAD] < len(ready):
        state[DriverWord.NEXT_AHEAD] = prepare_next(state[DriverWord.NEXT_AHEAD], stream, progress, run.ahead)
        if state[DriverWord.NEXT_AHEAD] == len(ready):
            state[DriverWord.TO_OWN] = min(records_ahead(ready, progress), MOST_OWNED)
        return True
    if stream.settings[DriverSetting.AHEAD] != 0:
        early = push_early(ring, EARLY_AT_ONCE, state[DriverWord.SEQ], progress, run.ahead)
        if early > 0:
            state[DriverWord.SEQ] += early
            state[DriverWord.OWNED] = max(0, state[DriverWord.OWNED] - early)
            state[DriverWord.TO_OWN] = min(records_ahead(ready, progress), MOST_OWNED)
            return True
    owned, to_own = state[DriverWord.OWNED], state[DriverWord.TO_OWN]
    if owned < to_own:
        state[DriverWord.OWNED] = own_room(ring.header, ring.data, owned, min(to_own, owned + OWNED_AT_ONCE))
    return bool(state[DriverWord.OWNED] > owned)  # no: all is done, or there is no room yet


@compiled
def _spun(ring: RingWords, back: RingWords, stream: StreamArrays, run: DriverArrays) -> bool:
    """Get ahead until a step has ended or a request is due; return False where SPIN_NS passed first."""
    now_ns = monotonic_ns()
    until_ns = now_ns + stream.settings[DriverSetting.SPIN_NS]
    while now_ns < min(until_ns, run.state[DriverWord.WAKE_NS]):
        is_busy = _get_ahead(ring, stream, run)
        for _ in range(POLLS):
            if has_record(back.header, back.data):
                return True
            if is_busy:
                break  # a piece may be long: look at the clock after each
            cpu_pause()
        now_ns = monotonic_ns()
    return bool(now_ns < until_ns)


@compiled
def _push_block(ring: RingWords, run: DriverArrays) -> bool:
    """Push what is left of the block; return whether the ring had room for all of it."""
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
    """Issue the next step of the round; mark the last record of the last one."""
    state, issue = run.state, run.issue
    request = issue[IssueWord.REQUESTS + issue[IssueWord.ISSUED]]
    issue[IssueWord.ISSUED] += 1
    _emit(request, monotonic_ns(), stream, run)
    if issue[IssueWord.ISSUED] == issue[IssueWord.COUNT]:
        last = state[DriverWord.BLOCK_COUNT] - 1
        run.ahead.blocks[state[DriverWord.BLOCK], last, W_K_OP_DTYPE] |= ROUND_END


@compiled
def _take_ended(back: RingWords, stream: StreamArrays, run: DriverArrays) -> None:
    """Take the notifications of steps that have ended."""
    while has_record(back.header, back.data):
        count = pop_words(back.header, back.data, run.got)
        now_ns = monotonic_ns()
        for i in range(count):
            _complete(i, now_ns, stream, run)


@compiled
def _drive(ring: RingWords, back: RingWords, stream: StreamArrays, run: DriverArrays) -> Int:
    """Run until Python is needed, and say for what."""
    settings, state, issue = stream.settings, run.state, run.issue
    while True:
        _arrivals(run)  # before all else: a full ring is no reason to be late
        if not _push_block(ring, run):
            return DriverExit.BLOCKED
        if issue[IssueWord.COUNT] > issue[IssueWord.ISSUED]:
            _emit_round(stream, run)
            continue
        _take_ended(back, stream, run)
        if state[DriverWord.FINISHED] == settings[DriverSetting.REQUESTS]:
            return DriverExit.DONE
        if settings[DriverSetting.CONTINUOUS] == 0:
            if state[DriverWord.QUEUE_FIRST] != state[DriverWord.QUEUE_STOP]:
                _emit_queued(stream, run)
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

    Arguments are the fields of two RingWords, StreamArrays and DriverArrays, nested likewise.
    """
    order, state, progress, tokens, lists, issue, ahead, got = run
    named = (TokenTimes(*tokens), RequestLists(*lists), Ahead(*ahead))
    arrays = DriverArrays(order, state, progress, named[0], named[1], issue, named[2], got)
    return np.int64(_drive(RingWords(*ring), RingWords(*back), StreamArrays(*stream), arrays))
