"""The arguments of launches that feed back their own results, in memory that the device reads.

Here a *stage* is the memory for the arguments of one launch; the stages form a ring. A batch is staged before its
launch: one column per step is written to the next stage, and the launch gets the stage's address. Launches are on one
CUDA stream and run one after another. When a token of a launch is in `done`, all earlier launches have ended, and their
stages are free. Reading that word costs less than an event after each launch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import numpy as np

from launchopt.batching.batch import StepBatch
from launchopt.command import NO_TOKEN
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.feedback.landing import NOT_YET, FeedbackFact, FlightWord, StagedRow, collect_ends, take_off
from launchopt.native import compiled, load_acquire
from launchopt.records import token_of
from launchopt.types import Int, Table, Words

STAGES = 64  # stages of the ring; the host waits for all launches if the next stage is not free
WORDS = len(StagedRow)  # words of arguments per step
INCOMPLETE, FULL = -1, -2  # results of `stage_ends` if it stages nothing


class StagingWord(enum.IntEnum):
    """Words of a `FeedbackStages`' state, int64."""

    COUNT = 0  # number of batches staged since the start of the run
    STAGED = 1  # 1: the last batch was staged; 0: it was not
    PLACES = 2  # word PLACES + i: index into `done` of the first step in stage i


@compiled
def stage_ends(
    words: Words,
    size: Int,
    flights: tuple[Words, Table, Words, Table],
    staging: tuple[Words, Table, Table, Words, Table],
) -> Int:
    """Stage the last records of a batch's `size` steps, make them steps in flight, and return the number of the stage.

    Return INCOMPLETE if the launch cannot feed back every step: a step does not end in this batch, or it is a chunk of
    a prompt in a workload that samples tokens. Return FULL if the next stage may be in use. In both cases nothing is
    staged.
    flights: `Flights.arrays`. staging: `FeedbackStages.arrays`.
    """
    ended, table, facts, stages, state = staging
    _, places, done, cursor = flights
    last = len(words) - size
    if collect_ends(words[last:], ended) != size:
        return INCOMPLETE
    for i in range(size):
        if facts[FeedbackFact.HAS_HEAD] != 0 and token_of(ended, i) == NO_TOKEN:
            return INCOMPLETE
    count = len(stages)
    stage, following = state[StagingWord.COUNT] % count, (state[StagingWord.COUNT] + 1) % count
    is_reused = state[StagingWord.COUNT] >= count  # an earlier launch has used the next stage
    if is_reused and load_acquire(done, state[StagingWord.PLACES + following]) == NOT_YET:
        return FULL
    first = cursor[FlightWord.STOP_AT] & (len(places) - 1)
    take_off(ended, size, table, facts, stages[stage], stages[stage], flights)
    state[StagingWord.PLACES + stage], state[StagingWord.STAGED] = places[first], 1
    state[StagingWord.COUNT] += 1
    return stage


@compiled
def stage_steps(
    words: Words,
    size: Int,
    steps: Int,
    flights: tuple[Words, Table, Words, Table],
    staging: tuple[Words, Table, Table, Words, Table],
    spare: Words,
) -> Int:
    """Stage the first of the `steps` steps of each request of a batch, and make all these steps steps in flight.

    Return what `stage_ends` does. The launch derives the arguments of the other steps, which go to `spare`.
    """
    ended, table, facts = staging[0], staging[1], staging[2]
    rows = len(words) // steps
    stage: Int = stage_ends(words[:rows], size, flights, staging)
    if stage >= 0:
        for step in range(1, steps):
            stop = (step + 1) * rows
            collect_ends(words[stop - size : stop], ended)
            take_off(ended, size, table, facts, spare, spare, flights)
    return stage


class FeedbackStages:
    """The stages of one run's launches.

    flights: the steps in flight. table: of the workload stream. facts: see `flights.facts_of`.
    stages: uint64 [STAGES, WORDS, rows], at the same addresses on host and device. synchronize: waits for all launches.
    """

    def __init__(
        self, flights: Flights, table: Table, facts: Table, stages: Words, synchronize: Callable[[], None]
    ) -> None:
        self._synchronize, self._flights = synchronize, flights
        self.addresses: Table = np.array([stage.ctypes.data for stage in stages], np.int64)
        self._state = np.zeros(StagingWord.PLACES + len(stages), np.int64)
        self.arrays = flights.ended, table, facts, stages, self._state  # argument `staging` of `stage_ends`
        self._spare = np.zeros(stages.shape[1:], np.uint64)
        self._stage(flights.ended[:0], 0, 1)  # compile it, or load its machine code
        self.start()

    def start(self) -> None:
        """Begin a run: all stages are free."""
        self._state[[StagingWord.COUNT, StagingWord.STAGED]] = 0

    def _stage(self, words: Words, size: int, steps: int) -> int:
        return int(stage_steps(words, size, steps, self._flights.arrays, self.arrays, self._spare))

    def stage(self, batch: StepBatch, steps: int = 1) -> int:
        """Stage a batch of `steps` steps of each request; return the address of the first step's arguments.

        Return 0 if its launch cannot feed back all results.
        """
        stage = self._stage(batch.words, batch.size, steps)
        if stage == FULL:
            self._synchronize()
            self._state[StagingWord.COUNT] = 0
            stage = self._stage(batch.words, batch.size, steps)
        return 0 if stage < 0 else int(self.addresses[stage])

    def was_staged(self) -> bool:
        """Return whether the last batch was staged, and reset that to False."""
        staged = bool(self._state[StagingWord.STAGED])
        self._state[StagingWord.STAGED] = 0
        return staged
