"""The compiled loop admits a waiting launch if the flushed batch is the expected one, and stages the batch for it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.steps.no_driver import NO_DRIVER
from support.steps.programs import stream_of
from support.steps.step_runs import batches

from launchopt.batching.batch import FlushRules, StepBatch
from launchopt.batching.step_batcher import StepBatcher, steps_of_requests
from launchopt.batching.step_buckets import StepColumn
from launchopt.command import HALF_BITS, RecordWord
from launchopt.devices.feedback.flights import Flights, facts_of, places_needed
from launchopt.devices.feedback.landing import NOT_YET
from launchopt.devices.feedback.stages import WORDS, FeedbackStages
from launchopt.devices.loops.admission import Admission, ExpectedWord, admit, look, store_gate_word
from launchopt.devices.steps.keys import StepKeys
from launchopt.native import compiled
from launchopt.streams.chains.chain import ChainStream

STAGES, PLACES, PLACE, TAG, LATER_NS = 3, 4, 2, 0xF00D, 1 << 62
BASE, HISTORY, DONE = 1 << 20, 1 << 30, 1 << 40


class Rig:
    """Batches of a stream as they leave a batcher, and the admission of launches that wait for them."""

    def __init__(self, stream: ChainStream, limit: int) -> None:
        rows = int(np.diff(stream.kind_stops, prepend=0).max())
        self.batcher = StepBatcher(steps_of_requests(stream.table), rows, limit, FlushRules(1 << 40))
        self.flights = Flights(stream, NO_DRIVER, np.zeros(places_needed(stream), np.uint64))
        self.flights.reset()
        facts = facts_of(stream, BASE, HISTORY, DONE)
        self.memory = np.zeros((STAGES, WORDS, stream.requests), np.uint64)
        self.stages = FeedbackStages(self.flights, stream.table, facts, self.memory, synchronize=lambda: None)
        self.gate_words = np.zeros(PLACES, np.uint64)
        self.admission = Admission(self.gate_words, self.stages, rows + 2 * stream.requests)
        self.keys = StepKeys(lambda batch: 0)

    def leave(self, batch: StepBatch) -> StepBatch:
        """Return the batch as it leaves the batcher."""
        (left,) = self.batcher.take(np.concatenate([batch.words[i :: batch.size] for i in range(batch.size)]), 0)
        assert (left.words[:, :-2] == batch.words[:, :-2]).all()
        return left

    def landed(self, batch: StepBatch) -> None:
        for request in sorted({int(each) for each in batch.words[:, RecordWord.SLOT_C_REQUEST] >> HALF_BITS}):
            self.batcher.landed(request)

    def expect(self, batch: StepBatch, until_ns: int = LATER_NS) -> None:
        self.admission.expect(self.keys.known(batch), PLACE, TAG, until_ns)

    def admit(self, batch: StepBatch) -> bool:
        arrays = self.batcher.arrays, self.flights.arrays, self.admission.arrays
        return bool(admit(batch.rows, batch.size, *arrays))

    def look(self, filled: int) -> int:
        """Compare the first `filled` records of the first request's step; return how many are known as expected."""
        self.batcher.arrays[1][0, StepColumn.FILLED] = filled
        look(self.batcher.arrays, self.admission.arrays)
        self.batcher.arrays[1][0, StepColumn.FILLED] = 0
        return int(self.admission.arrays[0][ExpectedWord.KNOWN])

    def contents(self) -> bytes:
        """Return the bytes of everything that an admission writes."""
        return b"".join(
            each.tobytes() for each in (self.gate_words, self.memory, self.flights.done, *self.flights.arrays)
        )


@compiled
def store_all(gate_words: NDArray[np.uint64], words: NDArray[np.uint64]) -> None:
    for place in range(len(words)):
        store_gate_word(gate_words, place, words[place])


def test_a_gate_word_is_stored_in_its_place() -> None:
    """Python stores it, or compiled code does."""
    expected = np.array([0, 1, TAG << 48 | DONE, 2**64 - 1], np.uint64)
    for gate_words in (np.zeros(PLACES, np.uint64), np.frombuffer((ctypes.c_uint8 * 64)(), np.uint64, PLACES)):
        for place in (2, 0, 3, 1):
            store_gate_word(gate_words, place, expected[place])
            assert gate_words[place] == expected[place]
        assert gate_words.tolist() == expected.tolist()
        store_all(gate_words, expected[::-1].copy())
        assert gate_words.tolist() == expected[::-1].tolist()


