"""The command: one GEMM, or another op of a layer, asked for as a fixed 64-byte little-endian record.

C[m, n] = A[m, k] @ B[k, n], in the layout of a linear layer: A is a weight (m output features, k input
features), B holds n activations, C the n results; what the other ops do with theirs says `Op`. Operands live in
device arenas; a record names them by slot, so two commands never write one output unless their records say so.
Arenas are shared by every shape that can share them: A by (dtype, m, k), B by (dtype, k, n), C by (dtype, m, n).

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
HALF_BITS = np.uint64(32)  # a word holds two fields of 32 bits
LOW_HALF = np.uint64(0xFFFF_FFFF)
INDEX_BYTES = 4  # of an int32
LAYOUT_SHIFT, MOST_LAYOUTS = 4, 16  # within the byte of a record's dtype

COMMAND_DTYPE = np.dtype(
    [
        ("seq", "<u8"),  # position in the stream, from 0
        ("enqueue_ns", "<i8"),  # CLOCK_MONOTONIC when it arrived (open loop: when it was due)
        ("m", "<u4"),
        ("n", "<u4"),
        ("k", "<u4"),
        ("op", "u1"),  # Op
        ("dtype", "u1"),  # Dtype, and above it ShapeKey.layout
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
    """What a command asks for, of n columns: C [n, m] from B [n, k] and what A is (launchopt/kernels/ops.cu)."""

    GEMM = 0  # C = B @ A.T
    BIAS = 1  # C = B + A
    RELU = 2
    SCALE = 3  # C = B * A
    NORM = 4  # RMSNorm with gain A
    SLOT_MAP = 5  # where the step's columns go in the KV cache
    ROPE = 6  # rotary embedding of q and k
    KV_WRITE = 7  # k and v into the cache, at the slots A
    QK = 8  # scores against the cache A
    SOFTMAX = 9  # of each head's scores, up to the column's own position
    AV = 10  # probabilities times the values in the cache A
    ADD = 11  # C = A + B
    SILU_MUL = 12  # silu(gate) * up


class Flag(enum.IntFlag):
    """What is special about a command."""

    STEP_END = 1  # the last of a step: its result is fed back, and whoever issued the step is told
    ROUND_END = 2  # the last of a continuous step: nobody goes on before all of it is told of


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
    layout: int = 0  # where commands alike in all else have their operands in different arenas, or rows: which of these

    def __str__(self) -> str:
        sizes = f"{self.m}x{self.n}x{self.k}"
        return sizes if self.op is Op.GEMM else f"{self.op.name.lower()}:{sizes}"

    @property
    def flops(self) -> int:
        """Floating-point operations of one command: a multiply and an add a term of a GEMM, one an element elsewhere.

        Of attention those of one position, for how many there are is not in the shape (`ChainStream.flops` knows).
        """
        if self.op is Op.GEMM:
            return 2 * self.m * self.n * self.k
        if self.op in (Op.QK, Op.SOFTMAX):
            return self.n
        return 0 if self.op in (Op.SLOT_MAP, Op.KV_WRITE) else self.m * self.n

    @property
    def bytes(self) -> int:
        """Bytes one command must move at least: A and B read, C written; of attention those of one position."""
        read, written = self.k * self.n, self.m * self.n
        if self.op is Op.SLOT_MAP:
            return INDEX_BYTES * written
        if self.op is Op.KV_WRITE:
            return 2 * written * self.dtype.itemsize + INDEX_BYTES * self.n
        if self.op in (Op.QK, Op.SOFTMAX):
            return 2 * self.n * self.dtype.itemsize
        if self.op is Op.AV:
            return written * self.dtype.itemsize
        of_a = {Op.GEMM: self.m * self.k, Op.ADD: written, Op.BIAS: self.m, Op.SCALE: self.m, Op.NORM: self.m}
        return (of_a.get(self.op, 0) + read + written) * self.dtype.itemsize

    @property
    def packed(self) -> tuple[int, int]:
        """The words that hold the key in a record: (m | n << 32, k | op << 32 | dtype << 40 | layout << 44)."""
        return self.m | self.n << 32, self.k | int(self.op) << 32 | self.packed_dtype << 40

    @property
    def packed_dtype(self) -> int:
        """The byte that holds dtype and layout."""
        return int(self.dtype) | self.layout << LAYOUT_SHIFT


def as_words(records: Records) -> NDArray[np.uint64]:
    """The same memory as uint64 words, shape [count, WORDS]. `records` must be contiguous."""
    return records.view(np.uint64).reshape(len(records), WORDS)


def as_records(words: NDArray[np.uint64]) -> Records:
    """The same memory as records, [count]: the inverse of `as_words`. `words` must be contiguous."""
    return words.reshape(-1).view(COMMAND_DTYPE)


# Word offsets of the fields that compiled code reads (little-endian, two u4 a word).
W_SEQ, W_ENQUEUE, W_MN, W_K_OP_DTYPE, W_SLOT_A_B, W_SLOT_C_REQUEST, W_STEP, W_TURN = range(WORDS)
W_ELIGIBLE = W_TURN  # once popped, a record's turn is over: the batcher notes here when it became eligible
