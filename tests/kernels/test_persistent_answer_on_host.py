"""How long polls of the persistent kernel wait, learnt from earlier polls (persistent/dispatcher_state.cuh)."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda_on_host import built, can_build, launch

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

# A host that answers after `answer` cycles. A poll that leaves earlier finds nothing; the next one finds the answer.
CALL = """[](const u64* given) {
    const u64 answer = given[0], count = given[1], polls = given[2];
    u32* cycles = (u32*)given[3];
    if (threadIdx.x == 0) desk.answer_cycles = ANSWER_CYCLES;
    __syncwarp();
    for (u64 i = 0; i < count; ++i) {
        const u32 now = desk.answer_cycles;
        if (threadIdx.x == 0) cycles[i] = now;
        learn_answer(polls + (now < answer), threadIdx.x);
    }
}((const u64*)arguments)"""
COUNT = 4000
FIRST, LATER, MOST = 350, 32, 2048  # ANSWER_CYCLES, LATER_CYCLES, MOST_ANSWER_CYCLES


def cycles_of(answer: int, polls: int) -> NDArray[np.int64]:
    """Return the cycles that each poll waits. polls: number that find nothing, besides one that leaves too early."""
    cycles = np.zeros(COUNT, np.uint32)
    arguments = np.array([answer, COUNT, polls, cycles.ctypes.data], np.uint64)
    launch(built("persistent", CALL, DTYPE=0), (1,), 32, 0, arguments.ctypes.data)
    return cycles.astype(np.int64)


@pytest.mark.parametrize("answer", [0, 40, FIRST, 1000, MOST - LATER])
def test_polls_leave_when_the_host_has_just_answered(answer: int) -> None:
    """Once polls have adapted, about one of LATER polls leaves too early."""
    settled = cycles_of(answer, 0)[COUNT // 2 :]
    assert settled.min() >= answer - 1
    assert settled.max() < answer + LATER
    assert np.mean(settled < answer) == pytest.approx(1 / (LATER + 1) if answer else 0, rel=0.05)


def test_the_wait_for_a_slow_host_is_bounded() -> None:
    assert cycles_of(1 << 20, 0).max() == MOST


@pytest.mark.parametrize("answer", [0, 1000])
def test_a_late_command_does_not_change_the_wait(answer: int) -> None:
    assert (cycles_of(answer, 2) == FIRST).all()
