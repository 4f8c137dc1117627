"""The arguments of launches that feed back their own results, in memory that the device reads.

A batch is staged before its launch: one column per step is written to the next stage of a ring, and the launch gets the
stage's address. Launches are on one stream, and each waits for the end of the one before it. When the host knows the
token of a launch, all launches before it have ended, and their stages are free. Looking at the word of that token costs
less than an event behind each launch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import numpy as np

from launchopt.batching.step_batcher import StepBatch
from launchopt.command import NO_TOKEN
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.loops.landing import NOT_YET, FeedbackFact, FlightWord, StagedRow, collect_ends, take_off
from launchopt.native import compiled, load_acquire
from launchopt.records import token_of
from launchopt.types import Int, Table, Words

STAGES = 64  # launches under way; the host waits for all of them if the ring wraps around before a stage is free
WORDS = len(StagedRow)  # of a step
NOT_ALONE, FULL = -1, -2  # in place of a stage's number


class StagingWord(enum.IntEnum):
    """Words of a `FeedbackStages`' state, int64."""

    COUNT = 0  # batches staged since the start
    STAGED = 1  # 1: the last batch was staged
    PLACES = 2  # first of one word per stage: index into `done` of the token of the stage's first row


@compiled
def stage_ends(
    words: Words,
    size: Int,
    flights: tuple[Words, Table, Words, Table],
    staging: tuple[Words, Table, Table, Words, Table],
) -> Int:
    """Stage the ends of a batch's `size` steps and let them take off; return the number of the stage.

    NOT_ALONE: one of the steps must be fed back in another way. FULL: the next stage may be in use. Nothing is done
    then. flights: `Flights.arrays`. staging: `FeedbackStages.arrays`.
    """
    ended, table, facts, stages, state = staging
    _, places, done, cursor = flights
    last = len(words) - size
    if collect_ends(words[last:], ended) != size:
        return NOT_ALONE
    for i in range(size):
        if facts[FeedbackFact.HAS_HEAD] != 0 and token_of(ended, i) == NO_TOKEN:
            return NOT_ALONE
    count = len(stages)
    stage, following = state[StagingWord.COUNT] % count, (state[StagingWord.COUNT] + 1) % count
    is_around = state[StagingWord.COUNT] >= count
    if is_around and load_acquire(done, state[StagingWord.PLACES + following]) == NOT_YET:
        return FULL
    first = cursor[FlightWord.STOP_AT] & (len(places) - 1)
    take_off(ended, size, table, facts, stages[stage], stages[stage], flights)
    state[StagingWord.PLACES + stage], state[StagingWord.STAGED] = places[first], 1
    state[StagingWord.COUNT] += 1
    return stage


class FeedbackStages:
    """The stages of one run's launches.

    flights: keeps account of the steps. table: the stream's. facts: as for `Flights.take_off`.
    stages: uint64 [STAGES, WORDS, rows]; host and device read each stage at one address. synchronize: waits for all
    launches.
    """

    def __init__(
        self, flights: Flights, table: Table, facts: Table, stages: Words, synchronize: Callable[[], None]
    ) -> None:
        self._synchronize, self._flights = synchronize, flights
        self.addresses: Table = np.array([stage.ctypes.data for stage in stages], np.int64)
        self._state = np.zeros(StagingWord.PLACES + len(stages), np.int64)
        self.arrays = flights.ended, table, facts, stages, self._state  # for `stage_ends`
        stage_ends(flights.ended[:0], 0, flights.arrays, self.arrays)  # compiles, or loads machine code
        self.start()

    def start(self) -> None:
        """Begin a run: no launch is under way."""
        self._state[[StagingWord.COUNT, StagingWord.STAGED]] = 0

    def stage(self, batch: StepBatch) -> int:
        """Stage a batch; return the address of its arguments, or 0 if its launch cannot feed back all its results."""
        stage = stage_ends(batch.words, batch.size, self._flights.arrays, self.arrays)
        if stage == FULL:
            self._synchronize()
            self._state[StagingWord.COUNT] = 0
            stage = stage_ends(batch.words, batch.size, self._flights.arrays, self.arrays)
        return 0 if stage < 0 else int(self.addresses[stage])

    def was_staged(self) -> bool:
        """Return whether the batch that was launched last had been staged, and clear the answer."""
        staged = bool(self._state[StagingWord.STAGED])
        self._state[StagingWord.STAGED] = 0
        return staged
