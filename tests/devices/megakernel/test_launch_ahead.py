"""Launches ahead of their commands: which launches are made, which are admitted, and which are called off."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.cuda.libraries import imported

from launchopt.devices.feedback.stages import STAGES
from launchopt.devices.loops.admission import TAG_SHIFT, ExpectedWord
from launchopt.devices.steps.keys import StepKey
from launchopt.errors import RunError
from launchopt.kernels.shared import word_of
from launchopt.kernels.shared_megakernel import GATE

la: Any = imported("launchopt.devices.megakernel.launch_ahead")

ARGUMENTS = 0x7F00_1234_5600
WORD, TAG = word_of(GATE, "word"), word_of(GATE, "tag")


class Launches:
    """A program that records its launches. waits: the gate of its gated launch, or None."""

    feeds_back = True
    known = StepKey(1, 1, 0, 0, np.zeros(3, np.uint64), b"")

    def __init__(self) -> None:
        self.waits: NDArray[np.int64] | None = None
        self.made = self.taken_back = 0

    def launch_gated(self, gate: NDArray[np.int64]) -> bool:
        if not self.feeds_back:
            return False
        assert self.waits is None
        self.waits, self.made = gate.copy(), self.made + 1
        return True

    def took_back(self) -> None:
        self.taken_back += 1


class Gpu(la.LaunchAhead):
    """A `LaunchAhead` with the host's words in its own memory, and without a compiled loop (see test_admission)."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(addresses=None, arrays=None), 3)  # type: ignore[arg-type]

    @property
    def is_expected(self) -> bool:
        """Return whether a compiled loop would admit a launch."""
        return bool(self.admission.arrays[0][ExpectedWord.WAITS])

    def admit_compiled(self) -> None:
        """Admit a launch, as the compiled loop does."""
        self.admission.arrays[0][[ExpectedWord.WAITS, ExpectedWord.ADMITTED]] = 0, 1

    @property
    def stored_word(self) -> tuple[int, int]:
        """Return the word for the last launch: its tag (0 if nothing was written), and the remaining bits."""
        return divmod(int(self._gate_words[self._tag % la.WORDS]), 1 << int(TAG_SHIFT))

    def give_up(self, tag: int) -> None:
        self._gave_up[0] = tag

    def skip_to(self, tag: int) -> None:
        self._tag = tag


@pytest.fixture(scope="module")
def ahead_of() -> Iterator[Any]:
    """Return a factory of fake GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        zeros = lambda count, dtype: SimpleNamespace(data=SimpleNamespace(ptr=8))  # noqa: E731
        patch.setattr(la, "cupy", SimpleNamespace(zeros=zeros))
        patch.setattr(la, "pinned", np.zeros)
        yield Gpu


def step(ahead: Gpu, program: Launches, arguments: int = ARGUMENTS) -> bool:
    """Run a batch that is `program`, as devices.megakernel does. Return whether a gated launch was waiting for it."""
    admitted = ahead.admit(program, arguments)
    if admitted:
        assert program.waits is not None
        assert ahead.stored_word == (program.waits[TAG], arguments)
        program.waits = None
    ahead.follow(program, True)
    return admitted


def check_called_off(ahead: Gpu, program: Launches) -> None:
    """Check that the gated launch was called off."""
    assert program.waits is not None
    assert ahead.stored_word == (program.waits[TAG], 0)
    program.waits = None


def test_a_known_successor_is_launched_ahead(ahead_of: Any) -> None:
    ahead, program = ahead_of(), Launches()
    assert [step(ahead, program) for _ in range(6)] == [False, False, True, True, True, True]
    assert program.made == 5, "all but the first launch are made ahead"
    ahead.call_off()
    check_called_off(ahead, program)
    assert (ahead.called_off, program.taken_back) == (1, 1)
    ahead.call_off()
    assert ahead.called_off == 1, "no launch is left"


def test_programs_that_take_turns(ahead_of: Any) -> None:
    """Programs alternate like those of several copies of the weights."""
    ahead, programs = ahead_of(), [Launches() for _ in range(3)]
    admitted = [step(ahead, programs[i % 3]) for i in range(12)]
    assert admitted == [False] * 4 + [True] * 8
    assert ahead.called_off == 0


def test_another_program_follows(ahead_of: Any) -> None:
    ahead, one, other = ahead_of(), Launches(), Launches()
    for _ in range(3):
        step(ahead, one)
    assert not ahead.admit(other, ARGUMENTS)
    check_called_off(ahead, one)
    assert ahead.called_off == one.taken_back == 1
    ahead.follow(other, True)
    assert other.waits is None, "its successor is unknown"


def test_the_host_may_be_ahead_of_the_gpu(ahead_of: Any) -> None:
    """The host's word stays until its launch has read it, also while the host writes to later launches."""
    ahead, program, words = ahead_of(), Launches(), list[int]()
    for _ in range(STAGES):
        step(ahead, program)
        waits: Any = program.waits
        words += [] if waits is None else [int(waits[WORD])]
    assert len(set(words)) == len(words) == STAGES - 1


