"""Continuous scheduling: which requests take part in the next round.

Requests that generate tokens come first, then prompts, within the budget of columns. Then requests join from the queue.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from launchopt.native import compiled
from launchopt.producing.prepared_steps import DriverSetting, ProgressColumn, StreamArrays, kind_of
from launchopt.records import columns_of
from launchopt.types import Int, Table


class DriverWord(enum.IntEnum):
    """Words of the driver's `state`."""

    QUEUE_FIRST = 0  # requests that wait in the queue are those from here
    QUEUE_STOP = 1  # to here
    RUNNING = 2  # requests that take part in rounds
    NEXT_ARRIVAL = 3  # of the requests in order of arrival the first that has not come
    BLOCK_NEXT = 4  # of the block that is being pushed the first record that was not
    BLOCK_COUNT = 5  # records of that block
    SEQ = 6  # records pushed
    FINISHED = 7  # requests that have ended
    OUTSTANDING = 8  # steps that were issued and have not ended
    LATER = 9  # followers that are not due yet
    WAKE_NS = 10  # when the next request is due
    BLOCK = 11  # place of the block that is being pushed
    BLOCK_NS = 12  # when the block's commands arrived
    NEXT_AHEAD = 13  # the first place whose next step is not prepared
    TO_OWN = 14  # slots from the head on that the prepared steps will go to, known when all are prepared
    OWNED = 15  # of those, how many are this core's own since the last step was issued


class RequestLists(NamedTuple):
    """Lists of requests."""

    queue: Table  # [a power of two]: requests that are to go on
    running: Table  # [requests]: requests that take part in rounds
    later: Table  # [requests]: followers that are not due yet
    child: Table  # [requests]: the first follower of each, or -1
    sibling: Table  # [requests]: the next follower of the same request, or -1


ListArrays = tuple[Table, Table, Table, Table, Table]  # the fields of RequestLists, as Python passes them


@compiled
def next_kind(request: Int, stream: StreamArrays, progress: Table) -> Int:
    """Return the kind of a request's next step, -1 when it has none."""
    return kind_of(request, progress[request, ProgressColumn.STEPS], stream.table, stream.settings)


@compiled
def _columns(request: Int, stream: StreamArrays, progress: Table) -> Int:
    """Return the columns of a request's next step."""
    kind = next_kind(request, stream, progress)
    return columns_of(stream.template, 0 if kind == 0 else stream.stops[kind - 1])


@compiled
def form_step(stream: StreamArrays, state: Table, progress: Table, lists: RequestLists, issue: Table) -> Int:
    """Write the requests that take part in the next round to `issue`; return how many there are."""
    settings, queue, running = stream.settings, lists.queue, lists.running
    left, count = settings[DriverSetting.BUDGET], 0
    for wants_prompt in range(2):  # tokens first, then prompts with what is left
        for i in range(state[DriverWord.RUNNING]):
            request = running[i]
            is_prompt = next_kind(request, stream, progress) != settings[DriverSetting.DECODE_KIND]
            columns = _columns(request, stream, progress)
            if is_prompt == (wants_prompt == 1) and (columns <= left or count == 0):
                issue[count] = request
                count += 1
                left -= columns
    while (
        state[DriverWord.QUEUE_FIRST] != state[DriverWord.QUEUE_STOP]
        and state[DriverWord.RUNNING] < settings[DriverSetting.MOST_RUNNING]
    ):
        request = queue[state[DriverWord.QUEUE_FIRST] & (len(queue) - 1)]
        columns = _columns(request, stream, progress)
        if columns > left and count > 0:
            break
        state[DriverWord.QUEUE_FIRST] += 1
        running[state[DriverWord.RUNNING]] = request
        state[DriverWord.RUNNING] += 1
        issue[count] = request
        count += 1
        left -= columns
    return count
