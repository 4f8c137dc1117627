"""What a launch that feeds back its own results is told before it: its rows, in memory that the device reads.

In: batches, before they are launched. Out: the address of each one's arguments, a stage of a ring. Launches are on one
stream, and each waits for the end of the one before it, so when one of them has told of a token, all launches before it
have ended: their stages are free. That is looked up where tokens are told of, which costs less than an event behind
each launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.step_batcher import StepBatch
from launchopt.command import NO_TOKEN, W_STEP
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.loops import requests as lc
from launchopt.native import compiled, load_acquire
from launchopt.types import Int, Table

STAGES = 64  # launches under way; the host waits for all of them when it wraps around too early
WORDS = lc.DRAW + 1
NOT_ALONE, FULL = -1, -2  # in place of a stage's number
# Words of `state`: how many were staged, and whether the last batch was; behind these, of each stage, where its first
# row's token is told of.
COUNT, STAGED, PLACES = 0, 1, 2


@compiled
def stage_ends(
    words: NDArray[np.uint64],
    size: Int,
    ended: NDArray[np.uint64],
    table: Table,
    facts: Table,
    stages: NDArray[np.uint64],
    flights: Any,
    state: Table,
) -> Int:
    """Stage the ends of a batch's `size` steps and have them take off; returns which stage it is.

    NOT_ALONE, and nothing done, where one of them is to be fed back otherwise; FULL where stages may be in use.
    """
    last = len(words) - size
    if lc.collect_ends(words, last, size, ended) != size:
        return NOT_ALONE
    for i in range(size):
        if facts[lc.HAS_HEAD] != 0 and ended[i, W_STEP] >> lc.HIGH == np.uint64(NO_TOKEN):
            return NOT_ALONE
    count = len(stages)
    stage, following = state[COUNT] % count, (state[COUNT] + 1) % count
    if state[COUNT] >= count and load_acquire(flights[2], state[PLACES + following]) == lc.NOT_YET:
        return FULL
    first = flights[3][lc.STOP_AT] & (len(flights[1]) - 1)
    lc.take_off(ended, size, table, facts, stages[stage], stages[stage], flights)
    state[PLACES + stage], state[STAGED] = flights[1][first], 1
    state[COUNT] += 1
    return stage


class FeedbackStages:
    """Over the steps that `flights` keeps account of. `facts`: as for `Flights.take_off`.

    stages: uint64 [STAGES, WORDS, rows], of which the device reads each by the address that the host has.
    synchronize: waits for all launches.
    """

    def __init__(
        self, flights: Flights, table: Table, facts: Table, stages: NDArray[np.uint64], synchronize: Callable[[], None]
    ) -> None:
        self._synchronize = synchronize
        self.addresses: Table = np.array([stage.ctypes.data for stage in stages], np.int64)
        self._state = np.zeros(PLACES + len(stages), np.int64)
        self._arguments = flights.ended, table, facts, stages, flights.arrays, self._state
        stage_ends(flights.ended[:0], 0, *self._arguments)  # have the machine code at hand
        self.start()

    def start(self) -> None:
        """A new run: nothing is under way."""
        self._state[[COUNT, STAGED]] = 0

    @property
    def arrays(self) -> tuple[Any, ...]:
        """For compiled loops: what `stage_ends` takes, but for the flights."""
        *front, _, state = self._arguments
        return (*front, state)

    def stage(self, batch: StepBatch) -> int:
        """The address of its arguments; 0, and nothing done, where its launch cannot feed back all of it."""
        stage = stage_ends(batch.words, batch.size, *self._arguments)
        if stage == FULL:
            self._synchronize()
            self._state[COUNT] = 0
            stage = stage_ends(batch.words, batch.size, *self._arguments)
        return 0 if stage < 0 else int(self.addresses[stage])

    def was_staged(self) -> bool:
        """Whether the batch launched last was; asked once."""
        staged = bool(self._state[STAGED])
        self._state[STAGED] = 0
        return staged