def test_a_step_without_feedback_admits_no_launch(ahead_of: Any) -> None:
    ahead, program = ahead_of(), Launches()
    for _ in range(3):
        step(ahead, program)
    assert not ahead.admit(program, 0)
    check_called_off(ahead, program)
    program.feeds_back = False
    ahead.follow(program, True)
    assert program.made == 2
    ahead.call_off()
    assert ahead.called_off == 1


def test_a_stale_launch_is_not_admitted(ahead_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns, ahead, program = [0], ahead_of(), Launches()
    monkeypatch.setattr(la.time, "monotonic_ns", lambda: now_ns[0])
    for _ in range(3):
        step(ahead, program)
    now_ns[0] += la.STALE_NS
    assert step(ahead, program)
    now_ns[0] += la.STALE_NS + 1
    assert not ahead.admit(program, ARGUMENTS)
    check_called_off(ahead, program)


def test_an_admitted_launch_that_gave_up_is_an_error(ahead_of: Any) -> None:
    ahead, program = ahead_of(), Launches()
    for _ in range(2):
        step(ahead, program)
    waits: Any = program.waits
    ahead.check_alive()
    ahead.admit(program, ARGUMENTS)
    ahead.check_alive()
    ahead.give_up(int(waits[TAG]))
    with pytest.raises(RunError, match="gave up"):
        ahead.check_alive()


def test_a_launch_that_was_called_off_may_give_up(ahead_of: Any) -> None:
    ahead, program = ahead_of(), Launches()
    for _ in range(2):
        step(ahead, program)
    waits: Any = program.waits
    ahead.give_up(int(waits[TAG]))
    ahead.call_off()
    ahead.check_alive()


def test_successors_of_dropped_programs_are_forgotten(ahead_of: Any) -> None:
    ahead, program = ahead_of(), Launches()
    for _ in range(3):
        step(ahead, program)
    ahead.forget()
    check_called_off(ahead, program)
    assert [step(ahead, program) for _ in range(3)] == [False, False, True]


def test_a_run_does_not_go_on_where_another_ended(ahead_of: Any) -> None:
    ahead, one, other = ahead_of(), Launches(), Launches()
    for program in (one, other):
        step(ahead, program)
    ahead.start()
    step(ahead, one)
    assert other.waits is not None, "successors are still known"
    ahead.call_off()
    check_called_off(ahead, other)
    ahead.start()
    step(ahead, other)
    assert one.waits is None, "the first run's end is not before this one's begin"


def test_a_compiled_loop_admits_a_launch(ahead_of: Any) -> None:
    """It admits the waiting launch and no other. Python sees the admission once."""
    ahead, program = ahead_of(), Launches()
    for _ in range(2):
        assert not ahead.is_expected
        step(ahead, program)
    assert ahead.is_expected
    assert ahead.admitted() is None
    ahead.admit_compiled()
    assert [ahead.admitted(), ahead.admitted()] == [program, None]
    program.waits = None
    ahead.follow(program, True)
    assert ahead.is_expected
    ahead.call_off()
    check_called_off(ahead, program)
    assert not ahead.is_expected
    assert (ahead.called_off, program.made, program.taken_back) == (1, 2, 1)
    step(ahead, program)
    assert step(ahead, program)
    assert ahead.is_expected, "the next launch waits"


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=200), st.integers(0, la.MOST_TAG))
def test_each_launch_is_made_once_or_called_off(asked: list[tuple[int, bool, bool]], tag: int) -> None:
    """A waiting launch gets its word before the next launch, and consecutive tags differ. Programs are arbitrary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(la, "cupy", SimpleNamespace(zeros=lambda n, kind: SimpleNamespace(data=SimpleNamespace(ptr=8))))
        patch.setattr(la, "pinned", np.zeros)
        ahead, programs, admitted, recent = Gpu(), [Launches() for _ in range(4)], 0, list[int]()
        ahead.skip_to(tag)
        for number, feeds_back, drops in asked:
            waiting = [each for each in programs if each.waits is not None]
            assert len(waiting) <= 1
            program = programs[number]
            found = ahead.admit(program, ARGUMENTS if feeds_back else 0)
            assert not found or waiting == [program]
            for each in waiting:
                assert ahead.stored_word == (each.waits[TAG], ARGUMENTS if found else 0)  # type: ignore[index]
                assert 0 < ahead.stored_word[0] <= la.MOST_TAG
                recent.append(each.waits[WORD])
                assert len(set(recent[-STAGES:])) == len(recent[-STAGES:]), (
                    "launches within STAGES need different words"
                )
                each.waits = None
            admitted += found
            if drops:
                ahead.forget()
            ahead.follow(program, feeds_back)
        ahead.call_off()
        assert sum(each.made for each in programs) == admitted + ahead.called_off
        assert sum(each.taken_back for each in programs) == ahead.called_off
