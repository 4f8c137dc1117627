"""Steps that are prepared ahead, against those that are made when they are issued."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processes import ring_peer
from support.steps.programs import program_streams
from support.steps.stream_steps import records_of, steps_of

from launchopt.command import COMMAND_DTYPE, Flag, Records, RecordWord, as_words
from launchopt.producing import prepared_steps as sr
from launchopt.producing.driver import Driver
from launchopt.producing.production import Schedule
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.streams.chains.chain import ChainStream

MARK = np.uint64(1 << 63)  # in a word that would be 0 otherwise
properties = settings(deadline=None, max_examples=40)


class Issuing:
    """A driver's arrays, and steps issued one by one, in any order of requests."""

    def __init__(self, stream: ChainStream, places: int) -> None:
        driver = Driver(stream, Schedule(), 0, 50)
        self.stream, self.progress = sr.StreamArrays(*driver._arrays), driver._progress
        longest = driver._ahead[0].shape[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sr, "MOST_PLACES", places)
            self.ahead = sr.Ahead(*sr.ahead_of(stream.requests, longest))
        assert len(self.ahead.ready) <= places

    def issue(self, request: int) -> Records:
        place = sr.next_step(request, self.stream, self.progress, self.ahead)
        words = self.ahead.blocks[place, : self.ahead.ready[place, sr.ReadyColumn.COUNT]].copy()
        records: Records = words.reshape(-1).view(COMMAND_DTYPE)
        return records

    def complete(self, request: int, ends_token: bool) -> None:
        self.progress[request, sr.ProgressColumn.STEPS] += 1
        self.progress[request, sr.ProgressColumn.TOKENS_DONE] += ends_token

    def prepare(self) -> None:
        at = 0
        while at < len(self.ahead.ready):
            at = sr.prepare_next(at, self.stream, self.progress, self.ahead)

    @property
    def prepared(self) -> set[tuple[int, int]]:
        """(request, step) of all that is at hand and was not issued."""
        ready, columns = self.ahead.ready, sr.ReadyColumn
        is_there = (ready[:, columns.REQUEST] != sr.NOBODY) & (ready[:, columns.IS_ISSUED] == 0)
        pairs = ready[is_there][:, [columns.REQUEST, columns.STEP]]
        return {(int(request), int(step)) for request, step in pairs}


@properties
@given(
    stream=program_streams(most_layers=2),
    places=st.sampled_from([1, 2, 4, 64]),
    seed=st.integers(0, 99),
)
def test_a_prepared_step_is_the_one_that_is_issued(stream: ChainStream, places: int, seed: int) -> None:
    """A step is prepared before the notification of the previous step, after it, or not at all."""
    issuing, random = Issuing(stream, places), np.random.default_rng(seed)
    kinds = [steps_of(stream, request) for request in range(stream.requests)]
    done, commands = [0] * stream.requests, [0] * stream.requests
    while left := [request for request in range(stream.requests) if done[request] < len(kinds[request])]:
        request = int(random.choice(left))
        step = done[request]
        found = issuing.issue(request)
        expected = records_of(stream, request, step)
        expected["step"] = commands[request] + np.arange(len(expected))
        expected["seq"] = expected["enqueue_ns"] = 0
        assert found.tolist() == expected.tolist()
        for prepares in (random.random() < 0.5, random.random() < 0.5):
            if prepares:
                issuing.prepare()
                place = request % len(issuing.ahead.ready)
                goes_on = step + 1 < len(kinds[request])
                assert ((request, step + 1) in issuing.prepared) == goes_on
                assert {one for one, _ in issuing.prepared if one % len(issuing.ahead.ready) == place} <= {request}
            if done[request] == step:
                issuing.complete(request, kinds[request][step].ends_token)
                done[request], commands[request] = step + 1, commands[request] + len(found)


@properties
@given(stream=program_streams(most_layers=2))
def test_nothing_that_was_prepared_is_made_again(stream: ChainStream) -> None:
    issuing, request = Issuing(stream, 64), 0
    for step, kind in enumerate(steps_of(stream, request)):
        if step:
            issuing.prepare()
            issuing.ahead.blocks[request, 0, 0] = 77
        assert (issuing.issue(request)["seq"][0] == 77) == (step > 0)
        issuing.ahead.blocks[request, 0, 0] = 0
        issuing.complete(request, kind.ends_token)


