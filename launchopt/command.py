"""The command: a request to compute one GEMM, or another op of a layer, as a 64-byte little-endian record.

A GEMM computes C[m, n] = A[m, k] @ B[k, n], in the layout of a linear layer. A is a weight (m output features, k input
features), B holds n activations, and C holds the n results. `Op` says what other ops compute. Operands are in device
arenas, and a record names the slot of each. Shapes share an arena if they can: an arena of A has one (dtype, m, k), one
of B (dtype, k, n), one of C (dtype, m, n).

Records are NumPy structured arrays of `COMMAND_DTYPE`. Compiled code reads the same bytes as eight uint64 words
(`RecordWord`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.weights.packing import PLAIN, Packing

RECORD_BYTES = 64
WORDS = RECORD_BYTES // 8
HALF_BITS = np.uint64(32)  # a word holds two fields of 32 bits
LOW_HALF = np.uint64(0xFFFF_FFFF)
INDEX_BYTES = 4  # bytes of an int32, the type of slots in the KV cache
CHOICE_BYTES = 8  # bytes of an expert of a column: its number, int32, and its weight, fp32
LAYOUT_SHIFT = 4  # the layout is in the upper 4 bits of the byte `dtype` of a record
MOST_LAYOUTS = 16  # most layouts per combination of sizes, dtype and op

COMMAND_DTYPE = np.dtype(
    [
        ("seq", "<u8"),  # position in the workload stream, from 0
        ("enqueue_ns", "<i8"),  # CLOCK_MONOTONIC when the command arrived (open loop: when it was due)
        ("m", "<u4"),
        ("n", "<u4"),
        ("k", "<u4"),
        ("op", "u1"),  # Op
        ("dtype", "u1"),  # Dtype in the lower 4 bits, ShapeKey.layout in the upper 4 bits
        ("flags", "<u2"),  # Flag
        ("slot_a", "<u4"),
        ("slot_b", "<u4"),
        ("slot_c", "<u4"),
        ("request", "<u4"),  # request that the command belongs to
        ("step", "<u4"),  # position within that request, from 0
        ("token", "<u4"),  # token of the request that the command helps to compute; NO_TOKEN: none
        ("turn", "<u8"),  # used by the ring only: 1 + the number of records pushed before; written last
    ]
)
assert COMMAND_DTYPE.itemsize == RECORD_BYTES

Records = NDArray[Any]  # a structured array of COMMAND_DTYPE, [count]


class RecordWord(enum.IntEnum):
    """Words of a record in compiled code, uint64. A word holds one field of 8 bytes, or smaller ones from bit 0 on."""

    SEQ = 0
    ENQUEUE_NS = 1
    MN = 2  # m, then n
    K_OP_DTYPE = 3  # k, op, dtype, then flags
    SLOTS_AB = 4  # slot of A, then slot of B
    SLOT_C_REQUEST = 5  # slot of C, then request
    STEP_TOKEN = 6  # step, then token
    TURN = 7
    # The ring needs `turn` only until it pops the record. The batcher then stores the time of eligibility there.
    ELIGIBLE_NS = TURN


class Op(enum.IntEnum):
    """The operation of a command with n columns, C [n, m] from B [n, k] and A (launchopt/kernels/ops.cu)."""

    GEMM = 0  # C = B @ A.T
    BIAS = 1  # C = B + A
    RELU = 2  # C = max(B, 0)
    SCALE = 3  # C = B * A
    NORM = 4  # C = RMSNorm of B with gain A
    SLOT_MAP = 5  # C = slots of the step's columns in the KV cache
    ROPE = 6  # C = B with rotary embedding of q and k
    KV_WRITE = 7  # writes k and v of B to the KV cache C, at the slots A
    QK = 8  # C = scores of q in B against the keys in the KV cache A
    SOFTMAX = 9  # C = softmax of each head's scores B, up to the column's own position
    AV = 10  # C = probabilities B times the values in the KV cache A
    ADD = 11  # C = A + B
    SILU_MUL = 12  # C = silu(gate) * up, where B = [gate | up]
    ALL_REDUCE = 13  # C = the sum of the B of all GPUs that split a model (`streams.chains.tensor`)
    ALL_GATHER = 14  # C = the B of all of these GPUs, side by side
    # Ops of a layer with experts (`streams.experts.stream`). Each column of the step uses some of the experts.
    TOP_K = 15  # C = the m experts of the largest B + A of a column, ascending, and the softmax of their B
    EXPERT_MAP = 16  # C = the row of each of the m experts that B has for a column, if rows are sorted by k experts
    PERMUTE = 17  # C = each column of B, k wide, in its m / k rows of the map A
    COMBINE = 18  # C = for each column the sum of its k / m rows of B, by the map and with the weights of A


COLLECTIVES = frozenset({Op.ALL_REDUCE, Op.ALL_GATHER})  # ops at which GPUs wait for one another
EXPERT_OPS = frozenset({Op.TOP_K, Op.EXPERT_MAP, Op.PERMUTE, Op.COMBINE})


class Flag(enum.IntFlag):
    """Marks on the last command of a step, of a round, of a group, and of a step issued together with the next one."""

    STEP_END = 1  # last command of a step: its result is fed back, and the driver is notified of the step's end
    ROUND_END = 2  # last command of a round; no request gets its next step before the whole round is complete
    GOES_ON = 4  # the request's next step follows at once, and one launch may execute both steps
    GROUP_END = 8  # last command of a group; no later command is launched before the whole group (list, moe)


NO_TOKEN = 2**32 - 1  # value of `token` in commands that help to compute no token, such as chunks of a prompt


class Dtype(enum.IntEnum):
    """Element type of A, B and C; products are accumulated in fp32."""

    fp32 = 0
    fp16 = 1
    bf16 = 2

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return 4 if self is Dtype.fp32 else 2

    @property
    def unit_roundoff(self) -> float:
        """Unit roundoff: 2**-p for a significand of p bits (IEEE 754 binary32, binary16; bfloat16)."""
        return float(2.0 ** -{Dtype.fp32: 24, Dtype.fp16: 11, Dtype.bf16: 8}[self])


@dataclass(frozen=True, slots=True, order=True)
class ShapeKey:
    """The shape of a command. Commands of one batch have the same shape, except in modes that mix shapes."""

    m: int
    n: int
    k: int
    dtype: Dtype
    op: Op = Op.GEMM
    layout: int = 0  # distinguishes shapes that differ only in the arenas or row lengths of their operands
    packing: Packing = PLAIN  # of the weight of a GEMM; not in a record, since within a stream the rest tells it

    def __str__(self) -> str:
        sizes = f"{self.m}x{self.n}x{self.k}"
        return sizes if self.op is Op.GEMM else f"{self.op.name.lower()}:{sizes}"

    @property
    def flops(self) -> int:
        """Floating-point operations of one command.

        A GEMM counts 2 m n k, and COMBINE two per element of B; another op counts one per element of its output. QK,
        SOFTMAX and AV count one position of the sequence, since the number of positions is not in the shape.
        `ChainStream.flops` multiplies by it.
        """
        if self.op is Op.GEMM:
            return 2 * self.m * self.n * self.k
        if self.op in (Op.QK, Op.SOFTMAX):
            return self.n
        if self.op is Op.COMBINE:
            return 2 * self.k * self.n
        return 0 if self.op in (Op.SLOT_MAP, Op.KV_WRITE, Op.EXPERT_MAP, Op.PERMUTE) else self.m * self.n

    @property
    def bytes(self) -> int:
        """Minimum bytes that one command moves: A and B are read, C is written. Ops of attention count one position."""
        read, written = self.k * self.n, self.m * self.n
        if self.op is Op.SLOT_MAP:
            return INDEX_BYTES * written
        if self.op is Op.KV_WRITE:
            return 2 * written * self.dtype.itemsize + INDEX_BYTES * self.n
        if self.op in (Op.QK, Op.SOFTMAX):
            return 2 * self.n * self.dtype.itemsize
        if self.op is Op.AV:
            return written * self.dtype.itemsize
        if self.op is Op.TOP_K:
            return 2 * read * self.dtype.itemsize + CHOICE_BYTES * written
        if self.op is Op.EXPERT_MAP:
            return INDEX_BYTES * (2 * written + self.k + 1)
        if self.op is Op.PERMUTE:
            return (read + written) * self.dtype.itemsize + INDEX_BYTES * written // self.k
        if self.op is Op.COMBINE:
            return (read + written) * self.dtype.itemsize + CHOICE_BYTES * read // self.m
        added = written if self.op is Op.ADD else 0
        return self.weight_bytes + (added + read + written) * self.dtype.itemsize

    @property
    def weight_bytes(self) -> int:
        """The part of `bytes` that is a weight, with its scales. Commands of several requests can share it."""
        if self.op is Op.GEMM:
            return self.packing.bytes(self.m, self.k, self.dtype.itemsize)
        return self.m * self.dtype.itemsize if self.op in (Op.BIAS, Op.SCALE, Op.NORM) else 0

    @property
    def packed(self) -> tuple[int, int]:
        """The two words of a record that hold the shape: m | n << 32, and k | op << 32 | dtype << 40 | layout << 44."""
        return self.m | self.n << 32, self.k | int(self.op) << 32 | self.packed_dtype << 40

    @property
    def packed_dtype(self) -> int:
        """The byte of a record that holds dtype and layout."""
        return int(self.dtype) | self.layout << LAYOUT_SHIFT


def as_words(records: Records) -> NDArray[np.uint64]:
    """Return records as uint64 words over the same memory, [count, WORDS]. `records` must be contiguous."""
    return records.view(np.uint64).reshape(len(records), WORDS)


def as_records(words: NDArray[np.uint64]) -> Records:
    """Return words as records over the same memory, [count]; the inverse of `as_words`. `words` must be contiguous."""
    return words.reshape(-1).view(COMMAND_DTYPE)
