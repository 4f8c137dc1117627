"""Continuous scheduling: choose the requests that take part in the next round.

A round is a set of steps, at most one per request, which are issued together. Running requests that generate tokens
come first. Then running requests with chunks of a prompt get the rest of the budget of columns. Then requests join
from the queue. A request that finds tokens of its prompt in the cache joins once the steps that compute these have
ended. Until then, requests behind it in the queue may pass it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from launchopt.native import compiled
from launchopt.producing.early_records import steps_together
from launchopt.producing.prepared_steps import DriverSetting, ProgressColumn, StreamArrays, kind_of
from launchopt.records import columns_of
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.types import Int, Table


class DriverWord(enum.IntEnum):
    """Words of the driver's `state`."""

    QUEUE_FIRST = 0  # number of the first request in the queue; its index is this number modulo the queue's size
    QUEUE_STOP = 1  # one past the number of the last request in the queue
    RUNNING = 2  # number of requests that take part in rounds
    NEXT_ARRIVAL = 3  # index in `order` of the first request that has not arrived
    BLOCK_NEXT = 4  # first record of the current block that was not pushed
    BLOCK_COUNT = 5  # records of the current block
    SEQ = 6  # records pushed so far
    FINISHED = 7  # requests that have ended
    OUTSTANDING = 8  # steps that were issued and have not ended
    LATER = 9  # number of followers in `later`
    WAKE_NS = 10  # time at which the next request is due
    BLOCK = 11  # place in `ahead` of the current block, whose records are being pushed
    BLOCK_NS = 12  # time of arrival that the block's records carry
    NEXT_AHEAD = 13  # first place whose next step is not prepared yet
    TO_FETCH = 14  # slots from the ring's head on that the prepared steps will fill
    FETCHED = 15  # slots of these whose cache lines this core has fetched since it issued the last step
    TOGETHER = 16  # request whose steps are being issued together
    TOGETHER_LEFT = 17  # steps of that request that are left to issue
    ROUND_STEPS = 18  # steps of each request in the current round


class RequestLists(NamedTuple):
    """Lists of requests. A follower is a request that arrives only after another request has ended."""

    queue: Table  # [a power of two]: requests whose next step may be issued
    running: Table  # [requests]: requests that take part in rounds
    later: Table  # [requests]: followers of ended requests that are not due yet
    child: Table  # [requests]: the first follower of each, or -1
    sibling: Table  # [requests]: the next follower of the same request, or -1


ListArrays = tuple[Table, Table, Table, Table, Table]  # the fields of RequestLists, as Python passes them


@compiled
def next_kind(request: Int, stream: StreamArrays, progress: Table) -> Int:
    """Return the kind of a request's next step; -1 if the request has no more steps."""
    return kind_of(request, progress[request, ProgressColumn.STEPS], stream.table, stream.settings)


@compiled
def _columns(request: Int, stream: StreamArrays, progress: Table) -> Int:
    """Return the columns of a request's next step."""
    kind = next_kind(request, stream, progress)
    return columns_of(stream.template, 0 if kind == 0 else stream.stops[kind - 1])


@compiled
def _is_held_back(request: Int, table: Table, progress: Table) -> bool:
    """Return whether a step that computes cached tokens of a request has not ended."""
    donor = table[request, ChainColumn.DONOR]
    return bool(donor >= 0 and progress[donor, ProgressColumn.STEPS] < table[request, ChainColumn.DONOR_STEPS])


@compiled
def _leave_queue(at: Int, state: Table, queue: Table) -> None:
    """Remove the request with number `at` from the queue. The requests before it are held back, and stay in order."""
    mask = len(queue) - 1
    for before in range(at, state[DriverWord.QUEUE_FIRST], -1):
        queue[before & mask] = queue[(before - 1) & mask]
    state[DriverWord.QUEUE_FIRST] += 1


@compiled
def form_step(stream: StreamArrays, state: Table, progress: Table, lists: RequestLists, issue: Table) -> Int:
    """Write the requests that take part in the next round to `issue`, and ROUND_STEPS; return their number."""
    settings, queue, running = stream.settings, lists.queue, lists.running
    left, count = settings[DriverSetting.BUDGET], 0
    for wants_prompt in range(2):  # tokens first, then prompts with the rest of the budget
        for i in range(state[DriverWord.RUNNING]):
            request = running[i]
            is_prompt = next_kind(request, stream, progress) != settings[DriverSetting.DECODE_KIND]
            columns = _columns(request, stream, progress)
            if is_prompt == (wants_prompt == 1) and (columns <= left or count == 0):
                issue[count] = request
                count += 1
                left -= columns
    at = state[DriverWord.QUEUE_FIRST]
    while at != state[DriverWord.QUEUE_STOP] and state[DriverWord.RUNNING] < settings[DriverSetting.MOST_RUNNING]:
        request = queue[at & (len(queue) - 1)]
        if _is_held_back(request, stream.table, progress):
            at += 1
            continue
        columns = _columns(request, stream, progress)
        if columns > left and count > 0:
            break
        _leave_queue(at, state, queue)
        at += 1
        running[state[DriverWord.RUNNING]] = request
        state[DriverWord.RUNNING] += 1
        issue[count] = request
        count += 1
        left -= columns
    state[DriverWord.ROUND_STEPS] = settings[DriverSetting.TOGETHER]
    for i in range(count):
        steps = steps_together(issue[i], stream, progress)
        state[DriverWord.ROUND_STEPS] = min(state[DriverWord.ROUND_STEPS], steps)
    return count
