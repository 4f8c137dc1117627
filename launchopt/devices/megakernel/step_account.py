"""Account of a decode step in one launch: where its time goes, by op.

In: the clock stamps of one launch, the name of each instruction, and the cycles per us. Out: a `Part` per name, in the
order of the instruction list. Instructions that the kernel runs as one count as one.

Each multiprocessor has a clock of its own, so only times of one block are subtracted. Blocks wait for each other's
work: medians and maxima over blocks say which instruction is long, but their sums are not the whole step. The times of
block 0 add up: its waits, its work, and the gaps between its instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.kernels.shared import LaunchClock, Stamp

FIRST = 0  # the block whose times add up

Stamps = NDArray[np.int64]  # [blocks, instructions, Stamp]: cycles; 0 where a block has no share of an instruction
Cycles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """Times of all instructions of one name, in us.

    Wait: from an instruction's begin until all its inputs are there. Work: from then to its end. `wait_us` and
    `work_us` are means over the instructions of the median over blocks; `_most_us`: of the maximum over blocks;
    `_sum_us`: sums of the medians. `own_`: sums of block 0; `own_between_us`: from an instruction's end to the begin of
    the next.
    """

    op: str
    instructions: int
    blocks: float  # that have a share of an instruction, mean
    wait_us: float
    wait_most_us: float
    work_us: float
    work_most_us: float
    wait_sum_us: float
    work_sum_us: float
    own_wait_us: float
    own_work_us: float
    own_between_us: float


class _Times(NamedTuple):
    """One instruction, or the mean or sum of several; us."""

    blocks: float
    wait: float
    wait_most: float
    work: float
    work_most: float
    own_wait: float
    own_work: float
    own_between: float


@dataclass(frozen=True, slots=True)
class WeightsFloor:
    """The least time of a step: its weights, each read once at the measured bandwidth."""

    weight_bytes: int
    gb_per_s: float
    ceiling: str  # "read" or "copy": the larger of the two measured bandwidths

    @property
    def us(self) -> float:
        """The least time, in us."""
        return self.weight_bytes / self.gb_per_s * 1e-3

    def achieved_gb_per_s(self, us: float) -> float:
        """Bandwidth of a step that took `us`."""
        return self.weight_bytes / us * 1e-3


def floor_of(weight_bytes: int, ceilings: Mapping[str, float]) -> WeightsFloor:
    """Return the floor of a step. `ceilings`: of the device, by the names of `Ceilings`."""
    rate, name = max((ceilings[f"{name}_gb_per_s"], name) for name in ("read", "copy"))
    return WeightsFloor(weight_bytes, rate, name)


def clock_mhz(wholes: NDArray[np.int64]) -> float:
    """Return the cycles per us of the median block. wholes: [blocks, LaunchClock], of one launch.

    NVML does not show this clock: it drops while tensor cores are busy for less time than NVML samples.
    """
    return float(np.median(wholes[:, LaunchClock.CYCLES] / wholes[:, LaunchClock.NS])) * 1e3


def account(stamps: Stamps, names: Sequence[str], mhz: float) -> list[Part]:
    """Return a part per distinct name. names: one per instruction. mhz: cycles per us."""
    began, done = stamps[:, :, Stamp.BEGAN], stamps[:, :, Stamp.DONE]
    ready, has_share = np.maximum(stamps[:, :, Stamp.READY], began), done > 0
    waits, works, between = (ready - began) / mhz, (done - ready) / mhz, _between(stamps[FIRST], mhz)
    assert len(names) == len(has_share.T), "a name each"
    each = []
    for i, blocks in enumerate(has_share.T):
        wait, wait_most = _over_blocks(waits[blocks, i])
        work, work_most = _over_blocks(works[blocks, i])
        own_wait, own_work = (waits[FIRST, i], works[FIRST, i]) if blocks[FIRST] else (0.0, 0.0)
        each.append(_Times(blocks.sum(), wait, wait_most, work, work_most, own_wait, own_work, between[i]))
    table = np.array(each, np.float64)
    return [_part(name, table[[i for i, other in enumerate(names) if other == name]]) for name in dict.fromkeys(names)]


def _part(name: str, rows: NDArray[np.float64]) -> Part:
    """rows: [instructions, _Times]."""
    mean, total = _Times(*rows.mean(axis=0).tolist()), _Times(*rows.sum(axis=0).tolist())
    return Part(
        op=name,
        instructions=len(rows),
        blocks=mean.blocks,
        wait_us=mean.wait,
        wait_most_us=mean.wait_most,
        work_us=mean.work,
        work_most_us=mean.work_most,
        wait_sum_us=total.wait,
        work_sum_us=total.work,
        own_wait_us=total.own_wait,
        own_work_us=total.own_work,
        own_between_us=total.own_between,
    )


def _over_blocks(times: Cycles) -> tuple[float, float]:
    """Return the median and the maximum; zeros where no block has a share."""
    return (float(np.median(times)), float(times.max())) if len(times) else (0.0, 0.0)


def _between(own: Stamps, mhz: float) -> Cycles:
    """Return the us after each instruction of one block until its next one begins. own: [instructions, Stamp]."""
    between = np.zeros(len(own))
    mine = np.flatnonzero(own[:, Stamp.DONE] > 0)
    between[mine[:-1]] = (own[mine[1:], Stamp.BEGAN] - own[mine[:-1], Stamp.DONE]) / mhz
    return between
