"""Continuous scheduling: of which requests' steps the next round is made.

In: the requests that wait in a queue and those that run, as `issuing` keeps them. Out: who takes part, tokens before
prompts, within the budget of columns; who comes in runs from now on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.command import W_MN
from launchopt.native import compiled
from launchopt.producing.prepared_steps import BUDGET, DECODE_KIND, HIGH, MOST_RUNNING, STEPS, kind_of
from launchopt.types import Int, Table

# Words of the driver's `state`, of which `issuing` has more.
QUEUE_FIRST, QUEUE_STOP, RUNNING = range(3)


@compiled
def next_kind(request: Int, table: Table, progress: Table, settings: Table) -> Int:
    """The kind of a request's next step, -1 when it has none."""
    return kind_of(request, progress[request, STEPS], table, settings)


@compiled
def _columns(request: Int, static: Any, progress: Table) -> Int:
    """Columns of a request's next step."""
    settings, table, stops, template, _, _, _, _ = static
    kind = next_kind(request, table, progress, settings)
    first = 0 if kind == 0 else stops[kind - 1]
    return np.int64(template[first, W_MN] >> HIGH)


@compiled
def form_step(static: Any, state: Table, progress: Table, lists: Any, issue: Table) -> Int:
    """Continuous: who takes part in the next step, into `issue`; returns how many."""
    settings, table = static[0], static[1]
    queue, running, _, _, _ = lists
    left, count = settings[BUDGET], 0
    for wants_prompt in range(2):  # tokens first, then prompts with what is left
        for i in range(state[RUNNING]):
            request = running[i]
            is_prompt = next_kind(request, table, progress, settings) != settings[DECODE_KIND]
            columns = _columns(request, static, progress)
            if is_prompt == (wants_prompt == 1) and (columns <= left or count == 0):
                issue[count] = request
                count += 1
                left -= columns
    while state[QUEUE_FIRST] != state[QUEUE_STOP] and state[RUNNING] < settings[MOST_RUNNING]:
        request = queue[state[QUEUE_FIRST] & (len(queue) - 1)]
        columns = _columns(request, static, progress)
        if columns > left and count > 0:
            break
        state[QUEUE_FIRST] += 1
        running[state[RUNNING]] = request
        state[RUNNING] += 1
        issue[count] = request
        count += 1
        left -= columns
    return count
