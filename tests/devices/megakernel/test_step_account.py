"""The account of a step, from stamps to times by op. Blocks without a share do not count; times of block 0 add up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from launchopt.devices.megakernel.step_account import Part, account, clock_mhz, floor_of

MHZ = 2000.0


def span_cycles(stamps: NDArray[np.int64]) -> int:
    """Return the cycles of block 0 from the start of its first instruction to the end of its last; 0 if it has none."""
    own = stamps[0][stamps[0, :, 2] > 0]
    return int(own[-1, 2] - own[0, 0]) if len(own) else 0


def own_us(part: Part) -> float:
    """Return the sum of all times of block 0 in us."""
    return part.own_wait_us + part.own_work_us + part.own_between_us


CEILINGS = {"copy_gb_per_s": 4000.0, "read_gb_per_s": 4500.0, "peak_tflops": 700.0}
NAMES = ["NORM", "GEMM 64x32", "GEMM 64x32"]
# The stamps BEGAN, READY and DONE of each instruction in three blocks, in cycles of each block's own clock.
STAMPS = np.array(
    [
        [[1000, 1000, 3000], [3200, 4200, 8200], [8400, 12400, 14400]],
        [[0, 0, 0], [70_000, 76_000, 78_000], [78_200, 84_200, 92_200]],
        [[0, 0, 0], [500, 2500, 8500], [0, 0, 0]],
    ],
    np.int64,
)


def test_times_by_op() -> None:
    norm, gemm = account(STAMPS, NAMES, MHZ)
    assert norm == Part("NORM", 1, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.1)
    assert gemm == Part(
        "GEMM 64x32",
        instructions=2,
        blocks=2.5,
        wait_us=(1.0 + 2.5) / 2,  # medians of (0.5, 3, 1) and of (2, 3)
        wait_most_us=3.0,
        work_us=(2.0 + 2.5) / 2,  # medians of (2, 1, 3) and of (1, 4)
        work_most_us=(3.0 + 4.0) / 2,
        wait_sum_us=3.5,
        work_sum_us=4.5,
        own_wait_us=0.5 + 2.0,
        own_work_us=2.0 + 1.0,
        own_between_us=0.1,
    )


def test_block_0_adds_up_to_its_whole_time() -> None:
    assert span_cycles(STAMPS) == 13_400
    assert sum(map(own_us, account(STAMPS, NAMES, MHZ))) == pytest.approx(13_400 / MHZ)


def test_one_block() -> None:
    norm, gemm = account(STAMPS[:1], NAMES, MHZ)
    assert (norm.wait_us, norm.work_us, gemm.blocks) == (0.0, 1.0, 1.0)
    assert (gemm.wait_sum_us, gemm.work_sum_us) == (gemm.own_wait_us, gemm.own_work_us) == (2.5, 3.0)
    assert (gemm.wait_us, gemm.wait_most_us) == (1.25, 1.25)


def test_no_stamps_are_no_time() -> None:
    nothing = np.zeros((4, 2, 3), np.int64)
    assert account(nothing, ["A", "B"], MHZ) == [Part(name, 1, *[0.0] * 10) for name in "AB"]


def test_an_instruction_without_a_share_of_block_0() -> None:
    stamps = STAMPS.copy()
    stamps[0, 1] = 0
    norm, gemm = account(stamps, NAMES, MHZ)
    assert norm.own_between_us == (8400 - 3000) / MHZ, "until its next instruction, here the end"
    assert (gemm.own_wait_us, gemm.own_work_us, gemm.own_between_us) == (2.0, 1.0, 0.0)
    assert own_us(norm) + own_us(gemm) == pytest.approx(span_cycles(stamps) / MHZ)


def test_without_a_ready_stamp_a_block_is_ready_at_the_start() -> None:
    stamps = np.array([[[1000, 0, 3000]]], np.int64)
    (part,) = account(stamps, ["JOIN"], MHZ)
    assert (part.wait_us, part.work_us) == (0.0, 1.0)


times = st.lists(st.tuples(*[st.integers(0, 10**6)] * 3, st.booleans()), min_size=1, max_size=8)


@given(st.lists(times, min_size=1, max_size=4), st.sampled_from([1.0, 1980.0]))
def test_nothing_is_negative_and_block_0_is_never_more_than_its_whole(each: list[list[tuple[int, ...]]], mhz: float):
    count = min(map(len, each))
    stamps = np.array([stamped(own[:count]) for own in each], np.int64)
    names = [f"op {i % 3}" for i in range(count)]
    parts = account(stamps, names, mhz)
    assert sum(part.instructions for part in parts) == count
    for part in parts:
        assert min(part.wait_us, part.work_us, part.own_wait_us, part.own_work_us, part.own_between_us) >= 0
        assert part.wait_most_us >= part.wait_us
        assert part.work_most_us >= part.work_us
    assert sum(map(own_us, parts)) == pytest.approx(span_cycles(stamps) / mhz)


def stamped(own: list[tuple[int, ...]]) -> NDArray[np.int64]:
    """Return the stamps of one block with these gaps, waits and works in cycles; zeros where it has no share."""
    found, now = np.zeros((len(own), 3), np.int64), 1
    for row, (gap, wait, work, has_share) in zip(found, own, strict=True):
        if has_share:
            row[:] = np.cumsum([now + gap, wait, work])
            now = int(row[2])
    shared = [row for row in found if row.any()]
    assert all(one[2] <= other[0] for one, other in pairwise(shared))
    return found


def test_the_clock_is_that_of_the_median_block() -> None:
    wholes = np.array([[1800, 1000, 0], [3470, 2000, 0], [500, 1000, 0]], np.int64)
    assert clock_mhz(wholes) == pytest.approx(1735.0)


def test_the_floor_is_the_weights_at_the_larger_bandwidth() -> None:
    floor = floor_of(90_000_000, CEILINGS)
    assert (floor.gb_per_s, floor.ceiling) == (4500.0, "read")
    assert floor.us == pytest.approx(20.0)
    assert floor.achieved_gb_per_s(40.0) == pytest.approx(2250.0)
    assert floor_of(1, CEILINGS | {"copy_gb_per_s": 5000.0}).ceiling == "copy"
