"""The compiled loop of the driver: who is due, who is done, whose step comes next, and its records into the ring.

All it knows is in arrays. Never changed: `static` (settings, the stream's table and template) and `order`, requests by
arrival. Changed: `state`; `progress`, a row a request; `tokens`, when each was issued and done, and its id; `lists`
(queue of requests to go on, those that run, followers that are not due yet; each request's first follower and next
sibling); `issue`, what a continuous step is made of; `ahead`, steps prepared, or not yet pushed (`step_records`). Times
are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.command import NO_TOKEN, W_K_OP_DTYPE, W_SLOT_A_B, W_SLOT_C_REQUEST, W_STEP, WORDS, Flag
from launchopt.native import compiled, cpu_pause, monotonic_ns
from launchopt.producing.continuous import QUEUE_FIRST, QUEUE_STOP, RUNNING, form_step, next_kind
from launchopt.producing.prepared_steps import (
    AHEAD,
    ARRIVED_NS,
    CONTINUOUS,
    COUNT,
    EARLY,
    ENDED_AT,
    HIGH,
    LOW,
    NOTICED_NS,
    REQUESTS,
    SPIN_NS,
    STEPS,
    TOKENS_DONE,
    lacks_last,
    next_step,
    own_room,
    prepare_next,
    push_early,
    push_step,
    records_ahead,
)
from launchopt.queue.ring import has_record, pop_words
from launchopt.types import Int, Table, Words
from launchopt.workloads import chain as ch

DONE, BLOCKED, IDLE = range(3)  # why the loop came back
POLLS = 16  # looks at what is done between two at the clock
OWNED_AT_ONCE = 64  # slots between two looks at what is done: under 1 us where another core has their lines
EARLY_AT_ONCE = 64  # records, likewise
MOST_OWNED = 8192  # slots: 512 KiB, which a core's own cache holds; more would drive out those owned first
# Words of `state` behind those of `rounds`. TO_OWN: slots from the head on that the prepared steps will go to, known
# when all are; OWNED: of those, how many are this core's own since the last step was issued.
NEXT_ARRIVAL, BLOCK_NEXT, BLOCK_COUNT, SEQ, FINISHED, OUTSTANDING = range(3, 9)
LATER, WAKE_NS, BLOCK, BLOCK_NS, NEXT_AHEAD, TO_OWN, OWNED = range(9, 16)
STATE_WORDS = 16
ROUND_END = np.uint64(int(Flag.ROUND_END) << 48)  # in its word of a record
FAR_NS = 1 << 62


@compiled
def _emit(request: Int, now_ns: Int, static: Any, state: Table, progress: Table, issue_ns: Table, ahead: Any) -> None:
    """Issue a request's next step: BLOCK is where its records are, of which those not pushed early are to be."""
    table, token = static[1], progress[request, TOKENS_DONE]
    enqueue_ns = progress[request, ARRIVED_NS] if progress[request, STEPS] == 0 else now_ns
    place = next_step(request, static, progress, ahead)
    count = ahead[1][place, COUNT]
    if issue_ns[table[request, ch.FIRST_TOKEN] + token] == 0:
        issue_ns[table[request, ch.FIRST_TOKEN] + token] = now_ns
    early, progress[request, EARLY] = progress[request, EARLY], 0
    progress[request, ENDED_AT] = state[SEQ] + count - early
    state[BLOCK], state[BLOCK_NEXT], state[BLOCK_COUNT], state[BLOCK_NS] = place, early, count, enqueue_ns
    state[OUTSTANDING] += 1
    state[NEXT_AHEAD] = state[OWNED] = 0


