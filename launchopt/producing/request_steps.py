"""Single requests in the driver: they arrive, issue steps, and end.

The compiled loop (`driver_loop`) calls these functions. Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.command import LOW_HALF, NO_TOKEN, WORDS, RecordWord
from launchopt.native import compiled, monotonic_ns
from launchopt.producing.continuous import DriverWord, ListArrays, RequestLists, next_kind
from launchopt.producing.early_records import lacks_last, steps_together
from launchopt.producing.prepared_steps import (
    Ahead,
    AheadArrays,
    DriverSetting,
    ProgressColumn,
    ReadyColumn,
    StreamArrays,
    next_step,
    under_way,
)
from launchopt.records import GOES_ON, ROUND_END, request_of, token_of
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.types import Int, Table, Words

FAR_NS = 1 << 62  # in WAKE_NS if no further request will be due


class IssueWord(enum.IntEnum):
    """Words of `DriverArrays.issue`: the requests that take part in a round."""

    COUNT = 0  # requests of the round
    ISSUED = 1  # requests of the round whose step was issued
    REQUESTS = 2  # first of COUNT words: the requests


class TokenTimes(NamedTuple):
    """Times and ids of every token, by request. Times are CLOCK_MONOTONIC ns."""

    issue_ns: Table  # [tokens]: time at which the token's first step was issued
    done_ns: Table  # [tokens]: time at which the driver was notified that the token is complete
    ids: Table  # [tokens]: sampled ids; negative: no id was sampled


class DriverArrays(NamedTuple):
    """The arrays of one run of the driver."""

    order: Table  # requests that follow no other request, in order of arrival
    state: Table  # [DriverWord]
    progress: Table  # [requests, ProgressColumn]
    tokens: TokenTimes
    lists: RequestLists
    issue: Table  # [IssueWord.REQUESTS + requests]
    ahead: Ahead
    got: Words  # [MOST_PLACES, WORDS]: memory for records of the second ring


TimeArrays = tuple[Table, Table, Table]  # the fields of TokenTimes, as Python passes them
# The fields of DriverArrays, as Python passes them.
DriverFields = tuple[Table, Table, Table, TimeArrays, ListArrays, Table, AheadArrays, Words]


@compiled
def emit(request: Int, now_ns: Int, stream: StreamArrays, run: DriverArrays) -> None:
    """Issue a request's next step: its records become the block that is pushed next, except those pushed early."""
    state, progress, issue_ns = run.state, run.progress[request], run.tokens.issue_ns
    token = progress[ProgressColumn.TOKENS_DONE] + under_way(request, run.progress)
    at = stream.table[request, ChainColumn.FIRST_TOKEN] + token
    enqueue_ns = progress[ProgressColumn.ARRIVED_NS] if progress[ProgressColumn.ISSUED] == 0 else now_ns
    place = next_step(request, stream, run.progress, run.ahead)
    count = run.ahead.ready[place, ReadyColumn.COUNT]
    if issue_ns[at] == 0:
        issue_ns[at] = now_ns
    early, progress[ProgressColumn.EARLY] = progress[ProgressColumn.EARLY], 0
    progress[ProgressColumn.ENDED_AT] = state[DriverWord.SEQ] + count - early
    state[DriverWord.BLOCK], state[DriverWord.BLOCK_NS] = place, enqueue_ns
    state[DriverWord.BLOCK_NEXT], state[DriverWord.BLOCK_COUNT] = early, count
    state[DriverWord.OUTSTANDING] += 1
    state[DriverWord.NEXT_AHEAD] = state[DriverWord.FETCHED] = 0


@compiled
def emit_together(request: Int, steps: Int, now_ns: Int, stream: StreamArrays, run: DriverArrays) -> None:
    """Issue the first of `steps` steps of a request that are issued together; `emit_rest` issues the others.

    Steps whose records were all pushed early are issued as well.
    """
    state, progress, issue_ns = run.state, run.progress[request], run.tokens.issue_ns
    early = progress[ProgressColumn.EARLY_STEPS]
    if early > 0:
        first = stream.table[request, ChainColumn.FIRST_TOKEN] + progress[ProgressColumn.TOKENS_DONE]
        issue_ns[first : first + early] = now_ns
        progress[ProgressColumn.EARLY_STEPS] = 0
        progress[ProgressColumn.ISSUED] += early
        state[DriverWord.OUTSTANDING] += early
    state[DriverWord.TOGETHER], state[DriverWord.TOGETHER_LEFT] = request, steps - early
    emit_rest(now_ns, stream, run)