@properties
@given(capacity=st.sampled_from([2, 8, 64]), counts=st.lists(st.integers(0, 20), max_size=8))
def test_a_step_is_numbered_and_timed_when_it_is_pushed(capacity: int, counts: list[int]) -> None:
    out, seq = np.zeros(capacity, COMMAND_DTYPE), 2**40
    with Ring.create(capacity) as ring:
        for turn, count in enumerate(counts):
            records = np.zeros(count, COMMAND_DTYPE)
            records["m"], records["flags"] = np.arange(count), Flag.STEP_END
            pushed = sr.push_step(*ring.arrays, as_words(records), seq, 5 + turn)
            assert pushed == min(count, capacity)
            assert ring.pop(out) == pushed
            assert out["seq"][:pushed].tolist() == list(range(seq, seq + pushed))
            assert (out["enqueue_ns"][:pushed] == 5 + turn).all()
            assert out["m"][:pushed].tolist() == list(range(pushed))
            assert (out["flags"][:pushed] == Flag.STEP_END).all()
            seq += pushed


PUSH, POP, OWN = range(3)


@properties
@given(
    capacity=st.sampled_from([2, 8, 64]),
    turns=st.lists(st.tuples(st.integers(PUSH, OWN), st.integers(0, 80), st.integers(0, 80)), max_size=40),
    pushed=st.sampled_from([0, 2**32 - 5]),
)
def test_a_slot_that_is_owned_holds_what_is_pushed_and_no_other_is_touched(
    capacity: int, turns: list[tuple[int, int, int]], pushed: int
) -> None:
    """In any order of pushes, pops and fetched slots: each record comes out as it was pushed, in order, once."""
    unread: deque[int] = deque()
    with Ring.create(capacity) as ring:
        header, data = ring.arrays
        for word in (HeaderWord.HEAD, HeaderWord.TAIL, HeaderWord.KNOWN_TAIL):
            ring.set_word(word, pushed)
        for what, size, other in [*turns, (POP, capacity, 0)]:
            if what == PUSH:
                words = as_words(ring_peer.numbered(pushed, size))
                count = sr.push_step(header, data, words, pushed, -pushed)
                assert count == min(size, capacity - len(unread))
                unread.extend(range(pushed, pushed + count))
                pushed += count
            elif what == POP:
                out = np.zeros(size, COMMAND_DTYPE)
                assert ring.pop(out) == min(size, len(unread))
                for record in out[: len(unread)]:
                    number = unread.popleft()
                    expected = ring_peer.numbered(number, 1)[0]
                    expected["enqueue_ns"] = record["enqueue_ns"]  # a step has one
                    assert record == expected
            else:
                first, stop = min(size, other), max(size, other)
                data[:, RecordWord.SEQ] |= MARK
                before = data.copy()
                ended = sr.fetch_free_slots(header, data, first, stop)
                assert ended == max(first, min(stop, capacity - len(unread)))
                before[(pushed + np.arange(first, ended)) % capacity, RecordWord.SEQ] = 0
                assert (data == before).all()
                data[:, RecordWord.SEQ] &= ~MARK
        assert not unread
        assert ring.word(HeaderWord.HEAD) == ring.word(HeaderWord.TAIL) == pushed


@properties
@given(stream=program_streams(most_layers=2), places=st.sampled_from([1, 2, 64]), seed=st.integers(0, 99))
def test_records_ahead_are_those_of_steps_that_may_be_issued_without_more_ado(
    stream: ChainStream, places: int, seed: int
) -> None:
    issuing, random = Issuing(stream, places), np.random.default_rng(seed)
    assert sr.records_ahead(issuing.ahead.ready, issuing.progress) == 0
    for request in random.integers(stream.requests, size=8).tolist():
        steps = steps_of(stream, request)
        if issuing.progress[request, sr.ProgressColumn.STEPS] < len(steps):
            issuing.issue(request)
            issuing.complete(request, steps[issuing.progress[request, sr.ProgressColumn.STEPS]].ends_token)
        for prepares in (False, True):  # what was issued does not count any more, what was prepared does
            if prepares:
                issuing.prepare()
            sizes = [len(records_of(stream, *step)) for step in issuing.prepared]
            assert sr.records_ahead(issuing.ahead.ready, issuing.progress) == sum(sizes)
