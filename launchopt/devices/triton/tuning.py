"""Choose the configurations to time for a GEMM of few columns, and the operands for timing. This needs no GPU.

Launches that are timed together read different operands, if there are enough, so that they read from memory and not
from the cache. Outputs go to scratch memory, since outputs of a step are inputs of other commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from launchopt.command import Dtype, ShapeKey
from launchopt.streams.operands import SLOT_ALIGNMENT_BYTES
from launchopt.types import Table
from launchopt.weights.packing import BLOCK, Packing, Scales, WeightFormat

MOST_COLUMNS = 16
WARP = 32
LEAST_DOT = 16  # fewest rows, and smallest depth, that tl.dot takes
LEAST_DOT_COLUMNS = 8  # fewest columns that tl.dot takes
MOST_SUMS = 96  # most fp32 sums that a thread keeps in registers
# Launches that are timed together: TURNS, or down to LEAST_TURNS if TURNS launches would move more than TIMED_BYTES.
TURNS, LEAST_TURNS = 32, 4
TIMED_BYTES = 8 << 30


@dataclass(frozen=True, slots=True)
class Config:
    """One way to divide a GEMM: a block computes `rows` rows of A and reads `depth` elements of k at a time.

    stages: loads in flight into shared memory; 1: loads go directly into registers. dot: use tl.dot (`dot_gemm`);
    otherwise use `sum_gemm`.
    """

    rows: int
    depth: int
    warps: int
    stages: int
    dot: bool = False

    def __str__(self) -> str:
        kind = "dot" if self.dot else "sum"
        return f"{kind} {self.rows}x{self.depth}, {self.warps} warps, {self.stages} stages"


# (rows, depth, warps, stages): the fastest on an H200 for 64x8192, 256x256 and 1024x1024.
ONE_COLUMN = (
    *((1, 2048, 8, 1), (2, 2048, 4, 1), (4, 1024, 4, 1), (8, 512, 4, 1), (16, 256, 4, 1), (32, 128, 4, 1)),
    *((64, 64, 4, 1), (1, 1024, 4, 1), (2, 1024, 4, 1), (8, 1024, 8, 1), (4, 512, 4, 3), (16, 128, 4, 3)),
)
FEW_COLUMNS = (
    *((1, 1024, 4, 1), (2, 512, 4, 1), (4, 256, 4, 1), (8, 256, 8, 1), (16, 64, 4, 1)),
    *((2, 256, 4, 1), (4, 128, 4, 1), (8, 64, 4, 1)),
)
DOTS = {  # configurations with tl.dot, by bytes per element
    2: ((16, 128, 4, 3), (16, 256, 4, 3), (32, 128, 4, 4), (64, 64, 4, 4), (64, 128, 4, 3)),
    4: ((16, 64, 4, 3), (16, 128, 4, 3), (32, 64, 4, 3), (32, 128, 8, 3), (64, 32, 4, 3)),
}


# The same for quantised weights. Loads of 16 bytes have 16 codes of fp8 and int8, and 32 of int4.
QUANTISED_ONE = (
    *((1, 2048, 4, 1), (1, 4096, 4, 1), (1, 4096, 8, 1), (2, 2048, 4, 1), (2, 4096, 4, 1), (4, 1024, 4, 1)),
    *((4, 2048, 4, 1), (8, 512, 4, 1), (8, 1024, 4, 1), (16, 256, 4, 1), (4, 1024, 4, 3)),
)
QUANTISED_FEW = (
    *((1, 2048, 4, 1), (1, 512, 4, 1), (2, 1024, 4, 1), (2, 512, 4, 1), (2, 256, 4, 1), (4, 512, 4, 1)),
    *((4, 256, 4, 1), (4, 128, 4, 1), (8, 256, 8, 1)),
)
QUANTISED_DOTS = (
    *((16, 128, 4, 4), (16, 256, 4, 4), (16, 512, 4, 3), (32, 128, 4, 5), (32, 256, 4, 4), (32, 512, 8, 3)),
    *((64, 128, 4, 4), (64, 256, 4, 3), (128, 128, 8, 3)),
)


def configs(shape: ShapeKey) -> list[Config]:
    """Return one or two dozen different configurations whose blocks are not larger than the shape."""
    if shape.packing:
        found = [Config(*sizes) for sizes in (QUANTISED_ONE if shape.n == 1 else QUANTISED_FEW)]
        if shape.dtype is not Dtype.fp32:
            found += [_within_scales(Config(*sizes, True), shape.packing) for sizes in QUANTISED_DOTS]
    elif shape.n == 1:
        found = [Config(*sizes) for sizes in ONE_COLUMN]
    else:
        found = [Config(*sizes) for sizes in FEW_COLUMNS] + [
            Config(*sizes, True) for sizes in DOTS[shape.dtype.itemsize]
        ]
    fitting = (_fitted(config, shape) for config in found)
    return list(dict.fromkeys(config for config in fitting if config.dot or _sums(config, shape) <= MOST_SUMS))


def _within_scales(config: Config, packing: Packing) -> Config:
    """Return a configuration whose depth is no longer than a block of scales."""
    return replace(config, depth=min(config.depth, BLOCK)) if packing.scales is Scales.block else config


def _fitted(config: Config, shape: ShapeKey) -> Config:
    least = LEAST_DOT if config.dot else 1
    rows, depth = (max(least, power_of_two(size)) for size in (shape.m, shape.k))
    depth = min(config.depth, depth)
    return replace(config, rows=min(config.rows, rows), depth=depth, stages=config.stages if depth < shape.k else 1)


def _sums(config: Config, shape: ShapeKey) -> int:
    a_sum = 2 if shape.packing.format is WeightFormat.int4 else 1  # values of k whose products share a sum
    return config.rows * config.depth // a_sum * shape.n // (WARP * config.warps)


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


def dot_columns(n: int) -> int:
    """Return the number of columns that tl.dot computes, a power of two. Columns beyond n are zeros."""
    return max(LEAST_DOT_COLUMNS, power_of_two(n))


def tuned_counts(limit: int) -> list[int]:
    """Return the numbers of commands per launch to tune for, if the largest launch has `limit` commands."""
    return sorted({1, limit})


def tuned_for(count: int, limit: int) -> int:
    """Return the number of `tuned_counts` whose ratio to `count` is closest to 1."""
    return 1 if count * count <= limit else limit


@dataclass(frozen=True, slots=True)
class Operand:
    """Memory for one operand of the timed launches: `slots` places, `step_bytes` apart.

    shared: all commands of a launch use the same place.
    """

    address: int
    step_bytes: int
    slots: int
    shared: bool = False

    @classmethod
    def spread(cls, address: int, arena_bytes: int, slot_bytes: int, size_bytes: int, shared: bool = False) -> Operand:
        """Return the places that fit into `arena_bytes`, each at a slot. Slots may be shorter than operands."""
        step_bytes = -(-size_bytes // slot_bytes) * slot_bytes
        return cls(address, step_bytes, 1 + max(0, arena_bytes - size_bytes) // step_bytes, shared)

    def taken(self, turn: int, count: int) -> Iterator[int]:
        """Yield the addresses of this operand for the `count` commands of launch number `turn`."""
        for i in range(count):
            yield self.address + (turn if self.shared else turn * count + i) % self.slots * self.step_bytes


def turns(shape: ShapeKey, count: int) -> int:
    """Return the number of launches to time together."""
    return max(LEAST_TURNS, min(TURNS, TIMED_BYTES // (count * shape.bytes)))


def pointer_tables(operands: tuple[Operand, Operand, Operand], count: int, turns: int) -> Table:
    """Return the tables of pointers of all launches, [turns, 3, count]."""
    rows = [[list(operand.taken(turn, count)) for operand in operands] for turn in range(turns)]
    return np.array(rows, np.int64)


def scratch_bytes(shape: ShapeKey, row_elements: int, count: int) -> int:
    """Return the bytes for the outputs of `count` commands. row_elements: from one row of C to the next."""
    return count * _scratch_step(shape, row_elements)


def scratch(address: int, shape: ShapeKey, row_elements: int, count: int) -> Operand:
    """Return adjacent places for the outputs of `count` commands, from `address` on, of `scratch_bytes` in all."""
    return Operand(address, _scratch_step(shape, row_elements), count)


def _scratch_step(shape: ShapeKey, row_elements: int) -> int:
    size = size_bytes(shape.n, shape.m, row_elements, shape.dtype.itemsize)
    return -(-size // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


def size_bytes(rows: int, cols: int, row_elements: int, itemsize: int) -> int:
    """Return the bytes from the first element of a matrix to the end of its last one."""
    return ((rows - 1) * row_elements + cols) * itemsize
