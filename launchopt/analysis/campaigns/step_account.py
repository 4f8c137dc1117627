"""Where the time of a decode step in one launch goes: from the clock's stamps of one launch to an account by op.

In: stamps, int64 [blocks, instructions, BEGAN, READY or DONE] in cycles of each multiprocessor's own clock, 0 where a
block has no share of an instruction; a name an instruction; cycles a us. Out: a `Part` a name, in the order in which
the list has them. Clocks of two multiprocessors have nothing to do with each other: only times of one block are
subtracted. What is done as one is one instruction here.

Blocks wait for each other, so that what one waits for is another's work: of the medians and maxima over blocks, sums
say what is long, and not what the whole is. Those of block 0 add up: its waits, its work, and what lies between two
instructions of which it has a share, from the begin of the first one to the end of the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BEGAN, READY, DONE = range(3)  # of kernels/megakernel.cu, of an instruction
CYCLES, NS = range(2)  # and of a whole launch
FIRST = 0  # the block whose times add up

Stamps = NDArray[np.int64]
Cycles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """All instructions of one name. us; each instruction's wait and work are a median, or most, over its blocks."""

    op: str
    instructions: int
    blocks: float  # that have a share, the mean over instructions
    wait_us: float  # mean of an instruction: from its begin until all that it waits for is there
    wait_most_us: float
    work_us: float  # and from then to its end
    work_most_us: float
    wait_sum_us: float  # of the medians, over all instructions
    work_sum_us: float
    own_wait_us: float  # block 0's, over all instructions
    own_work_us: float
    own_between_us: float  # from an instruction's end to the begin of the next

    @property
    def own_us(self) -> float:
        """All of block 0's."""
        return self.own_wait_us + self.own_work_us + self.own_between_us


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time that a step can take: its weights, read once at the measured bandwidth."""

    weight_bytes: int
    gb_per_s: float
    ceiling: str  # which: read or copy, the larger, as in analysis/roofline.py

    @property
    def us(self) -> float:
        """The weights alone."""
        return self.weight_bytes / self.gb_per_s * 1e-3

    def achieved_gb_per_s(self, us: float) -> float:
        """Of a step that took so long."""
        return self.weight_bytes / us * 1e-3


def floor_of(weight_bytes: int, ceilings: Mapping[str, float]) -> Floor:
    """`ceilings`: of the device, as its `Ceilings` has them."""
    rate, name = max((ceilings[f"{name}_gb_per_s"], name) for name in ("read", "copy"))
    return Floor(weight_bytes, rate, name)


def clock_mhz(wholes: NDArray[np.int64]) -> float:
    """Cycles a us of the median block. wholes: [blocks, CYCLES or NS], of a launch: its own clock, and the GPU's timer.

    NVML does not know it: the clock gives way while tensor cores are busy now and then, for less than NVML looks at.
    """
    return float(np.median(wholes[:, CYCLES] / wholes[:, NS])) * 1e3


def account(stamps: Stamps, names: Sequence[str], mhz: float) -> list[Part]:
    """A part a name."""
    began, done = stamps[:, :, BEGAN], stamps[:, :, DONE]
    ready, has_share = np.maximum(stamps[:, :, READY], began), done > 0
    waits, works, between = (ready - began) / mhz, (done - ready) / mhz, _between(stamps[FIRST], mhz)
    assert len(names) == len(has_share.T), "a name each"
    each = []
    for i, own in enumerate(has_share.T):
        over_blocks = *_over_blocks(waits[own, i]), *_over_blocks(works[own, i])
        first = (waits[FIRST, i], works[FIRST, i]) if own[FIRST] else (0.0, 0.0)
        each.append([own.sum(), *over_blocks, *first, between[i]])
    table = np.array(each, np.float64)
    parts = []
    for name in dict.fromkeys(names):
        own = table[[i for i, other in enumerate(names) if other == name]]
        blocks, wait, wait_most, work, work_most, *_ = own.mean(axis=0).tolist()
        _, wait_sum, _, work_sum, _, *first = own.sum(axis=0).tolist()
        parts.append(Part(name, len(own), blocks, wait, wait_most, work, work_most, wait_sum, work_sum, *first))
    return parts


def _over_blocks(times: Cycles) -> tuple[float, float]:
    """Median and most; nothing where no block has a share."""
    return (float(np.median(times)), float(times.max())) if len(times) else (0.0, 0.0)


def _between(own: Stamps, mhz: float) -> Cycles:
    """Of one block, after each instruction of which it has a share, until it begins the next."""
    between = np.zeros(len(own))
    mine = np.flatnonzero(own[:, DONE] > 0)
    between[mine[:-1]] = (own[mine[1:], BEGAN] - own[mine[:-1], DONE]) / mhz
    return between
