"""Triton kernels: GEMMs of few columns, and bias, ReLU and scale in one kernel.

Each kernel takes four int64, which compiled launch loops write, and constants. Program axis 1 is the command of a
batch. GEMMs find their operands through three tables of pointers, int64. Arithmetic is fp32, without TF32.
"""
# No `from __future__ import annotations`: Triton's interpreter, which tests use, needs the object `tl.constexpr`.
# Tuples are concatenated with +, since Triton cannot unpack them.
# ruff: noqa: RUF005

import triton
import triton.language as tl


@triton.jit
def sum_gemm(
    a_table,
    b_table,
    c_table,
    request,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    LEADING: tl.constexpr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    POLICY: tl.constexpr,
    DIRECT: tl.constexpr,
):
    """C = B @ A.T. Sums are kept per row and position within DEPTH elements of k, and reduced at the end.

    Program axis 0: a block of ROWS rows of A. LEADING: elements from one row of A, B, C to the next. POLICY: cache
    policy of A. DIRECT: the tables are the addresses of one command's A, B and C.
    """
    command = tl.program_id(1)
    words: tl.constexpr = tl.pointer_type(tl.int64)
    values: tl.constexpr = tl.pointer_type(DTYPE)
    if DIRECT:
        a, b, c = a_table, b_table, c_table
    else:
        a = tl.load(a_table.to(words) + command)
        b = tl.load(b_table.to(words) + command)
        c = tl.load(c_table.to(words) + command)
    a = tl.multiple_of(a.to(values), 16)
    b = tl.multiple_of(b.to(values), 16)
    c = tl.multiple_of(c.to(values), 16)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, DEPTH)
    weights = a + rows[:, None].to(tl.int64) * LEADING[0] + at[None, :]
    sums = ()
    for _ in tl.static_range(N):
        sums = sums + (tl.zeros([ROWS, DEPTH], tl.float32),)
    for k in tl.range(0, K, DEPTH, num_stages=STAGES):
        there = (rows[:, None] < M) & (k + at[None, :] < K) | (K % DEPTH == 0 and M % ROWS == 0)
        w = tl.load(weights + k, mask=there, other=0.0, eviction_policy=POLICY).to(tl.float32)
        added = ()
        for j in tl.static_range(N):
            x = tl.load(b + j * LEADING[1] + k + at, mask=(k + at < K) | (K % DEPTH == 0), other=0.0).to(tl.float32)
            added = added + (sums[j] + w * x[None, :],)
        sums = added
    for j in tl.static_range(N):
        tl.store(c + j * LEADING[2] + rows, tl.sum(sums[j], 1).to(DTYPE), mask=rows < M)


@triton.jit
def dot_gemm(
    a_table,
    b_table,
    c_table,
    request,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    LEADING: tl.constexpr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    POLICY: tl.constexpr,
    DIRECT: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """C = B @ A.T by tl.dot on COLUMNS columns; only the first N exist. Arguments as for `sum_gemm`."""
    command = tl.program_id(1)
    words: tl.constexpr = tl.pointer_type(tl.int64)
    values: tl.constexpr = tl.pointer_type(DTYPE)
    if DIRECT:
        a, b, c = a_table, b_table, c_table
    else:
        a = tl.load(a_table.to(words) + command)
        b = tl.load(b_table.to(words) + command)
        c = tl.load(c_table.to(words) + command)
    a = tl.multiple_of(a.to(values), 16)
    b = tl.multiple_of(b.to(values), 16)
    c = tl.multiple_of(c.to(values), 16)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, DEPTH)
    columns = tl.arange(0, COLUMNS)
    weights = a + rows[:, None].to(tl.int64) * LEADING[0] + at[None, :]
    inputs = b + columns[None, :] * LEADING[1] + at[:, None]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in tl.range(0, K, DEPTH, num_stages=STAGES):
        there = (rows[:, None] < M) & (k + at[None, :] < K) | (K % DEPTH == 0 and M % ROWS == 0)
        w = tl.load(weights + k, mask=there, other=0.0, eviction_policy=POLICY)
        x = tl.load(inputs + k, mask=(columns[None, :] < N) & (k + at[:, None] < K), other=0.0)
        sums = tl.dot(w, x, sums, input_precision="ieee")
    outputs = c + columns[None, :] * LEADING[2] + rows[:, None]
    tl.store(outputs, sums.to(DTYPE), mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def bias_relu_scale(
    bias,
    scale,
    b_first,
    c_first,
    M: tl.constexpr,
    LEADING: tl.constexpr,
    STRIDES: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """C = max(B + bias, 0) * scale. Program axis 0: a block of features of a column; axis 1: the request.

    bias, scale: addresses of vectors. b_first, c_first: addresses of the first request's B and C. STRIDES: bytes from
    one request's B and C to the next request's. LEADING: elements from one column of B and C to the next.
    """
    values: tl.constexpr = tl.pointer_type(DTYPE)
    blocks: tl.constexpr = (M + BLOCK - 1) // BLOCK
    member, column = tl.program_id(1).to(tl.int64), (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    there = at < M
    b = tl.multiple_of((b_first + member * STRIDES[0]).to(values), 16)
    c = tl.multiple_of((c_first + member * STRIDES[1]).to(values), 16)
    x = tl.load(b + column * LEADING[0] + at, mask=there, other=0.0).to(tl.float32)
    added = tl.load(tl.multiple_of(bias.to(values), 16) + at, mask=there, other=0.0).to(tl.float32)
    factor = tl.load(tl.multiple_of(scale.to(values), 16) + at, mask=there, other=0.0).to(tl.float32)
    tl.store(c + column * LEADING[1] + at, (tl.maximum(x + added, 0.0) * factor).to(DTYPE), mask=there)
