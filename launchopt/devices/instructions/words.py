"""A step as a list of instructions: what the words of an instruction are.

A list is int64 [instructions, WORDS], a row an instruction, its columns those of `Word`. Some are done together, as one
(`fusion`): the first of these says how many follow, the others are its PARTs. Who waits for one of them waits for all.
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
    N = 2  # columns a request
    K = 3
    REQUESTS = 4  # of this instruction
    FIRST_REQUEST = 5  # where it reads sequences, the others follow it
    A = 6  # address, of the first request
    B = 7
    C = 8
    STRIDE_A = 9  # bytes from request to request
    STRIDE_B = 10
    STRIDE_C = 11
    LDA = 12  # elements from row to row
    LDB = 13
    LDC = 14
    Q_HEADS = 15  # from here to THETA as in struct Args
    KV_HEADS = 16
    HEAD_DIM = 17
    CTX = 18
    PAGE_TOKENS = 19
    PAGES = 20
    POSITIONS = 21
    TABLE = 22
    ALL_REQUESTS = 23  # of the stream
    THETA = 24  # bits of a float64
    GRID_X = 25  # of a GEMM: tiles of rows, 1, requests
    GRID_Y = 26
    GRID_Z = 27
    WAITS = 28  # how many of the next four are used
    WAIT0 = 29  # an earlier instruction, or NOBODY
    WAIT1 = 30
    WAIT2 = 31
    WAIT3 = 32
    MAIL = 33  # the earlier instruction whose outputs are its inputs, or NOBODY
    LEVEL = 34  # how many instructions at most come one after another before it
    FUSED = 35  # how many instructions right behind it are done with it, or PART: is done with one before it
    ROW = 36  # of the step; NOBODY of a join


WORDS = len(Word)
NOBODY, PART = -1, -1
# To which operands must be aligned for weights to be copied ahead of time, and what k must be whole ones of.
VECTOR_BYTES, SLICE_BYTES = 16, 256
STREAMED_BYTES_APART = 1 << 28  # what two requests' inputs lie less apart than, so that all lie within 32 bits
POSITIONED_OPS = (Op.ROPE, Op.QK, Op.SOFTMAX, Op.AV)
VECTOR_OPS = (Op.BIAS, Op.SCALE, Op.NORM)

Instruction = NDArray[np.int64]  # [WORDS]
Instructions = NDArray[np.int64]  # [instructions, WORDS]


def groups_of(instructions: Instructions) -> list[list[int]]:
    """Which instructions are done as one, each lot in order."""
    fused = instructions[:, Word.FUSED].tolist()
    return [list(range(i, i + 1 + count)) for i, count in enumerate(fused) if count != PART]


def compiled_columns(requests: int) -> int:
    """For how many columns a kernel is compiled that does instructions of so many requests."""
    return 1 if requests == 1 else MOST_COLUMNS


def streamable(row: Instruction, itemsize: int) -> bool:
    """Whether it is a GEMM of one column a request, which share weights, with operands of whole vectors."""
    if row[Word.OP] != Op.GEMM or row[Word.N] != 1 or (row[Word.STRIDE_A] and row[Word.REQUESTS] > 1):
        return False
    apart = row[Word.STRIDE_B] if row[Word.REQUESTS] > 1 else 0
    whole = (row[Word.A] | row[Word.B] | apart | row[Word.LDA] * itemsize) % VECTOR_BYTES == 0
    return bool(whole and 0 <= apart < STREAMED_BYTES_APART and row[Word.K] * itemsize % SLICE_BYTES == 0)


def names_of(instructions: Instructions) -> list[str]:
    """Its op, of a GEMM with m and k; of those that are done as one all of them: `NORM + GEMM 4096x1024`."""
    each = [_name(*row) for row in instructions[:, [Word.OP, Word.M, Word.K]].tolist()]
    return [" + ".join(each[i] for i in group) for group in groups_of(instructions)]


def _name(op: int, m: int, k: int) -> str:
    if op == JOIN:
        return "JOIN"
    return f"GEMM {m}x{k}" if op == Op.GEMM else Op(op).name


def weight_bytes(instructions: Instructions, itemsize: int) -> int:
    """Of the distinct weights of the list's GEMMs, m x k elements each: what has to come from memory at the least."""
    gemms = instructions[instructions[:, Word.OP] == Op.GEMM]
    found = {
        a + request * stride: m * k
        for a, stride, requests, m, k in gemms[:, [Word.A, Word.STRIDE_A, Word.REQUESTS, Word.M, Word.K]].tolist()
        for request in range(requests if stride else 1)
    }
    return int(sum(found.values())) * itemsize