@compiled
def _emit_queued(static: Any, state: Table, progress: Table, queue: Table, issue_ns: Table, ahead: Any) -> None:
    """Issue the next step of who is first in the queue, and of those behind it whose last record alone is to be pushed.

    These records become one block, in the last place of `ahead`, which is no request's: pushed one by one each would
    take the cache line of the next slot away from the consumer that looks for it.
    """
    blocks, ready = ahead
    lasts, count, now_ns = len(ready), 0, monotonic_ns()
    while state[QUEUE_FIRST] != state[QUEUE_STOP]:
        request = queue[state[QUEUE_FIRST] & (len(queue) - 1)]
        is_last = lacks_last(request, progress, ready)
        if count > 0 and not is_last:
            break
        state[QUEUE_FIRST] += 1
        _emit(request, now_ns, static, state, progress, issue_ns, ahead)
        if not is_last:
            return
        for w in range(WORDS):
            blocks[lasts, count, w] = blocks[state[BLOCK], state[BLOCK_NEXT], w]
        progress[request, ENDED_AT] += count
        count += 1
        if count == blocks.shape[1]:
            break
    state[BLOCK], state[BLOCK_NEXT], state[BLOCK_COUNT] = lasts, 0, count


@compiled
def _enqueue(request: Int, state: Table, queue: Table) -> None:
    queue[state[QUEUE_STOP] & (len(queue) - 1)] = request
    state[QUEUE_STOP] += 1


@compiled
def _arrive(request: Int, due_ns: Int, state: Table, progress: Table, queue: Table) -> None:
    progress[request, ARRIVED_NS], progress[request, NOTICED_NS] = due_ns, monotonic_ns()
    _enqueue(request, state, queue)


@compiled
def _complete(record: Words, now_ns: Int, static: Any, state: Table, progress: Table, tokens: Any, lists: Any) -> None:
    """A step is done: its token, and what its request does next."""
    settings, table = static[0], static[1]
    _, done_ns, ids = tokens
    queue, running, later, child, sibling = lists
    request = np.intp(record[W_SLOT_C_REQUEST] >> HIGH)
    token = record[W_STEP] >> HIGH
    state[OUTSTANDING] -= 1
    progress[request, STEPS] += 1
    if token != np.uint64(NO_TOKEN):
        at = table[request, ch.FIRST_TOKEN] + np.intp(token)
        done_ns[at] = now_ns
        ids[at] = np.int64(np.int32(record[W_SLOT_A_B] & LOW))  # NO_ID is negative
        progress[request, TOKENS_DONE] += 1
    if next_kind(request, table, progress, settings) >= 0:
        if settings[CONTINUOUS] == 0:
            _enqueue(request, state, queue)
        return
    state[FINISHED] += 1
    if settings[CONTINUOUS] != 0:
        for i in range(state[RUNNING]):
            if running[i] == request:
                for j in range(i, state[RUNNING] - 1):
                    running[j] = running[j + 1]
                state[RUNNING] -= 1
                break
    follower = child[request]
    while follower >= 0:
        progress[follower, ARRIVED_NS] = max(progress[follower, ARRIVED_NS], now_ns)
        later[state[LATER]] = follower
        state[LATER] += 1
        follower = sibling[follower]


@compiled
def _arrivals(order: Table, state: Table, progress: Table, lists: Any) -> None:
    """Requests that are due by now; `state` learns when the next is."""
    queue, _, later, _, _ = lists
    state[WAKE_NS] = FAR_NS
    if state[NEXT_ARRIVAL] == len(order) and state[LATER] == 0:
        return  # spares a reading of the clock, which a loop as tight as this one would feel
    now_ns = monotonic_ns()
    while state[NEXT_ARRIVAL] < len(order) and progress[order[state[NEXT_ARRIVAL]], ARRIVED_NS] <= now_ns:
        request = order[state[NEXT_ARRIVAL]]
        _arrive(request, progress[request, ARRIVED_NS], state, progress, queue)
        state[NEXT_ARRIVAL] += 1
    if state[NEXT_ARRIVAL] < len(order):
        state[WAKE_NS] = progress[order[state[NEXT_ARRIVAL]], ARRIVED_NS]
    i = 0
    while i < state[LATER]:
        request = later[i]
        if progress[request, ARRIVED_NS] <= now_ns:
            _arrive(request, progress[request, ARRIVED_NS], state, progress, queue)
            state[LATER] -= 1
            later[i] = later[state[LATER]]
        else:
            state[WAKE_NS] = min(state[WAKE_NS], progress[request, ARRIVED_NS])
            i += 1


