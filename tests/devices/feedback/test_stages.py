"""Arguments of launches that feed back their own results, and the reuse of the memory that holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.steps.no_driver import NO_DRIVER
from support.steps.programs import stream_of
from support.steps.step_runs import batches

from launchopt.batching.batch import StepBatch
from launchopt.devices.feedback.flights import Flights, facts_of, places_needed
from launchopt.devices.feedback.landing import StagedRow
from launchopt.devices.feedback.stages import WORDS, FeedbackStages
from launchopt.streams.chains.chain import ChainStream

COUNT = 3  # stages
BASE, HISTORY, DONE = 1 << 20, 1 << 30, 1 << 40


class Rig:
    """Steps of a stream, and the number of waits for all launches."""

    def __init__(self, stream: ChainStream) -> None:
        self.stream, self.waited = stream, 0
        self.done = np.zeros(places_needed(stream), np.uint64)
        self.flights = Flights(stream, NO_DRIVER, self.done)
        self.flights.reset()
        self.facts = facts_of(stream, BASE, HISTORY, DONE)
        self.memory = np.full((COUNT, WORDS, stream.requests), 7, np.uint64)
        self.stages = FeedbackStages(self.flights, stream.table, self.facts, self.memory, self._wait)

    def _wait(self) -> None:
        self.waited += 1

    def stage(self, batch: StepBatch) -> int:
        """Return the number of the stage that the batch gets, or -1."""
        address = self.stages.stage(batch)
        return -1 if address == 0 else [each.ctypes.data for each in self.memory].index(address)

    def tell(self, stage: int) -> None:
        """Let the launch of this stage notify the host of its first row."""
        self.done[(int(self.memory[stage, StagedRow.ID, 0]) - DONE) // 8] = 0


def decodes(stream: ChainStream) -> list[StepBatch]:
    return list(batches(stream, stream.requests))


@pytest.mark.parametrize("vocab", [None, 50])
def test_it_is_told_what_a_launch_of_its_own_would_be(vocab: int | None) -> None:
    stream = stream_of("linear", [(0, 3)] * 4, vocab=vocab)
    ours, theirs = Rig(stream), Rig(stream)
    for i, batch in enumerate(decodes(stream)):
        assert ours.stage(batch) == i
        count = theirs.flights.collect(batch.words[-batch.size :])
        both = theirs.memory[i], np.zeros_like(theirs.memory[i])
        samples = theirs.flights.take_off(count, theirs.facts, *(both if vocab else both[::-1]))
        assert (count, samples) == (4, 4 if vocab else 0)
        assert (ours.memory == theirs.memory).all()
        assert (ours.done == theirs.done).all()
        assert ours.flights.count == theirs.flights.count == 4 * (i + 1)
        assert [ours.stages.was_staged(), ours.stages.was_staged()] == [True, False], "asked once"


def test_a_batch_that_its_launch_cannot_feed_back_is_not_staged() -> None:
    """With a vocabulary, the first chunks of a prompt sample no token. Without one, all steps are fed back alike."""
    sizes: Any = [(5, 2)] * 2
    for vocab, staged in ((50, False), (None, True)):
        stream = stream_of("linear", sizes, vocab=vocab, chunk=2)
        rig, first = Rig(stream), next(iter(batches(stream, 2)))
        assert (rig.stage(first) == 0) == staged
        assert rig.stages.was_staged() == staged
        assert rig.flights.count == (2 if staged else 0)
        assert (rig.memory[0, :, 0] != 7).any() == staged


def test_a_stage_is_written_again_when_a_later_launch_has_told() -> None:
    stream = stream_of("linear", [(0, 9)] * 2)
    rig = Rig(stream)
    first, second, third, fourth, fifth, *_ = decodes(stream)
    assert [rig.stage(batch) for batch in (first, second, third)] == [0, 1, 2]
    rig.tell(0)
    rig.tell(1)
    assert (rig.stage(fourth), rig.waited) == (0, 0), (
        "the second launch has notified the host, so the first one has ended"
    )
    rig.tell(2)
    assert (rig.stage(fifth), rig.waited) == (1, 0)


def test_all_launches_are_waited_for_before_a_stage_is_reused() -> None:
    """A notification of one row by the launch itself is not enough: other blocks may not have read their rows."""
    stream = stream_of("linear", [(0, 9)] * 2)
    rig, steps = Rig(stream), decodes(stream)
    assert [rig.stage(batch) for batch in steps[:COUNT]] == [0, 1, 2]
    rig.tell(0)
    assert (rig.stage(steps[COUNT]), rig.waited) == (0, 1)
    assert [rig.stage(batch) for batch in steps[COUNT + 1 : COUNT + 3]] == [1, 2], "all were free"
    assert rig.waited == 1
    assert (rig.stage(steps[COUNT + 3]), rig.waited) == (0, 2)


def test_a_new_run_finds_all_stages_free() -> None:
    stream = stream_of("linear", [(0, 9)] * 2)
    rig, steps = Rig(stream), decodes(stream)
    assert [rig.stage(batch) for batch in steps[:2]] == [0, 1]
    rig.stages.start()
    rig.flights.reset()
    assert not rig.stages.was_staged()
    assert [rig.stage(batch) for batch in steps[:COUNT]] == [0, 1, 2]
    assert rig.waited == 0
