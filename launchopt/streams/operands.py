"""Arenas of operands, one for each role, matrix size and dtype, and their slots.

In: a shape, or a role with rows, columns and dtype. Out: the key of the arena, and bytes from one slot to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.weights.packing import PLAIN, Packing

SLOT_ALIGNMENT_BYTES = 256  # cuBLASLt's fastest kernels need pointers aligned to it
WEIGHT_ROLES = ("a", "bias", "gain")


def aligned_bytes(size: int) -> int:
    """Return the bytes of a slot that holds `size` bytes."""
    return -(-size // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, order=True)
class ArenaKey:
    """Key of an arena: the role of its operands, and the rows and columns of each matrix.

    Roles: a (weights), b (inputs), c (outputs). Streams of requests also have bias and gain (vectors), kv (the KV
    cache), x (activations) and h (history).
    """

    role: str
    rows: int
    cols: int
    dtype: Dtype
    packing: Packing = PLAIN  # how a weight is stored

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next."""
        return aligned_bytes(self.packing.slot_bytes(self.rows, self.cols, self.dtype.itemsize))

    @property
    def plain(self) -> ArenaKey:
        """The same arena with weights that are not quantised."""
        return ArenaKey(self.role, self.rows, self.cols, self.dtype)

    @property
    def is_weight(self) -> bool:
        """Whether the operands are weights: commands of every step read them, and none writes them."""
        return self.role in WEIGHT_ROLES

    @property
    def center(self) -> float:
        """Mean of the random values. It is 1 for gains, so that a product keeps the scale of its other factor."""
        return 1.0 if self.role == "gain" else 0.0


def arenas_of(shape: ShapeKey) -> tuple[ArenaKey, ArenaKey, ArenaKey]:
    """Return the arenas of A, B and C of a shape. Row-major: A [m, k], B [n, k], C [n, m] (features innermost)."""
    return (
        ArenaKey("a", shape.m, shape.k, shape.dtype, shape.packing),
        ArenaKey("b", shape.n, shape.k, shape.dtype),
        ArenaKey("c", shape.n, shape.m, shape.dtype),
    )


def is_shared(shape: ShapeKey, moves: tuple[int, int, int]) -> bool:
    """Return whether commands of a batch share their weight and have one column each.

    moves: slots of A, B and C from one command to the next.
    """
    return shape.op is Op.GEMM and shape.n == 1 and moves[0] == 0


@dataclass(frozen=True, slots=True)
class Operand:
    """Layout of one operand of a shape: slots of `slot_bytes` in `arena`, rows `row_elements` apart."""

    arena: ArenaKey
    slot_bytes: int
    row_elements: int


Operands = tuple[Operand, Operand, Operand]
Fixed = Callable[[slice], NDArray[np.float32]]  # returns the values of a chunk of an arena, which is flat
