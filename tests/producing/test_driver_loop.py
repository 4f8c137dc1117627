"""A driver that waits fetches the ring's slots for the steps that it has prepared, and no other slots."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.steps.driver_runs import AHEAD, CONTINUOUS, NONE, expected_records, stream_of
from support.steps.stream_steps import steps_of as kinds_of

from launchopt.command import COMMAND_DTYPE, Flag, Records, RecordWord
from launchopt.producing import driver_loop as iss
from launchopt.producing import prepared_steps as sr
from launchopt.producing.driver import Driver
from launchopt.producing.production import Schedule
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.streams.chains.chain import ChainStream

MARKED = 2**40  # in the word of a slot that is stored to


class Waiting:
    """A driver in this thread. Its first steps are pushed, and it is not notified that they are complete."""

    def __init__(self, stream: ChainStream, schedule: Schedule, capacity: int) -> None:
        self.capacity, self.longest = capacity, len(expected_records(stream, 0)) // len(kinds_of(stream, 0))
        self.ring, self.back = Ring.create(capacity), Ring.create(1 << stream.requests.bit_length())
        self.ring.arrays[1][:, RecordWord.SEQ] = MARKED
        self.driver = Driver(stream, schedule, spin_us=1, sleep_us=50)

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.ring.release()
        self.back.release()

    def wait(self) -> None:
        """Enter the loop until every place is prepared and every slot is fetched. Each call does a part of that."""
        for _ in range(1 + sr.MOST_PLACES + self.capacity // iss.FETCHED_AT_ONCE + 1):
            assert self.driver._enter(self.ring, self.back) == iss.DriverExit.IDLE

    @property
    def fetched(self) -> list[int]:
        """Slots that were stored to, counted from the head on."""
        slots = np.flatnonzero(self.ring.arrays[1][1:, RecordWord.SEQ] == 0) + 1  # the first holds record 0
        return sorted(int(slot - self.ring.word(HeaderWord.HEAD)) % self.capacity for slot in slots)


@pytest.mark.parametrize("schedule", [NONE, CONTINUOUS], ids=["none", "continuous"])
@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_a_waiting_driver_fetches_the_slots_of_all_that_is_prepared(schedule: Schedule, outputs: int) -> None:
    """It fetches no other slots, and none for requests that have no further step."""
    with Waiting(stream_of([(0, outputs), (0, 3), (0, 3)]), schedule, capacity=256) as waiting:
        waiting.wait()
        goes_on = 2 + (outputs > 1)
        assert waiting.ring.word(HeaderWord.HEAD) == 3 * waiting.longest
        assert waiting.fetched == list(range(goes_on * waiting.longest))


def test_who_waits_owns_room_as_it_comes() -> None:
    with Waiting(stream_of([(0, 3)]), NONE, capacity=8) as waiting:
        assert waiting.longest == 8
        data = waiting.ring.arrays[1]
        waiting.wait()
        assert data[:, RecordWord.SEQ].tolist() == list(range(8)), "the ring is full of unread records"
        for popped in (3, 5, 8):
            assert waiting.ring.pop(np.zeros(popped - waiting.ring.word(HeaderWord.TAIL), COMMAND_DTYPE)) > 0
            waiting.wait()
            assert data[:, RecordWord.SEQ].tolist() == [0] * popped + list(range(popped, 8))


def test_each_wait_owns_anew() -> None:
    """Where the ring goes on from there, also past its end."""
    with Waiting(stream_of([(0, 9)]), NONE, capacity=32) as waiting:
        out, data = np.zeros(32, COMMAND_DTYPE), waiting.ring.arrays[1]
        for step in range(1, 9):
            waiting.wait()
            assert waiting.ring.pop(out) == waiting.longest
            data[:, RecordWord.SEQ] = MARKED
            assert waiting.back.push(out[waiting.longest - 1 : waiting.longest]) == 1
            waiting.wait()
            assert waiting.ring.word(HeaderWord.HEAD) == (step + 1) * waiting.longest
            at = np.arange(waiting.longest) + waiting.ring.word(HeaderWord.HEAD)
            assert (data[at % 32, RecordWord.SEQ] == (0 if step < 8 else MARKED)).all()
            assert (data[(at + waiting.longest) % 32, RecordWord.SEQ] == MARKED).all()


def test_no_more_slots_are_fetched_than_a_cache_holds() -> None:
    with Waiting(stream_of([(0, 2)] * sr.MOST_PLACES, layers=40), NONE, capacity=1 << 15) as waiting:
        assert sr.MOST_PLACES * waiting.longest > iss.MOST_FETCHED
        waiting.wait()
        assert waiting.fetched == list(range(iss.MOST_FETCHED))


def tell(waiting: Waiting, end: Records) -> None:
    assert waiting.back.push(end) == 1


def test_all_but_the_last_record_go_out_ahead_and_the_rest_has_fetched_slots() -> None:
    """They go once the previous step was flushed; the last goes once the driver is notified. No step is invented."""
    with Waiting(stream_of([(0, 4)]), AHEAD, capacity=64) as waiting:
        out, longest = np.zeros(64, COMMAND_DTYPE), waiting.longest
        for step in range(1, 5):
            waiting.ring.arrays[1][:, RecordWord.SEQ] = MARKED
            waiting.wait()
            head = step * longest
            assert waiting.ring.word(HeaderWord.HEAD) == head, "the batcher has not reported that the step was flushed"
            popped = waiting.ring.pop(out)
            end = out[popped - 1 : popped].copy()
            assert end["flags"][0] & Flag.STEP_END
            waiting.ring.set_word(HeaderWord.STEPS_LEFT, head - 1)
            waiting.wait()
            assert waiting.ring.word(HeaderWord.HEAD) == head
            waiting.ring.set_word(HeaderWord.STEPS_LEFT, head)
            before_ns = time.monotonic_ns()
            waiting.wait()
            after_ns = time.monotonic_ns()
            early = (longest - 1) * (step < 4)
            assert waiting.ring.word(HeaderWord.HEAD) == head + early
            assert waiting.ring.pop(out) == early
            assert not out["flags"][:early].any()
            assert ((before_ns <= out["enqueue_ns"][:early]) & (out["enqueue_ns"][:early] <= after_ns)).all()
            assert waiting.fetched[:1] == [0] * (step < 4), "the slot of the last record"
            tell(waiting, end)
            if step == 4:
                assert waiting.driver._enter(waiting.ring, waiting.back) == iss.DriverExit.DONE


def test_last_records_go_out_together() -> None:
    """Last records go in the order in which the requests' tokens came, and before any record of a next step."""
    with Waiting(stream_of([(0, 3)] * 3), AHEAD, capacity=64) as waiting:
        out = np.zeros(64, COMMAND_DTYPE)
        waiting.wait()
        assert waiting.ring.pop(out) == 24
        ends = out[[23, 7]].copy()
        waiting.ring.set_word(HeaderWord.STEPS_LEFT, 24)
        waiting.wait()
        assert waiting.ring.pop(out) == 21
        waiting.back.push(ends)
        waiting.wait()
        assert waiting.ring.pop(out) == 2
        assert out["request"][:2].tolist() == [2, 0]
        assert (out["flags"][:2] & Flag.STEP_END).all()
        assert out["seq"][:2].tolist() == [45, 46]
        assert out["enqueue_ns"][0] == out["enqueue_ns"][1], "issued at once"
        waiting.ring.set_word(HeaderWord.STEPS_LEFT, 46)
        waiting.wait()
        assert waiting.ring.pop(out) == 7, "the other request's step was not flushed"
        assert (out["request"][:7] == 2).all()


