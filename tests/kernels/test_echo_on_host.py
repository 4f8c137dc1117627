"""kernels/echo.cu on the host (resident_rig): it notifies the host of each complete command, and ends."""

from __future__ import annotations

import pytest
from support.cuda_on_host import can_build
from support.resident.resident_rig import PATIENCE_NS, Resident, launched_while

from launchopt.command import Dtype
from launchopt.devices.resident import ring as rl
from launchopt.kernels.shared import COMMAND_WORDS, KernelState

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")
OPERANDS = 1 << 20, 2 << 20, 3 << 20  # addresses that the kernel never reads


def echo(**how: int) -> Resident:
    return Resident(Dtype.fp32, 0, 0, name="echo", **how)


def test_the_host_is_notified_of_each_command_and_of_the_end() -> None:
    """The host posts one command at a time over several laps of the ring, then many together."""
    resident, alone = echo(), 3 << 5

    def post() -> None:
        for i in range(alone):
            assert resident.ring.post(*OPERANDS, 0, i % 3) == rl.OK
            resident.wait_for_completion(i)
        for i in range(10):
            assert resident.ring.post(*OPERANDS, 0, i) == rl.OK

    launched_while(resident, post)
    assert resident.ring.posted == alone + 11
    assert resident.completed == resident.ring.capacity
    assert resident.control[0] == KernelState.ENDED


def test_the_next_launch_goes_on_where_it_ended() -> None:
    resident = echo()
    for _ in range(2):
        launched_while(resident, lambda: resident.ring.post(*OPERANDS, 0, 0))
    assert resident.completed == resident.ring.posted == 4


@pytest.mark.parametrize("word", range(COMMAND_WORDS))
def test_a_command_without_one_of_its_words_is_not_complete(word: int) -> None:
    resident = echo(patience_ns=PATIENCE_NS)
    assert resident.ring.post(*OPERANDS, 0, 0) == rl.OK
    resident.ring.words[0, word] = 0
    resident.launch(1, most_turns=1 << 60)
    assert (resident.completed, resident.control[0]) == (0, KernelState.GAVE_UP)


def test_it_gives_up_when_the_host_asks_for_that() -> None:
    resident = echo()
    resident.control[1] = 1
    resident.launch(1, most_turns=1 << 60)
    assert resident.control[0] == KernelState.GAVE_UP