@pytest.mark.parametrize("vocab", [None, 50])
@pytest.mark.parametrize("limit", [2, 4])
def test_the_launch_gets_the_word_that_python_would_store(limit: int, vocab: int | None) -> None:
    """Batches have all requests or some of them. There are more batches than stages, so stages are used again."""
    stream = stream_of("linear", [(0, 6)] * 4, vocab=vocab)
    ours, theirs = Rig(stream, limit), Rig(stream, limit)
    for number, batch in enumerate(batches(stream, limit)):
        left = ours.leave(batch)
        ours.expect(batch)
        assert ours.admit(left)
        address = theirs.stages.stage(batch)
        stage = [each.ctypes.data for each in theirs.memory].index(address)
        assert stage == number % STAGES
        assert int(ours.gate_words[PLACE]) == TAG << 48 | ours.memory[stage].ctypes.data
        assert (ours.memory == theirs.memory).all()
        assert (ours.flights.done == theirs.flights.done).all()
        assert [ours.stages.was_staged(), ours.stages.was_staged()] == [True, False]
        assert [ours.admission.was_admitted(), ours.admission.was_admitted()] == [True, False]
        assert not ours.admit(left), "it waits no more"
        ours.landed(left)
        for rig in (ours, theirs):
            rig.flights.done[rig.flights.done == NOT_YET] = 0
    assert not np.delete(ours.gate_words, PLACE).any()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 99),
    st.data(),
)
def test_another_batch_is_left_to_python(
    sizes: list[tuple[int, int]], replicas: int, most: int, seed: int, data: st.DataObject
) -> None:
    """A batch is admitted if its key is the expected one, whatever was compared before. Otherwise nothing changes."""
    stream = stream_of("linear", sizes, replicas=replicas)
    every = [StepBatch(each.words.copy(), each.reason, each.size, each.rows) for each in batches(stream, most, seed)]
    one, other = data.draw(st.sampled_from(every)), data.draw(st.sampled_from(every))
    rig = Rig(stream, stream.requests)
    rig.batcher.arrays[0 if one.size == stream.requests else 4][: len(one.words)] = one.words
    rig.expect(other)
    for filled in data.draw(st.lists(st.integers(0, one.rows), max_size=3)):
        rig.look(filled)
    before = rig.contents()
    same = rig.keys.key_of(one) == rig.keys.key_of(other) and (one.size, one.rows) == (other.size, other.rows)
    assert rig.admit(one) == same
    assert (rig.contents() != before) == same
    assert rig.admission.was_admitted() == same


def test_records_that_come_early_are_compared_once() -> None:
    """The comparison stops at the first difference. It needs batches of all requests."""
    stream = stream_of("linear", [(0, 4)] * 3)
    batch = next(iter(batches(stream, 3)))
    rig, rows, size = Rig(stream, 3), batch.rows, batch.size
    store = rig.batcher.arrays[0]
    store[: len(batch.words)] = batch.words
    assert rig.look(rows) == 0, "none waits"
    rig.expect(batch)
    store[2 * size, RecordWord.SLOTS_AB] += 1
    assert [rig.look(filled) for filled in (1, 0, rows)] == [1, 1, 2]
    assert refused(rig, batch)
    store[2 * size, RecordWord.SLOTS_AB] -= 1
    assert [rig.look(filled) for filled in (2, rows - 1)] == [2, rows - 1]
    assert rig.admit(batch)
    rig.expect(batch)
    assert rig.admission.arrays[0][ExpectedWord.KNOWN] == 0
    some = Rig(stream, 2)
    some.expect(next(iter(batches(stream, 2))))
    assert some.look(rows) == 0


def refused(rig: Rig, batch: StepBatch) -> bool:
    before = rig.contents()
    return not rig.admit(batch) and rig.contents() == before and not rig.admission.was_admitted()


def test_when_no_launch_is_admitted() -> None:
    """No launch waits, or it may have given up, or all stages may be in use."""
    stream = stream_of("linear", [(0, 9)] * 2)
    rig = Rig(stream, 2)
    every = iter(batches(stream, 2))
    batch = rig.leave(next(every))
    assert refused(rig, batch)
    rig.expect(batch, until_ns=0)
    assert refused(rig, batch)
    rig.expect(batch)
    rig.admission.forget()
    assert refused(rig, batch)
    for _ in range(STAGES):
        rig.expect(batch)
        assert rig.admit(batch)
        assert rig.admission.was_admitted()
        rig.landed(batch)
        batch = rig.leave(next(every))
    rig.expect(batch)
    assert refused(rig, batch)
    rig.flights.done[:] = 0
    assert rig.admit(batch)


def test_a_step_that_samples_no_token_is_not_admitted() -> None:
    """The first chunks of a prompt sample none, so another launch feeds them back."""
    sizes: Any = [(5, 2)] * 2
    stream = stream_of("linear", sizes, vocab=50, chunk=2)
    rig = Rig(stream, 2)
    batch = rig.leave(next(iter(batches(stream, 2))))
    rig.expect(batch)
    assert refused(rig, batch)
