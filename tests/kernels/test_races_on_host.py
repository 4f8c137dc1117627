"""kernels/megakernel.cu has no race between threads, in any order of them (cuda_on_host/races.h).

Every statement that makes an order is necessary: without it a race is found.
"""

from __future__ import annotations

import pytest
from support.cuda_on_host import can_find_races
from support.megakernel.kernel_orders import KERNEL, LISTS, beginning, statements, without
from support.thorough import some

pytestmark = pytest.mark.skipif(not can_find_races(), reason="needs g++ 11")


@pytest.mark.parametrize("name", some(LISTS))
def test_the_megakernel_has_no_race(name: str) -> None:
    run = LISTS[name]()
    assert run.launches
    assert run.verify().ok
    assert {each.defines["PAIRS"] for each in run.lists.values()} == {int("shared" in name or "pair" in name)}
    assert {each.defines["SHORT"] for each in run.lists.values()} == {int("short" in name)}


@pytest.mark.parametrize("name", some(["layers", "layers, 4 requests", "several passes", "short ones"]))
def test_the_variant_for_racecheck_has_no_race(name: str) -> None:
    meets = "__syncwarp();\n        for (u32 i = 0; EACH_LANE"
    assert KERNEL.count(meets) == 1
    text = KERNEL.replace(meets, meets.removeprefix("__syncwarp();"))
    run = LISTS[name](text=f"#define EACH_LANE 1\n{text}")
    assert run.launches
    assert run.verify().ok


# The beginning of a statement, and a list that has a race without it.
NEEDED = {
    "barrier_wait(barrier() + SLOTS * 8": "layers",  # waits until a slot has been read
    "if (__any_sync(0xFFFFFFFFu, !are_full))": "several passes",  # waits until slots are full
    "ring.wait<SLOTS_A_STEP>": "layers",
    "__syncwarp();\n        for (u32 i = 0; EACH_LANE": "layers",  # before the warp reports that it has read a slot
    "peer.wait(": "shared down",
    "__threadfence();\n        atomicAdd(q.counters": "layers",
    "if (FINDS_LARGEST) wait_for_all(": "greedy",
    "if ((flags & (STREAMED | MAILED | ADDS))": "layers",
    "meet();\n        store(task": "short ones",  # before a warp adds up the sums of others
    "__syncwarp();\n    }\n    // Multiply the warp's slices": "short ones of halves",  # before lanes read inputs
    "barrier_wait(shared_address(&is_known)": "made ahead",  # before weights are fetched: the host's word must be there
}


@pytest.mark.parametrize("name", ["norms", "norms of halves"])
def test_consecutive_norms_need_separate_sums(name: str) -> None:
    odd = "return flags & NORMED_ODD;"
    assert KERNEL.count(odd) == 1
    with pytest.raises(RuntimeError, match=r"a race: .* in `.*sums.*`, and"):
        LISTS[name](text=KERNEL.replace(odd, "return false;"))


@pytest.mark.parametrize("name", ["short ones", "short ones of halves"])
def test_sums_of_short_gemms_need_two_places(name: str) -> None:
    """A thread stores the sums of one GEMM while others write those of the next."""
    turned = "        turn ^= 1;\n    }\n};"
    assert KERNEL.count(turned) == 1
    with pytest.raises(RuntimeError, match=r"a race: .* in `.*part.*`, and"):
        LISTS[name](text=KERNEL.replace(turned, "    }\n};"))


@pytest.mark.parametrize("line", some(NEEDED))
def test_each_statement_that_makes_an_order_is_necessary(line: str) -> None:
    (found,) = (each for each in statements(KERNEL) if KERNEL.startswith(line, beginning(KERNEL, each[0])))
    with pytest.raises(RuntimeError, match="a race: "):
        LISTS[NEEDED[line]](text=without(KERNEL, found))
