"""Triton kernel of the GEMMs of a layer with experts, in the structure that serving engines give it.

The rows of an expert are cut into blocks of up to BLOCK_M rows (kernels/expert_align.cu). A program multiplies a block
by BLOCK_N rows of its expert's weight. The first GEMM of a layer gathers its inputs through the blocks, so no launch
copies them before.
"""
# No `from __future__ import annotations`: Triton's interpreter, which tests use, needs the object `tl.constexpr`.

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def expert_gemm(
    a_address,
    b_address,
    c_address,
    blocks_address,
    M: tl.constexpr,
    K: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    LEADING: tl.constexpr,
    WEIGHT: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    INDIRECT: tl.constexpr,
    PDL: tl.constexpr,
):
    """C = B @ A.T for each expert: its weight A [M, K], and its rows of B and C.

    Program axis 0: a block and BLOCK_N rows of its weight. Programs of GROUP_M blocks are neighbours. TOP_K: B has a
    row for each column, which that many experts read; 0: B has a row for each row of C. LEADING: elements from one row
    of B, and of C, to the next. WEIGHT: elements from one weight to the next. INDIRECT: the first address is that of a
    table of the four.
    """
    values: tl.constexpr = tl.pointer_type(DTYPE)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    if INDIRECT:
        table = a_address.to(tl.pointer_type(tl.int64))
        a, b, c, blocks_at = tl.load(table), tl.load(table + 1), tl.load(table + 2), tl.load(table + 3)
    else:
        a, b, c, blocks_at = a_address, b_address, c_address, blocks_address
    blocks = blocks_at.to(tl.pointer_type(tl.int32))
    program = tl.program_id(0)
    count, tiles = tl.load(blocks), tl.cdiv(M, BLOCK_N)
    if program >= count * tiles:
        return
    first = program // (GROUP_M * tiles) * GROUP_M
    within, together = program % (GROUP_M * tiles), tl.minimum(count - first, GROUP_M)
    block, tile = first + within % together, within // together
    head = blocks + BLOCK_WORDS + block * (BLOCK_WORDS + BLOCK_M)
    expert, row, rows = tl.load(head), tl.load(head + 1), tl.load(head + 2)
    own = tl.arange(0, BLOCK_M)
    is_row = own < rows
    if TOP_K:  # noqa: SIM108 (Triton must not compile the other branch)
        given = tl.load(head + BLOCK_WORDS + own, mask=is_row, other=0) // TOP_K
    else:
        given = row + own
    features, at = tile * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    a = tl.multiple_of(a.to(values), 16) + tl.minimum(expert, EXPERTS - 1).to(tl.int64) * WEIGHT
    b = tl.multiple_of(b.to(values), 16)
    c = tl.multiple_of(c.to(values), 16)
    inputs = b + given[:, None].to(tl.int64) * LEADING[0] + at[None, :]
    weights = a + (features % M)[None, :] * K + at[:, None]
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        if K % BLOCK_K == 0:
            x = tl.load(inputs + k, mask=is_row[:, None], other=0.0)
            w = tl.load(weights + k)
        else:
            x = tl.load(inputs + k, mask=is_row[:, None] & (k + at[None, :] < K), other=0.0)
            w = tl.load(weights + k, mask=k + at[:, None] < K, other=0.0)
        sums = tl.dot(x, w, sums)
    outputs = c + (row + own)[:, None].to(tl.int64) * LEADING[1] + features[None, :]
    tl.store(outputs, sums.to(DTYPE), mask=is_row[:, None] & (features[None, :] < M))
