"""Where operands lie: an arena for each role and matrix size, and slots in it.

In: a shape, or a role with rows, columns and dtype. Out: the arena's key, and bytes from one slot to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.command import Dtype, ShapeKey

SLOT_ALIGNMENT_BYTES = 256  # cuBLASLt's fastest kernels need pointers aligned to it
WEIGHT_ROLES = ("a", "bias", "gain")


def aligned_bytes(size: int) -> int:
    """Return the bytes of a slot that holds `size` bytes."""
    return -(-size // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, order=True)
class ArenaKey:
    """Operands that live in one arena: their role, and the matrix's rows x cols.

    Roles: a (weights), b, c; of chains also bias and gain (vectors), kv (the cache), x (activations), h (history).
    """

    role: str
    rows: int
    cols: int
    dtype: Dtype

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next."""
        return aligned_bytes(self.rows * self.cols * self.dtype.itemsize)

    @property
    def is_weight(self) -> bool:
        """Whether commands of every step read it, and none writes it."""
        return self.role in WEIGHT_ROLES

    @property
    def center(self) -> float:
        """The middle of its random values: 1 for gains, so that they keep the scale of what they multiply."""
        return 1.0 if self.role == "gain" else 0.0


def arenas_of(shape: ShapeKey) -> tuple[ArenaKey, ArenaKey, ArenaKey]:
    """Return the arenas of A, B and C of a shape. Row-major: A [m, k], B [n, k], C [n, m] (features innermost)."""
    return (
        ArenaKey("a", shape.m, shape.k, shape.dtype),
        ArenaKey("b", shape.n, shape.k, shape.dtype),
        ArenaKey("c", shape.n, shape.m, shape.dtype),
    )


@dataclass(frozen=True, slots=True)
class Operand:
    """Where one operand of a shape lives: slots of `slot_bytes` in `arena`, rows `row_elements` apart."""

    arena: ArenaKey
    slot_bytes: int
    row_elements: int


Operands = tuple[Operand, Operand, Operand]