@compiled
def _get_ahead(ring: Any, static: Any, state: Table, progress: Table, ahead: Any) -> Int:
    """Do a piece of what can be done before a step may be issued; whether there was any.

    First records are filled in; where steps are pushed ahead all but the last go out; then comes room for the rest.
    """
    ready = ahead[1]
    if state[NEXT_AHEAD] < len(ready):
        state[NEXT_AHEAD] = prepare_next(state[NEXT_AHEAD], static, progress, ahead)
        if state[NEXT_AHEAD] == len(ready):
            state[TO_OWN] = min(records_ahead(ready, progress), MOST_OWNED)
        return True
    if static[0][AHEAD] != 0:
        early = push_early(ring[0], ring[1], EARLY_AT_ONCE, state[SEQ], progress, ahead)
        if early > 0:
            state[SEQ] += early
            state[OWNED] = max(0, state[OWNED] - early)
            state[TO_OWN] = min(records_ahead(ready, progress), MOST_OWNED)
            return True
    owned = state[OWNED]
    if owned < state[TO_OWN]:
        state[OWNED] = own_room(ring[0], ring[1], owned, min(state[TO_OWN], owned + OWNED_AT_ONCE))
    return state[OWNED] > owned  # no: all is done, or there is no room yet


@compiled
def _spun(ring: Any, back: Any, static: Any, state: Table, progress: Table, ahead: Any) -> Int:
    """Until something is done, or somebody due, getting ahead with what comes next; False after as long as to spin."""
    header, data = back
    now_ns = monotonic_ns()
    until_ns = now_ns + static[0][SPIN_NS]
    while now_ns < min(until_ns, state[WAKE_NS]):
        is_busy = _get_ahead(ring, static, state, progress, ahead)
        for _ in range(POLLS):
            if has_record(header, data):
                return True
            if is_busy:
                break  # a piece may be long: the clock is looked at after each
            cpu_pause()
        now_ns = monotonic_ns()
    return now_ns < until_ns


@compiled
def drive(
    ring: Any,
    back: Any,
    static: Any,
    order: Table,
    state: Table,
    progress: Table,
    tokens: Any,
    lists: Any,
    issue: Table,
    ahead: Any,
    got: Words,
) -> Int:
    """Until every request is finished (DONE), the ring is full (BLOCKED), or nothing happens for long (IDLE)."""
    settings = static[0]
    while True:
        _arrivals(order, state, progress, lists)  # before all else: a full ring is no reason to be late
        if state[BLOCK_NEXT] < state[BLOCK_COUNT]:
            block = ahead[0][state[BLOCK], state[BLOCK_NEXT] : state[BLOCK_COUNT]]
            pushed = push_step(ring[0], ring[1], block, state[SEQ], state[BLOCK_NS])
            state[BLOCK_NEXT] += pushed
            state[SEQ] += pushed
            if state[BLOCK_NEXT] < state[BLOCK_COUNT]:
                return BLOCKED
        if issue[0] > issue[1]:  # what a step is made of: issue[2:], issue[1] of issue[0] are out
            issue[1] += 1
            _emit(issue[1 + issue[1]], monotonic_ns(), static, state, progress, tokens[0], ahead)
            if issue[1] == issue[0]:
                ahead[0][state[BLOCK], state[BLOCK_COUNT] - 1, W_K_OP_DTYPE] |= ROUND_END
            continue
        while has_record(back[0], back[1]):
            count = pop_words(back[0], back[1], got)
            now_ns = monotonic_ns()
            for i in range(count):
                _complete(got[i], now_ns, static, state, progress, tokens, lists)
        if state[FINISHED] == settings[REQUESTS]:
            return DONE
        if settings[CONTINUOUS] == 0:
            if state[QUEUE_FIRST] != state[QUEUE_STOP]:
                _emit_queued(static, state, progress, lists[0], tokens[0], ahead)
                continue
        elif state[OUTSTANDING] == 0:
            issue[0], issue[1] = form_step(static, state, progress, lists, issue[2:]), 0
            if issue[0] > 0:
                continue
        if not _spun(ring, back, static, state, progress, ahead):
            return IDLE
