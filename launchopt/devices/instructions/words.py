"""Lists of instructions: the columns of a list, and functions of a list.

A list is int64 [instructions, WORDS]: one row per instruction, one column per `Word`. Neighbouring instructions may be
fused (launchopt/devices/instructions/fusion.py). Column FUSED of the first one of a group is the number of the others;
it is PART for the others. An instruction that waits for a fused instruction waits for the whole group.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.kernels.shared import MOST_COLUMNS
from launchopt.kernels.shared_megakernel import JOIN


class Word(enum.IntEnum):
    """Columns of a list."""

    OP = 0  # an Op, or JOIN
    M = 1  # features of C
    N = 2  # columns per request
    K = 3  # features of B
    REQUESTS = 4  # number of requests of this instruction
    FIRST_REQUEST = 5  # index in the workload stream; ops that read sequences have consecutive requests
    A = 6  # address of the first request's operand A
    B = 7
    C = 8
    STRIDE_A = 9  # bytes from the operand of one request to that of the next; 0: requests share the operand
    STRIDE_B = 10
    STRIDE_C = 11
    LDA = 12  # elements from one row of the operand to the next
    LDB = 13
    LDC = 14
    Q_HEADS = 15  # columns from here to THETA are as in struct Args (launchopt/kernels/shared.py)
    KV_HEADS = 16
    HEAD_DIM = 17
    CTX = 18
    PAGE_TOKENS = 19
    PAGES = 20
    QK_NORM = 21
    POSITIONS = 22
    TABLE = 23
    ALL_REQUESTS = 24  # number of requests of the workload stream
    THETA = 25  # bits of a float64
    GRID_X = 26  # extents of the grid of virtual blocks; for a GEMM: tiles of rows, 1, requests
    GRID_Y = 27
    GRID_Z = 28
    WAITS = 29  # number of the columns WAIT0 to WAIT3 that are used
    WAIT0 = 30  # index of an earlier instruction for which this one waits, or NOBODY
    WAIT1 = 31
    WAIT2 = 32
    WAIT3 = 33
    MAIL = 34  # index of the earlier instruction that sends this one its inputs through mailboxes, or NOBODY
    LEVEL = 35  # number of instructions before this one in the longest chain of dependencies that leads to it
    FUSED = 36  # number of following instructions that are fused with this one; PART: it is fused with an earlier one
    ROW = 37  # index of the row of the step; NOBODY: a join


WORDS = len(Word)
NOBODY, PART = -1, -1  # value in place of an index of an instruction; value of FUSED
# The weights of a GEMM are streamed if operands are aligned to VECTOR_BYTES and k takes a multiple of SLICE_BYTES.
VECTOR_BYTES, SLICE_BYTES = 16, 256
STREAMED_BYTES_APART = 1 << 28  # inputs of neighbouring requests must be less apart, so that offsets fit in 32 bits
POSITIONED_OPS = (Op.ROPE, Op.QK, Op.SOFTMAX, Op.AV)  # ops that read the positions of requests
VECTOR_OPS = (Op.BIAS, Op.SCALE, Op.NORM)  # ops whose operand A is one vector for all rows

Instruction = NDArray[np.int64]  # [WORDS]
Instructions = NDArray[np.int64]  # [instructions, WORDS]


def groups_of(instructions: Instructions) -> list[list[int]]:
    """Return the indices of the instructions of each fused group, in order. Other instructions are groups of one."""
    fused = instructions[:, Word.FUSED].tolist()
    return [list(range(i, i + 1 + count)) for i, count in enumerate(fused) if count != PART]


def compiled_columns(requests: int) -> int:
    """Return the number of columns for which the kernel is compiled. requests: most requests of an instruction."""
    return 1 if requests == 1 else MOST_COLUMNS


def streamable(row: Instruction, itemsize: int) -> bool:
    """Return whether an instruction is a GEMM whose weights can be streamed.

    It must have one column per request, weights that all requests share, and rows of whole vectors and slices.
    """
    if row[Word.OP] != Op.GEMM or row[Word.N] != 1 or (row[Word.STRIDE_A] and row[Word.REQUESTS] > 1):
        return False
    apart = row[Word.STRIDE_B] if row[Word.REQUESTS] > 1 else 0
    whole = (row[Word.A] | row[Word.B] | apart | row[Word.LDA] * itemsize) % VECTOR_BYTES == 0
    return bool(whole and 0 <= apart < STREAMED_BYTES_APART and row[Word.K] * itemsize % SLICE_BYTES == 0)


def names_of(instructions: Instructions) -> list[str]:
    """Return a name for each fused group: its ops, and m and k of a GEMM, as in `NORM + GEMM 4096x1024`."""
    each = [_name(*row) for row in instructions[:, [Word.OP, Word.M, Word.K]].tolist()]
    return [" + ".join(each[i] for i in group) for group in groups_of(instructions)]


def _name(op: int, m: int, k: int) -> str:
    if op == JOIN:
        return "JOIN"
    return f"GEMM {m}x{k}" if op == Op.GEMM else Op(op).name


def weight_bytes(instructions: Instructions, itemsize: int) -> int:
    """Return the bytes of the distinct weights of the list's GEMMs. A step must read at least these from memory."""
    gemms = instructions[instructions[:, Word.OP] == Op.GEMM]
    found = {
        a + request * stride: m * k
        for a, stride, requests, m, k in gemms[:, [Word.A, Word.STRIDE_A, Word.REQUESTS, Word.M, Word.K]].tolist()
        for request in range(requests if stride else 1)
    }
    return int(sum(found.values())) * itemsize
