"""Account of a decode step in one launch: the time of the step, by op.

`account` takes the clock stamps of one launch, the name of each instruction, and the clock rate. It returns a `Part`
per name, in the order of the instruction list. Instructions that the kernel executes as one task count as one.

Each multiprocessor has a clock of its own, so only stamps of the same block are subtracted from each other. Blocks wait
for each other's work. Medians and maxima over blocks therefore show which instruction takes long, but their sum is not
the time of the step. The times of block 0 add up to the time of the step: its waits, its work, and the gaps between its
instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.kernels.shared_megakernel import LaunchClock, Stamp

FIRST = 0  # index of the block whose own times are reported

Stamps = NDArray[np.int64]  # clock cycles [blocks, instructions, Stamp]; 0: the block has no share of the instruction
Cycles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """Times of all instructions of one name, in us.

    A block's *wait* lasts from the begin of an instruction until all its inputs have arrived. Its *work* lasts from
    then to the end of the instruction. A block without a share of an instruction does not count.
    """

    op: str  # the name
    instructions: int  # number of instructions of that name
    blocks: float  # blocks with a share of an instruction; mean over the instructions
    wait_us: float  # median wait over blocks; mean over the instructions
    wait_most_us: float  # longest wait of a block; mean over the instructions
    work_us: float  # median work over blocks; mean over the instructions
    work_most_us: float  # longest work of a block; mean over the instructions
    wait_sum_us: float  # median wait over blocks; sum over the instructions
    work_sum_us: float  # median work over blocks; sum over the instructions
    own_wait_us: float  # wait of block 0; sum over the instructions
    own_work_us: float  # work of block 0; sum over the instructions
    own_between_us: float  # time of block 0 from an instruction's end to the begin of its next one; sum


class _Times(NamedTuple):
    """Times of one instruction in us, or their means or sums over several instructions."""

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
    """The least time of a step: the time to read each weight once, at the measured memory bandwidth."""

    weight_bytes: int  # bytes of the step's distinct weights
    gb_per_s: float  # measured bandwidth
    ceiling: str  # name of the measurement, "read" or "copy": the one with the larger bandwidth

    @property
    def us(self) -> float:
        """Least time of the step, in us."""
        return self.weight_bytes / self.gb_per_s * 1e-3

    def achieved_gb_per_s(self, us: float) -> float:
        """Return the bandwidth, in GB/s, at which a step of `us` us reads its weights."""
        return self.weight_bytes / us * 1e-3


def floor_of(weight_bytes: int, ceilings: Mapping[str, float]) -> WeightsFloor:
    """Return the least time of a step. ceilings: measured ceilings of the device, by the field names of `Ceilings`."""
    rate, name = max((ceilings[f"{name}_gb_per_s"], name) for name in ("read", "copy"))
    return WeightsFloor(weight_bytes, rate, name)


def clock_mhz(wholes: NDArray[np.int64]) -> float:
    """Return the clock rate during one launch, in MHz (cycles per us): the median over blocks.

    wholes: the last row of each block's stamps, [blocks, LaunchClock]. NVML does not report this rate: the clock slows
    down while tensor cores are busy, for a time that is shorter than NVML's sampling period.
    """
    return float(np.median(wholes[:, LaunchClock.CYCLES] / wholes[:, LaunchClock.NS])) * 1e3


def account(stamps: Stamps, names: Sequence[str], mhz: float) -> list[Part]:
    """Return a part per distinct name. names: name of each instruction. mhz: clock rate, in cycles per us."""
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
    """Return the part of one name. rows: times of its instructions, [instructions, _Times]."""
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
    """Return the median and the maximum of the times of several blocks; zeros if there are none."""
    return (float(np.median(times)), float(times.max())) if len(times) else (0.0, 0.0)


def _between(own: Stamps, mhz: float) -> Cycles:
    """Return the us from the end of each instruction to the begin of the block's next one.

    own: stamps of one block, [instructions, Stamp]. An instruction of which the block has no share gets 0.
    """
    between = np.zeros(len(own))
    mine = np.flatnonzero(own[:, Stamp.DONE] > 0)
    between[mine[:-1]] = (own[mine[1:], Stamp.BEGAN] - own[mine[:-1], Stamp.DONE]) / mhz
    return between