def test_no_more_goes_out_ahead_than_there_are_free_slots() -> None:
    """Only whole steps go, and a slot for the last record of each place stays free."""
    for capacity, early in ((8, 0), (16, 7), (32, 7)):
        with Waiting(stream_of([(0, 3)]), AHEAD, capacity) as waiting:
            out = np.zeros(8, COMMAND_DTYPE)
            waiting.wait()
            assert waiting.ring.pop(out[:4]) == 4
            waiting.ring.set_word(HeaderWord.STEPS_LEFT, 8)
            waiting.wait()
            assert waiting.ring.word(HeaderWord.HEAD) == 8 + early


def test_what_went_out_ahead_is_not_forgotten_where_requests_share_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record once, though the second request's step takes the place of what was prepared of the first's."""
    monkeypatch.setattr(sr, "MOST_PLACES", 1)
    with Waiting(stream_of([(0, 2), (0, 2)]), AHEAD, capacity=64) as waiting:
        out = np.zeros(64, COMMAND_DTYPE)
        waiting.wait()
        assert waiting.ring.pop(out) == 16
        ends = out[[7, 15]].copy()
        waiting.ring.set_word(HeaderWord.STEPS_LEFT, 16)
        waiting.wait()
        assert waiting.ring.pop(out) == 7
        assert (out["request"][:7] == 1).all()
        for end, count in ((ends[:1], 8), (ends[1:], 1)):
            tell(waiting, end)
            waiting.wait()
            assert waiting.ring.pop(out) == count
            assert (out["request"][:count] == end["request"]).all()
            assert out["step"][:count].tolist() == list(range(16 - count, 16))