@compiled
def emit_rest(now_ns: Int, stream: StreamArrays, run: DriverArrays) -> None:
    """Issue the next of the steps that are issued together. Mark its last record if it ends no round and others follow.

    In rounds, the last record of the last step of the round's last request is marked with ROUND_END.
    """
    state, issue = run.state, run.issue
    emit(state[DriverWord.TOGETHER], now_ns, stream, run)
    state[DriverWord.TOGETHER_LEFT] -= 1
    last = run.ahead.blocks[state[DriverWord.BLOCK], state[DriverWord.BLOCK_COUNT] - 1]
    if state[DriverWord.TOGETHER_LEFT] > 0:
        last[RecordWord.K_OP_DTYPE] |= GOES_ON
    elif issue[IssueWord.COUNT] > 0 and issue[IssueWord.ISSUED] == issue[IssueWord.COUNT]:
        last[RecordWord.K_OP_DTYPE] |= ROUND_END


@compiled
def emit_queued(stream: StreamArrays, run: DriverArrays) -> None:
    """Issue the next step of the first request in the queue.

    If only the step's last record is left to push, also issue the steps of the requests behind it for which this holds.
    Their last records become one block, in the last place of `ahead`, which belongs to no request. If they were pushed
    one by one, each push would take the cache line of the next slot away from the polling consumer.
    """
    state, queue, blocks, ready = run.state, run.lists.queue, run.ahead.blocks, run.ahead.ready
    lasts, count, now_ns = len(ready), 0, monotonic_ns()
    while state[DriverWord.QUEUE_FIRST] != state[DriverWord.QUEUE_STOP]:
        request = queue[state[DriverWord.QUEUE_FIRST] & (len(queue) - 1)]
        is_last = lacks_last(request, stream, run.progress, ready)
        if count > 0 and not is_last:
            break
        state[DriverWord.QUEUE_FIRST] += 1
        emit_together(request, steps_together(request, stream, run.progress), now_ns, stream, run)
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
    """Remove a request that has ended from the list of requests that take part in rounds."""
    for i in range(state[DriverWord.RUNNING]):
        if running[i] == request:
            for j in range(i, state[DriverWord.RUNNING] - 1):
                running[j] = running[j + 1]
            state[DriverWord.RUNNING] -= 1
            break


@compiled
def complete(i: Int, now_ns: Int, stream: StreamArrays, run: DriverArrays) -> None:
    """Record that the step of record i of `got` has ended: store its token, and queue or end its request."""
    state, progress, tokens, lists = run.state, run.progress, run.tokens, run.lists
    request, token = request_of(run.got, i), token_of(run.got, i)
    state[DriverWord.OUTSTANDING] -= 1
    progress[request, ProgressColumn.STEPS] += 1
    if token != NO_TOKEN:
        at = stream.table[request, ChainColumn.FIRST_TOKEN] + token
        tokens.done_ns[at] = now_ns
        tokens.ids[at] = np.int64(np.int32(run.got[i, RecordWord.SLOTS_AB] & LOW_HALF))  # NO_ID is negative
        progress[request, ProgressColumn.TOKENS_DONE] += 1
    if under_way(request, progress) > 0:
        return
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
def arrivals(run: DriverArrays) -> None:
    """Queue the requests that are due, and write the time at which the next request is due to WAKE_NS."""
    order, state, progress, later = run.order, run.state, run.progress, run.lists.later
    state[DriverWord.WAKE_NS] = FAR_NS
    if state[DriverWord.NEXT_ARRIVAL] == len(order) and state[DriverWord.LATER] == 0:
        return  # before the clock is read: a reading costs as much as the rest of the loop
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
