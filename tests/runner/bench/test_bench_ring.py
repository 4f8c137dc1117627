"""What is measured of steps is what a run does: all are gathered, each round, whoever had the ring's slots before."""

from __future__ import annotations

import numpy as np
import pytest

from launchopt.command import WORDS
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from runner.bench import ring as bench


def test_steps_are_gathered_with_their_slots_owned_and_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 10)
    medians = bench._steps()
    assert medians.shape == (2,)
    assert (medians > 0).all()


def test_each_round_pushes_every_record_once() -> None:
    rounds, record = 4, np.zeros((1, WORDS), np.uint64)
    with Ring.create(16) as there, Ring.create(rounds) as back:
        back.push(np.zeros(rounds, bench.COMMAND_DTYPE))  # the notifications of all steps are there from the start
        times_ns = np.zeros(rounds, np.int64)
        bench._push_rounds(there.arrays, back.arrays, np.zeros((2, 2, WORDS), np.uint64), record, times_ns)
        assert (there.word(HeaderWord.HEAD), there.word(HeaderWord.TAIL)) == (rounds * 4, 0)
        assert back.word(HeaderWord.TAIL) == rounds
        assert (times_ns < 0).all()
