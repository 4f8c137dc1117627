"""The command: one GEMM asked for, as a fixed 64-byte little-endian record.

C[m, n] = A[m, k] @ B[k, n], in the layout of a linear layer: A is a weight (m output features, k input
features), B holds n activations, C the n results. Operands live in device arenas; a record names them by
slot, so two commands never write one output unless their records say so. Arenas are shared by every shape
that can share them: A by (dtype, m, k), B by (dtype, k, n), C by (dtype, m, n).

Records are NumPy structured arrays of `COMMAND_DTYPE`; compiled code sees the same bytes as eight uint64
words (`WORDS`), laid out as in `COMMAND_DTYPE`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD_BYTES = 64
WORDS = RECORD_BYTES // 8

COMMAND_DTYPE = np.dtype(
    [
        ("seq", "<u8"),  # position in the stream, from 0
        ("enqueue_ns", "<i8"),  # CLOCK_MONOTONIC when it arrived (open loop: when it was due)
        ("m", "<u4"),
        ("n", "<u4"),
        ("k", "<u4"),
        ("op", "u1"),  # Op
        ("dtype", "u1"),  # Dtype
        ("flags", "<u2"),  # of Flag
        ("slot_a", "<u4"),
        ("slot_b", "<u4"),
        ("slot_c", "<u4"),
        ("request", "<u4"),  # whose step this is
        ("step", "<u4"),  # position within that request, from 0
        ("token", "<u4"),  # which token of its request it works for, NO_TOKEN for none
        ("turn", "<u8"),  # the ring's own: which record of a slot this is, written last
    ]
)
assert COMMAND_DTYPE.itemsize == RECORD_BYTES

Records = NDArray[Any]  # a structured array of COMMAND_DTYPE, shape [count]


class Op(enum.IntEnum):
    """What a command asks for."""

    GEMM = 0


class Flag(enum.IntFlag):
    """What is special about a command."""

    STEP_END = 1  # the last of a step: its result is fed back, and whoever issued the step is told


NO_TOKEN = 2**32 - 1


class Dtype(enum.IntEnum):
    """Element type of A, B and C; products are accumulated in fp32."""

    fp32 = 0
    fp16 = 1
    bf16 = 2

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return 4 if self is Dtype.fp32 else 2

    @property
    def unit_roundoff(self) -> float:
        """2**-p for p significand bits (IEEE 754 binary32, binary16; bfloat16)."""
        return float(2.0 ** -{Dtype.fp32: 24, Dtype.fp16: 11, Dtype.bf16: 8}[self])


@dataclass(frozen=True, slots=True, order=True)
class ShapeKey:
    """What commands must share to be submitted together."""

    m: int
    n: int
    k: int
    dtype: Dtype
    op: Op = Op.GEMM

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        """Floating-point operations of one command: a multiply and an add a term."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Bytes one command must move at least: A and B read, C written."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * self.dtype.itemsize

    @property
    def packed(self) -> tuple[int, int]:
        """The words that hold the key in a record: (m | n << 32, k | op << 32 | dtype << 40)."""
        return self.m | self.n << 32, self.k | int(self.op) << 32 | int(self.dtype) << 40


def as_words(records: Records) -> NDArray[np.uint64]:
    """The same memory as uint64 words, shape [count, WORDS]. `records` must be contiguous."""
    return records.view(np.uint64).reshape(len(records), WORDS)


# Word offsets of the fields that compiled code reads (little-endian, two u4 a word).
W_SEQ, W_ENQUEUE, W_MN, W_K_OP_DTYPE, W_SLOT_A_B, W_SLOT_C_REQUEST, W_STEP, W_TURN = range(WORDS)
W_ELIGIBLE = W_TURN  # once popped, a record's turn is over: the batcher notes here when it became eligible
