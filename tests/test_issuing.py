"""Who waits owns the ring's room for what it has prepared, and no other (issuing.py's loop, entered by a driver)."""

from __future__ import annotations

import numpy as np
import pytest
from driver_runs import CONTINUOUS, NONE, expected_records, stream_of
from program_interpreter import steps_of as kinds_of

from launchopt import issuing as iss
from launchopt import step_records as sr
from launchopt.command import COMMAND_DTYPE, W_SEQ
from launchopt.driver import Driver, Schedule
from launchopt.ring import HEAD, TAIL, Ring
from launchopt.workloads.chain import ChainStream

MARKED = 2**40  # in the word of a slot that is stored to


class Waiting:
    """A driver in this thread whose first steps are pushed, and who is not told that they are done."""

    def __init__(self, stream: ChainStream, schedule: Schedule, capacity: int) -> None:
        self.capacity, self.longest = capacity, len(expected_records(stream, 0)) // len(kinds_of(stream, 0))
        self.ring, self.back = Ring.create(capacity), Ring.create(1 << stream.requests.bit_length())
        self.ring.arrays[1][:, W_SEQ] = MARKED
        self.driver = Driver(stream, schedule, spin_us=1, sleep_us=50)

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.ring.release()
        self.back.release()

    def wait(self) -> None:
        """As often as it takes to prepare every place and to own every slot; something is done each time."""
        for _ in range(1 + sr.MOST_PLACES + self.capacity // iss.OWNED_AT_ONCE + 1):
            assert self.driver._enter(self.ring, self.back) == iss.IDLE

    @property
    def owned(self) -> list[int]:
        """Slots that were stored to, counted from the head on."""
        slots = np.flatnonzero(self.ring.arrays[1][1:, W_SEQ] == 0) + 1  # the first holds record 0
        return sorted(int(slot - self.ring.word(HEAD)) % self.capacity for slot in slots)


@pytest.mark.parametrize("schedule", [NONE, CONTINUOUS], ids=["none", "continuous"])
@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_who_waits_owns_the_room_for_all_that_is_prepared(schedule: Schedule, outputs: int) -> None:
    """And for no more; nothing for requests that have no further step."""
    with Waiting(stream_of([(0, outputs), (0, 3), (0, 3)]), schedule, capacity=256) as waiting:
        waiting.wait()
        goes_on = 2 + (outputs > 1)
        assert waiting.ring.word(HEAD) == 3 * waiting.longest
        assert waiting.owned == list(range(goes_on * waiting.longest))


def test_who_waits_owns_room_as_it_comes() -> None:
    with Waiting(stream_of([(0, 3)]), NONE, capacity=8) as waiting:
        assert waiting.longest == 8
        data = waiting.ring.arrays[1]
        waiting.wait()
        assert data[:, W_SEQ].tolist() == list(range(8)), "the ring is full of what nobody has read"
        for popped in (3, 5, 8):
            assert waiting.ring.pop(np.zeros(popped - waiting.ring.word(TAIL), COMMAND_DTYPE)) > 0
            waiting.wait()
            assert data[:, W_SEQ].tolist() == [0] * popped + list(range(popped, 8))


def test_each_wait_owns_anew() -> None:
    """Where the ring goes on from there, also past its end."""
    with Waiting(stream_of([(0, 9)]), NONE, capacity=32) as waiting:
        out, data = np.zeros(32, COMMAND_DTYPE), waiting.ring.arrays[1]
        for step in range(1, 9):
            waiting.wait()
            assert waiting.ring.pop(out) == waiting.longest
            data[:, W_SEQ] = MARKED
            assert waiting.back.push(out[waiting.longest - 1 : waiting.longest]) == 1
            waiting.wait()
            assert waiting.ring.word(HEAD) == (step + 1) * waiting.longest
            at = np.arange(waiting.longest) + waiting.ring.word(HEAD)
            assert (data[at % 32, W_SEQ] == (0 if step < 8 else MARKED)).all()
            assert (data[(at + waiting.longest) % 32, W_SEQ] == MARKED).all()


def test_no_more_room_is_owned_than_a_cache_holds() -> None:
    with Waiting(stream_of([(0, 2)] * sr.MOST_PLACES, layers=40), NONE, capacity=1 << 15) as waiting:
        assert sr.MOST_PLACES * waiting.longest > iss.MOST_OWNED
        waiting.wait()
        assert waiting.owned == list(range(iss.MOST_OWNED))
