"""Lists of instructions: the columns of a list, and what follows from them.

A list is int64 [instructions, WORDS]: a row per instruction, a column per `Word`. Several neighbours may be fused
(launchopt/devices/instructions/fusion.py): the first one says how many follow, and the others are PARTs. An instruction
that waits for a fused one waits for all of them.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.kernels.shared import JOIN, MOST_COLUMNS


class Word(enum.IntEnum):
    """A column of a list."""

    OP = 0
    M = 1
    N = 2  # columns per request
    K = 3
    REQUESTS = 4  # number of requests of this instruction
    FIRST_REQUEST = 5  # its first request among the sequences; the others follow
    A = 6  # address of the first request's operand
    B = 7
    C = 8
    STRIDE_A = 9  # bytes from one request to the next; 0: they share the operand
    STRIDE_B = 10
    STRIDE_C = 11
    LDA = 12  # elements from one row to the next
    LDB = 13
    LDC = 14
    Q_HEADS = 15  # from here to THETA: as in struct Args
    KV_HEADS = 16
    HEAD_DIM = 17
    CTX = 18
    PAGE_TOKENS = 19
    PAGES = 20
    POSITIONS = 21
    TABLE = 22
    ALL_REQUESTS = 23  # number of requests of the stream
    THETA = 24  # bits of a float64
    GRID_X = 25  # virtual blocks; for a GEMM: tiles of rows, 1, requests
    GRID_Y = 26
    GRID_Z = 27
    WAITS = 28  # number of the next four that are used
    WAIT0 = 29  # an earlier instruction, or NOBODY
    WAIT1 = 30
    WAIT2 = 31
    WAIT3 = 32
    MAIL = 33  # the earlier instruction that mails it its inputs, or NOBODY
    LEVEL = 34  # length of the longest chain of instructions before it
    FUSED = 35  # number of instructions right behind it that are fused with it, or PART: fused with an earlier one
    ROW = 36  # row of the step; NOBODY for a join


WORDS = len(Word)
NOBODY, PART = -1, -1
# Weights are streamed if operands are aligned to VECTOR_BYTES and rows of k are multiples of SLICE_BYTES.
VECTOR_BYTES, SLICE_BYTES = 16, 256
STREAMED_BYTES_APART = 1 << 28  # inputs of two requests lie less apart, so that offsets fit in 32 bits
POSITIONED_OPS = (Op.ROPE, Op.QK, Op.SOFTMAX, Op.AV)
VECTOR_OPS = (Op.BIAS, Op.SCALE, Op.NORM)

Instruction = NDArray[np.int64]  # [WORDS]
Instructions = NDArray[np.int64]  # [instructions, WORDS]


def groups_of(instructions: Instructions) -> list[list[int]]:
    """Return the indices of each fused group, in order; an instruction of its own is a group of one."""
    fused = instructions[:, Word.FUSED].tolist()
    return [list(range(i, i + 1 + count)) for i, count in enumerate(fused) if count != PART]


def compiled_columns(requests: int) -> int:
    """Return for how many columns the kernel is compiled, if instructions have up to `requests` requests."""
    return 1 if requests == 1 else MOST_COLUMNS


def streamable(row: Instruction, itemsize: int) -> bool:
    """Return whether it is a GEMM whose weights can be streamed: one column per request, shared weights, whole
    vectors."""
    if row[Word.OP] != Op.GEMM or row[Word.N] != 1 or (row[Word.STRIDE_A] and row[Word.REQUESTS] > 1):
        return False
    apart = row[Word.STRIDE_B] if row[Word.REQUESTS] > 1 else 0
    whole = (row[Word.A] | row[Word.B] | apart | row[Word.LDA] * itemsize) % VECTOR_BYTES == 0
    return bool(whole and 0 <= apart < STREAMED_BYTES_APART and row[Word.K] * itemsize % SLICE_BYTES == 0)


def names_of(instructions: Instructions) -> list[str]:
    """Return a name for each fused group: its ops, for a GEMM with m and k, as in `NORM + GEMM 4096x1024`."""
    each = [_name(*row) for row in instructions[:, [Word.OP, Word.M, Word.K]].tolist()]
    return [" + ".join(each[i] for i in group) for group in groups_of(instructions)]


def _name(op: int, m: int, k: int) -> str:
    if op == JOIN:
        return "JOIN"
    return f"GEMM {m}x{k}" if op == Op.GEMM else Op(op).name


def weight_bytes(instructions: Instructions, itemsize: int) -> int:
    """Return the bytes of the distinct weights of the list's GEMMs: the least that a step reads from memory."""
    gemms = instructions[instructions[:, Word.OP] == Op.GEMM]
    found = {
        a + request * stride: m * k
        for a, stride, requests, m, k in gemms[:, [Word.A, Word.STRIDE_A, Word.REQUESTS, Word.M, Word.K]].tolist()
        for request in range(requests if stride else 1)
    }
    return int(sum(found.values())) * itemsize
