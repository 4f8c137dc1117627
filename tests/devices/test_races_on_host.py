"""Threads of kernels/megakernel.cu do nothing to the same memory without an order between them (cuda_on_host/races.h).

Whatever order they happened to run in. What makes the order is needed: without it a race is found.
"""

from __future__ import annotations

import pytest
from cuda_on_host import can_build
from kernel_orders import COUNTED, KERNEL, LISTS, statements, without

from launchopt.kernels import source

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")


@pytest.mark.parametrize("name", LISTS)
def test_there_is_none(name: str) -> None:
    run = LISTS[name]()
    assert run.launches
    assert run.verify().ok
    assert {each.defines["PAIRS"] for each in run.lists.values()} == {int("shared" in name or "pair" in name)}


def test_what_was_loaded_before_a_counter_without_a_fence_is_replaced() -> None:
    """Hardware has loaded what was used; PTX's memory model does not say so."""
    assert source("megakernel").count(COUNTED) == 1
    with pytest.raises(RuntimeError, match=r"a race: .* stores to memory, .*target.* loads from there .*load_relaxed"):
        LISTS["greedy"](text=source("megakernel"))


# How a line begins, and a list of which threads have no order without it.
NEEDED = {
    "barrier_wait(barrier() + SLOTS * 8": "layers",  # until a slot has been read
    "ring.wait<SLOTS_A_STEP>": "several passes",  # until it is full
    "__syncwarp();\n        if (lane < left) barrier_arrive": "layers",  # before it is told that it has been read
    "peer.wait(": "shared down",
    "__threadfence();\n        atomicAdd(q.counters": "layers",
    "if (FINDS) wait_for_all(": "greedy",
    "if (!task.streamed || !task.mailed": "layers",
}


@pytest.mark.parametrize("line", NEEDED)
def test_what_makes_an_order_is_needed(line: str) -> None:
    (found,) = (each for each in statements(KERNEL) if KERNEL.startswith(line, beginning(each[0])))
    with pytest.raises(RuntimeError, match="a race: "):
        LISTS[NEEDED[line]](text=without(KERNEL, found))


def beginning(place: int) -> int:
    """Of its line, less what it is indented."""
    line = KERNEL.rfind("\n", 0, place) + 1
    return line + len(KERNEL[line:]) - len(KERNEL[line:].lstrip())
