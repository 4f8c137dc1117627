"""Fusion: which neighbouring instructions the megakernel executes as one. Fewer instructions mean fewer waits.

`fused` sets the column FUSED of a list. Each instruction still reads and writes all its operands, so each output can be
checked. The output of a norm is the exception. Three patterns are fused:

* NORM before the only GEMM that reads its output. Every block of the GEMM applies the norm to its own inputs, in two
  parts (kernels/megakernel/inputs.cuh). The output of the norm is stored nowhere.
* ADD, or SILU_MUL, behind a GEMM. The thread that has the GEMM's outputs applies it.
* ROPE, KV_WRITE, QK, SOFTMAX and AV. One block executes them for a request and a kv head.
"""

from __future__ import annotations

import numpy as np

from launchopt.command import Op
from launchopt.devices.instructions.words import (
    PART,
    VECTOR_BYTES,
    Instruction,
    Instructions,
    Word,
    compiled_columns,
    streamable,
)
from launchopt.kernels.shared import (
    GROUP_WARPS,
    MOST_COLUMNS,
    MOST_HEAD_DIM,
    QUERIES,
    TILE_ROWS,
    VALUE_QUERIES,
    WHOLE_TOKENS,
)

ATTENTION = (Op.ROPE, Op.KV_WRITE, Op.QK, Op.SOFTMAX, Op.AV)
NORM_BYTES = {1: 8 << 10, MOST_COLUMNS: 4 << 10}  # most bytes of a column that a norm is fused for, by compiled columns
QUERIES_A_KV_HEAD, MOST_LANES = QUERIES, 32
ATTENTION_BYTES = 32 << 10  # of shared memory, for fused attention
CACHE_BYTES = 256 << 10  # most keys and values that one block reads; more of them are better read by more blocks


def fused(rows: Instructions, itemsize: int) -> Instructions:
    """Return the same instructions with FUSED set. itemsize: bytes of an element."""
    made = rows.copy()
    i = 0
    while i < len(made):
        count = _attention(made[i:], itemsize) or (_is_read_once(made, i) and _around_gemm(made[i:], itemsize))
        made[i, Word.FUSED] = count
        made[i + 1 : i + 1 + count, Word.FUSED] = PART
        i += 1 + count
    return made


def _feeds(one: Instruction, other: Instruction) -> bool:
    """Return whether the outputs of one instruction are the whole operand B of the other."""
    alike = (one[Word.REQUESTS], one[Word.FIRST_REQUEST]) == (other[Word.REQUESTS], other[Word.FIRST_REQUEST])
    strides = one[Word.STRIDE_C] == other[Word.STRIDE_B] or one[Word.REQUESTS] == 1
    return bool(alike and strides and one[Word.C] == other[Word.B])


def _whole(row: Instruction, roles: str) -> bool:
    """Return whether these operands consist of whole vectors, with one row per request."""
    addresses = [int(row[Word[role]]) for role in roles]
    strides = [int(row[Word[f"STRIDE_{role}"]]) for role in roles] if row[Word.REQUESTS] > 1 else []
    return bool(row[Word.N] == 1) and not np.bitwise_or.reduce([*addresses, *strides]) % VECTOR_BYTES


def _is_read_once(rows: Instructions, i: int) -> bool:
    """Return whether one instruction reads the output of a norm, as B. True for other ops than NORM."""
    readers = (rows[:, [Word.A, Word.B]] == rows[i, Word.C]).sum(axis=0)
    return bool(rows[i, Word.OP] != Op.NORM or (readers == [0, 1]).all())


def _around_gemm(rows: Instructions, itemsize: int) -> int:
    """Return how many instructions behind the first are fused with it, one of them a GEMM."""
    columns = compiled_columns(int(rows[0, Word.REQUESTS]))
    before = 0
    if rows[0, Word.OP] == Op.NORM:
        norm = rows[0]
        fits = norm[Word.M] * itemsize <= NORM_BYTES[columns] and _whole(norm, "ABC")
        if len(rows) < 2 or not fits or not _feeds(norm, rows[1]) or norm[Word.M] != rows[1, Word.K]:
            return 0
        before = 1
    gemm = rows[before]
    if not streamable(gemm, itemsize):
        return 0
    return before + (len(rows) > before + 1 and _after_gemm(gemm, rows[before + 1]))


def _after_gemm(gemm: Instruction, row: Instruction) -> bool:
    if not _feeds(gemm, row) or not _whole(gemm, "C"):
        return False
    if row[Word.OP] == Op.ADD:
        return bool(row[Word.M] == gemm[Word.M] and row[Word.M] % 2 == 0) and _whole(row, "AC")
    pairs = bool(2 * row[Word.M] == gemm[Word.M] and row[Word.M] % TILE_ROWS == 0)
    return bool(row[Word.OP] == Op.SILU_MUL) and pairs and _whole(row, "C")


def _attention(rows: Instructions, itemsize: int) -> int:
    """Return 4 where attention begins that one block per kv head can execute, with one column per request; else 0."""
    if len(rows) < len(ATTENTION) or tuple(rows[: len(ATTENTION), Word.OP].tolist()) != ATTENTION:
        return 0
    rope, write, qk, softmax, av = rows[: len(ATTENTION)]
    linked = _feeds(rope, write) and _feeds(rope, qk) and _feeds(qk, softmax) and _feeds(softmax, av)
    cached = write[Word.C] == qk[Word.A] == av[Word.A]
    whole = _whole(rope, "BC") and _whole(av, "C") and write[Word.C] % VECTOR_BYTES == 0
    return len(ATTENTION) - 1 if linked and cached and whole and _fits(rope, itemsize) else 0


def _fits(rope: Instruction, itemsize: int) -> bool:
    """Return whether kernels/attention/fused_attention.cuh can do it: whole vectors, and little enough for a block."""
    head_dim, ctx, width = int(rope[Word.HEAD_DIM]), int(rope[Word.CTX]), VECTOR_BYTES // itemsize
    group, left = divmod(int(rope[Word.Q_HEADS]), int(rope[Word.KV_HEADS]))
    lanes = head_dim // width
    if (
        left
        or group > QUERIES_A_KV_HEAD
        or head_dim % width
        or lanes < 2
        or lanes & (lanes - 1)
        or lanes > MOST_LANES
        or head_dim > MOST_HEAD_DIM
    ):
        return False
    return (
        attention_bytes(head_dim, group, ctx, itemsize) <= ATTENTION_BYTES
        and 2 * ctx * head_dim * itemsize <= CACHE_BYTES
    )


def attention_bytes(head_dim: int, group: int, ctx: int, itemsize: int) -> int:
    """Return the bytes of shared memory of a block: rows of q, k and v, scores, and for fp32 partial sums."""
    scores = group * -(-ctx // WHOLE_TOKENS) * WHOLE_TOKENS
    parts = GROUP_WARPS * VALUE_QUERIES * head_dim if itemsize == 4 else 0
    return ((group + 2) * head_dim + scores + parts) * itemsize
