"""Fusion of neighbouring instructions that the megakernel executes as one task. Fewer tasks mean fewer waits.

`fused` sets the column FUSED of a list. A fused instruction still writes its outputs, so that they can be checked. The
output of a norm is the only exception. Three patterns are fused:

* NORM before the only GEMM that reads its output. Each block of the GEMM multiplies its inputs by the gain, and its
  outputs by the factor of the norm (kernels/megakernel/inputs.cuh). The output of the norm is stored nowhere.
* ADD, or SILU_MUL, behind a GEMM. The threads that have the GEMM's outputs apply the op to them.
* ROPE, KV_WRITE, QK, SOFTMAX and AV. One block executes all five for one request and kv head.

Before that, `merged` makes one GEMM of neighbouring GEMMs, such as q, k and v, whose memory is like that of one.
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
from launchopt.kernels.shared import GROUP_WARPS, MOST_COLUMNS, QUERIES
from launchopt.kernels.shared_megakernel import MOST_HEAD_DIM, TILE_ROWS, VALUE_QUERIES, WHOLE_TOKENS

ATTENTION = (Op.ROPE, Op.KV_WRITE, Op.QK, Op.SOFTMAX, Op.AV)
NORM_BYTES = {1: 8 << 10, MOST_COLUMNS: 4 << 10}  # most bytes of a column in a fused norm, by the compiled columns
QUERIES_A_KV_HEAD, MOST_LANES = QUERIES, 32  # limits of fused attention: query heads per kv head; vectors of a head
ATTENTION_BYTES = 32 << 10  # most bytes of shared memory for fused attention
CACHE_BYTES = 256 << 10  # most bytes of keys and values for one block; the ops of attention use more blocks for more


# Words that are equal in two GEMMs of one merged GEMM.
SAME = (Word.OP, Word.N, Word.K, Word.REQUESTS, Word.FIRST_REQUEST, Word.B, Word.LDA, Word.LDB)
SAME_STRIDES = (Word.STRIDE_A, Word.STRIDE_B, Word.STRIDE_C)


def merged(rows: Instructions, itemsize: int, tile_rows: int) -> Instructions:
    """Return the instructions, with one GEMM for neighbouring GEMMs whose weights, and outputs, are adjacent.

    itemsize: bytes of an element. tile_rows: rows of a GEMM in a virtual block.
    """
    made: list[Instruction] = []
    for row in rows:
        if made and _continues(made[-1], row, itemsize):
            made[-1][Word.M] += row[Word.M]
            made[-1][Word.GRID_X] = -(-made[-1][Word.M] // tile_rows)
        else:
            made.append(row.copy())
    return np.array(made)


def _continues(one: Instruction, other: Instruction, itemsize: int) -> bool:
    """Return whether `other` computes the features behind those of the GEMM `one`, from the same inputs."""
    if one[Word.OP] != Op.GEMM or any(one[word] != other[word] for word in (*SAME, *SAME_STRIDES)):
        return False
    is_row_shared = one[Word.N] == 1 or one[Word.LDC] == other[Word.LDC]
    features = one[Word.M] * itemsize
    a, c = one[Word.A] + features * one[Word.LDA], one[Word.C] + features
    return bool(is_row_shared and (a, c) == (other[Word.A], other[Word.C]))


def fused(rows: Instructions, itemsize: int) -> Instructions:
    """Return a copy of the instructions with column FUSED set. itemsize: bytes of an element."""
    made = rows.copy()
    i = 0
    while i < len(made):
        count = _attention(made[i:], itemsize) or (_is_read_once(made, i) and _around_gemm(made[i:], itemsize))
        made[i, Word.FUSED] = count
        made[i + 1 : i + 1 + count, Word.FUSED] = PART
        i += 1 + count
    return made


def _feeds(one: Instruction, other: Instruction) -> bool:
    """Return whether the outputs of `one` are the operand B of `other`, for the same requests."""
    alike = (one[Word.REQUESTS], one[Word.FIRST_REQUEST]) == (other[Word.REQUESTS], other[Word.FIRST_REQUEST])
    strides = one[Word.STRIDE_C] == other[Word.STRIDE_B] or one[Word.REQUESTS] == 1
    return bool(alike and strides and one[Word.C] == other[Word.B])


def _whole(row: Instruction, roles: str) -> bool:
    """Return whether operands have one row per request, aligned to VECTOR_BYTES. roles: letters of A, B and C."""
    addresses = [int(row[Word[role]]) for role in roles]
    strides = [int(row[Word[f"STRIDE_{role}"]]) for role in roles] if row[Word.REQUESTS] > 1 else []
    return bool(row[Word.N] == 1) and not np.bitwise_or.reduce([*addresses, *strides]) % VECTOR_BYTES


def _is_read_once(rows: Instructions, i: int) -> bool:
    """Return whether exactly one instruction reads the output of norm i, as operand B. Return True for other ops."""
    readers = (rows[:, [Word.A, Word.B]] == rows[i, Word.C]).sum(axis=0)
    return bool(rows[i, Word.OP] != Op.NORM or (readers == [0, 1]).all())


def _around_gemm(rows: Instructions, itemsize: int) -> int:
    """Return how many instructions are fused with the first, which is a GEMM or the norm before it.

    A GEMM may be fused with the norm before it and an op after it.
    """
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
    """Return how many instructions are fused with the first: 4 if it begins attention that can be fused, else 0."""
    if len(rows) < len(ATTENTION) or tuple(rows[: len(ATTENTION), Word.OP].tolist()) != ATTENTION:
        return 0
    rope, write, qk, softmax, av = rows[: len(ATTENTION)]
    linked = _feeds(rope, write) and _feeds(rope, qk) and _feeds(qk, softmax) and _feeds(softmax, av)
    cached = write[Word.C] == qk[Word.A] == av[Word.A]
    whole = _whole(rope, "BC") and _whole(av, "C") and write[Word.C] % VECTOR_BYTES == 0
    return len(ATTENTION) - 1 if linked and cached and whole and _fits(rope, itemsize) else 0


def _fits(rope: Instruction, itemsize: int) -> bool:
    """Return whether kernels/attention/fused_attention.cuh supports this shape of attention.

    A head must consist of whole vectors, a power of two of them, and a block must have enough shared memory.
    """
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
    """Return the bytes of shared memory that a block of fused attention needs.

    It holds rows of queries, key and value, the scores, and for fp32 partial sums. group: query heads per kv head.
    """
    scores = group * -(-ctx // WHOLE_TOKENS) * WHOLE_TOKENS
    parts = GROUP_WARPS * VALUE_QUERIES * head_dim if itemsize == 4 else 0
    return ((group + 2) * head_dim + scores + parts) * itemsize
