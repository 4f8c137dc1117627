"""Configurations to try for a GEMM of few columns, and the operands to time them on: the part of tuning without a GPU.

Launches that are timed together read different operands, as far as there are any, so that memory is timed and not the
cache. Outputs go to scratch memory, since the outputs of a chain are inputs of other commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from launchopt.command import ShapeKey
from launchopt.types import Table
from launchopt.workloads.stream import SLOT_ALIGNMENT_BYTES

MOST_COLUMNS = 16
WARP = 32
LEAST_DOT = 16  # fewest rows, and smallest depth, of tl.dot
LEAST_DOT_COLUMNS = 8
MOST_SUMS = 96  # fp32 sums that a thread keeps in registers
TURNS, LEAST_TURNS = 32, 4  # launches that are timed together: fewer than TURNS if they would move more bytes than
TIMED_BYTES = 8 << 30


@dataclass(frozen=True, slots=True)
class Config:
    """One way to cut a GEMM: a block does `rows` rows of A, `depth` elements of k at a time.

    stages: blocks under way through shared memory; 1: loads go straight into registers. dot: by tl.dot; else products
    are added element by element and summed at the end.
    """

    rows: int
    depth: int
    warps: int
    stages: int
    dot: bool = False

    def __str__(self) -> str:
        kind = "dot" if self.dot else "sum"
        return f"{kind} {self.rows}x{self.depth}, {self.warps} warps, {self.stages} stages"


# (rows, depth, warps, stages): the best on an H200 for 64x8192, 256x256 and 1024x1024.
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
    """Return about a dozen different configurations, none larger than the shape needs."""
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
    """Return the smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


def dot_columns(n: int) -> int:
    """Return the columns that tl.dot works on, a power of two. Columns beyond n are zeros."""
    return max(LEAST_DOT_COLUMNS, power_of_two(n))


def tuned_counts(limit: int) -> list[int]:
    """Return the numbers of commands per launch to tune for, if a launch has up to `limit`."""
    return sorted({1, limit})


def tuned_for(count: int, limit: int) -> int:
    """Return the one of `tuned_counts` that is nearer to `count`, by ratio."""
    return 1 if count * count <= limit else limit


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand with `slots` places, `step_bytes` apart. shared: all commands of a launch use one place."""

    address: int
    step_bytes: int
    slots: int
    shared: bool = False

    @classmethod
    def spread(cls, address: int, room_bytes: int, slot_bytes: int, size_bytes: int, shared: bool = False) -> Operand:
        """Return the places that fit into `room_bytes`, each at a slot. Slots may be shorter than operands."""
        step_bytes = -(-size_bytes // slot_bytes) * slot_bytes
        return cls(address, step_bytes, 1 + max(0, room_bytes - size_bytes) // step_bytes, shared)

    def taken(self, turn: int, count: int) -> Iterator[int]:
        """Yield the addresses of `count` commands of launch `turn`."""
        for i in range(count):
            yield self.address + (turn if self.shared else turn * count + i) % self.slots * self.step_bytes


def turns(shape: ShapeKey, count: int) -> int:
    """Return the number of launches to time together."""
    return max(LEAST_TURNS, min(TURNS, TIMED_BYTES // (count * shape.bytes)))


def pointer_tables(operands: tuple[Operand, Operand, Operand], count: int, turns: int) -> Table:
    """Return the tables of pointers of each launch, [turns, 3, count]."""
    rows = [[list(operand.taken(turn, count)) for operand in operands] for turn in range(turns)]
    return np.array(rows, np.int64)


def scratch_bytes(shape: ShapeKey, row_elements: int, count: int) -> int:
    """Return the bytes for the outputs of `count` commands. row_elements: from one row of C to the next."""
    return count * _scratch_step(shape, row_elements)


def scratch(address: int, shape: ShapeKey, row_elements: int, count: int) -> Operand:
    """Return these outputs, side by side from `address` on."""
    return Operand(address, _scratch_step(shape, row_elements), count)


def _scratch_step(shape: ShapeKey, row_elements: int) -> int:
    size = size_bytes(shape.n, shape.m, row_elements, shape.dtype.itemsize)
    return -(-size // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


def size_bytes(rows: int, cols: int, row_elements: int, itemsize: int) -> int:
    """Return the bytes from the first element of a matrix to the end of its last one."""
    return ((rows - 1) * row_elements + cols) * itemsize
