"""Which ways of cutting a GEMM of few columns are tried, and on which operands: the part of tuning that needs no GPU.

In: a shape, how many commands a launch has, where its operands lie. Out: `Config`s to be timed, and tables of pointers
for launches that each read other operands than the one before, as far as there are others, so that what is timed is
memory and not the cache. Outputs go to scratch: those of a chain are other commands' inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from launchopt.command import ShapeKey
from launchopt.workloads.stream import SLOT_ALIGNMENT_BYTES

MOST_COLUMNS = 16
WARP = 32
LEAST_DOT = 16  # rows and depth that tl.dot wants at least
LEAST_DOT_COLUMNS = 8
MOST_SUMS = 96  # fp32 sums a thread keeps in registers
TURNS, LEAST_TURNS = 32, 4  # launches that are timed together
TIMED_BYTES = 8 << 30  # ... unless they would move more than this


@dataclass(frozen=True, slots=True)
class Config:
    """A block of `rows` rows of A, `depth` elements of k at a time; `dot`: tl.dot, else multiply, add, sum at the end.

    `stages`: blocks under way through shared memory, 1: straight into registers.
    """

    rows: int
    depth: int
    warps: int
    stages: int
    dot: bool = False

    def __str__(self) -> str:
        kind = "dot" if self.dot else "sum"
        return f"{kind} {self.rows}x{self.depth}, {self.warps} warps, {self.stages} stages"


# (rows, depth, warps, stages), as they came out on an H200 over 64x8192, 256x256 and 1024x1024.
ONE_COLUMN = (
    *((1, 2048, 8, 1), (2, 2048, 4, 1), (4, 1024, 4, 1), (8, 512, 4, 1), (16, 256, 4, 1), (32, 128, 4, 1)),
    *((64, 64, 4, 1), (1, 1024, 4, 1), (2, 1024, 4, 1), (8, 1024, 8, 1), (4, 512, 4, 3), (16, 128, 4, 3)),
)
FEW_COLUMNS = (
    *((1, 1024, 4, 1), (2, 512, 4, 1), (4, 256, 4, 1), (8, 256, 8, 1), (16, 64, 4, 1)),
    *((2, 256, 4, 1), (4, 128, 4, 1), (8, 64, 4, 1)),
)
DOTS = {  # by itemsize
    2: ((16, 128, 4, 3), (16, 256, 4, 3), (32, 128, 4, 4), (64, 64, 4, 4), (64, 128, 4, 3)),
    4: ((16, 64, 4, 3), (16, 128, 4, 3), (32, 64, 4, 3), (32, 128, 8, 3), (64, 32, 4, 3)),
}


def configs(shape: ShapeKey) -> list[Config]:
    """A dozen or fewer, none twice, none larger than the shape needs."""
    if shape.n == 1:
        found = [Config(*sizes) for sizes in ONE_COLUMN]
    else:
        found = [Config(*sizes) for sizes in FEW_COLUMNS] + [
            Config(*sizes, True) for sizes in DOTS[shape.dtype.itemsize]
        ]
    fitting = (_fitted(config, shape) for config in found)
    return list(dict.fromkeys(config for config in fitting if config.dot or _sums(config, shape) <= MOST_SUMS))


def _fitted(config: Config, shape: ShapeKey) -> Config:
    least = LEAST_DOT if config.dot else 1
    rows, depth = (max(least, power_of_two(size)) for size in (shape.m, shape.k))
    depth = min(config.depth, depth)
    return replace(config, rows=min(config.rows, rows), depth=depth, stages=config.stages if depth < shape.k else 1)


def _sums(config: Config, shape: ShapeKey) -> int:
    return config.rows * config.depth * shape.n // (WARP * config.warps)


def power_of_two(size: int) -> int:
    """The least that is no less than `size`."""
    return 1 << (size - 1).bit_length()


def dot_columns(n: int) -> int:
    """Columns that tl.dot works on: a power of two, those beyond n are zeros."""
    return max(LEAST_DOT_COLUMNS, power_of_two(n))


def tuned_counts(limit: int) -> list[int]:
    """Numbers of commands a launch that are tuned for, where it has up to `limit`."""
    return sorted({1, limit})


def tuned_for(count: int, limit: int) -> int:
    """Which of `tuned_counts` serves `count` commands: the nearer one, by ratio."""
    return 1 if count * count <= limit else limit


@dataclass(frozen=True, slots=True)
class Operand:
    """`slots` places for an operand, `step_bytes` apart. `shared`: all commands of a launch use one."""

    address: int
    step_bytes: int
    slots: int
    shared: bool = False

    @classmethod
    def spread(cls, address: int, room_bytes: int, slot_bytes: int, size_bytes: int, shared: bool = False) -> Operand:
        """As many as lie side by side in `room_bytes`, each at a slot. Slots of a chain are shorter than operands."""
        step_bytes = -(-size_bytes // slot_bytes) * slot_bytes
        return cls(address, step_bytes, 1 + max(0, room_bytes - size_bytes) // step_bytes, shared)

    def taken(self, turn: int, count: int) -> Iterator[int]:
        """Addresses for `count` commands of launch `turn`."""
        for i in range(count):
            yield self.address + (turn if self.shared else turn * count + i) % self.slots * self.step_bytes


def turns(shape: ShapeKey, count: int) -> int:
    """How many launches to time together."""
    return max(LEAST_TURNS, min(TURNS, TIMED_BYTES // (count * shape.bytes)))


def pointer_tables(operands: tuple[Operand, Operand, Operand], count: int, turns: int) -> NDArray[np.int64]:
    """[turns, 3, count]: the pointers of each launch, as it takes them."""
    rows = [[list(operand.taken(turn, count)) for operand in operands] for turn in range(turns)]
    return np.array(rows, np.int64)


def scratch_bytes(shape: ShapeKey, row_elements: int, count: int) -> int:
    """For the outputs of `count` commands, whose rows are so far apart."""
    return count * _scratch_step(shape, row_elements)


def scratch(address: int, shape: ShapeKey, row_elements: int, count: int) -> Operand:
    """These outputs, side by side from `address` on."""
    return Operand(address, _scratch_step(shape, row_elements), count)


def _scratch_step(shape: ShapeKey, row_elements: int) -> int:
    size = size_bytes(shape.n, shape.m, row_elements, shape.dtype.itemsize)
    return -(-size // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


def size_bytes(rows: int, cols: int, row_elements: int, itemsize: int) -> int:
    """From the first element of a matrix to the end of its last."""
    return ((rows - 1) * row_elements + cols) * itemsize
