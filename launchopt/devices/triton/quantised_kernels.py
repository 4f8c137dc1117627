"""Triton kernels for GEMMs of few columns with quantised weights (launchopt/weights/packing.py).

A program reads codes, and converts them in registers. Codes are exact in fp32, fp16 and bf16. A scale per channel or
per tensor is applied to sums. A scale per block is applied to values (`quantised_sum`), or to the sum of a block
(`quantised_dot`). Arguments are those of `kernels.sum_gemm`, and:

    FORMAT      fp8, int8 or int4
    SCALES      channel, tensor or block
    SCALES_AT   offset of the scales in A, in bytes
    BLOCK_ROWS  rows that share a scale of a block
    UNPACK      PTX that converts four bytes of int4; empty: Triton's own operations, which Triton's interpreter can run
"""
# No `from __future__ import annotations`: Triton's interpreter, which tests use, needs the object `tl.constexpr`.
# Tuples are concatenated with +, since Triton cannot unpack them.
# A conditional expression would compile both branches, of different types.
# ruff: noqa: RUF005, SIM108

import triton
import triton.language as tl

BLOCK: tl.constexpr = tl.constexpr(128)  # values of a row that share a scale of a block


@triton.jit
def value_of(codes, FORMAT: tl.constexpr, TO: tl.constexpr):
    """Return fp8 or int8 codes as values of a type, in units of their scale."""
    if FORMAT == "fp8":
        value = codes.to(tl.float8e4nv, bitcast=True).to(TO)
    else:
        value = codes.to(tl.int8, bitcast=True).to(TO)
    return value


@triton.jit
def values_of(codes, TO: tl.constexpr, UNPACK: tl.constexpr):
    """Return the lower and the upper int4 code of each byte as values of a type, in units of their scale."""
    if UNPACK == "":
        low, high = ((codes & 15).to(tl.int32) - 8).to(TO), ((codes >> 4).to(tl.int32) - 8).to(TO)
    else:
        low, high = tl.inline_asm_elementwise(UNPACK, "=r,=r,=r,=r,r", [codes], (tl.int16, tl.int16), True, 4)
        low, high = low.to(TO, bitcast=True), high.to(TO, bitcast=True)
    return low, high


@triton.jit
def halves_of(pairs, DTYPE: tl.constexpr, BITS: tl.constexpr):
    """Return the first and the second value of pairs that were loaded as integers. BITS: of a value."""
    if BITS == 16:
        first, second = pairs.to(tl.uint16), (pairs >> 16).to(tl.uint16)
    else:
        first, second = pairs.to(tl.uint32), (pairs >> 32).to(tl.uint32)
    return first.to(DTYPE, bitcast=True), second.to(DTYPE, bitcast=True)


@triton.jit
def scaled(w, scales, rows, k, M: tl.constexpr, K: tl.constexpr, BLOCK_ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """Return values [rows, ...] times the scales of their blocks. GROUPS: blocks of a row that w has."""
    across: tl.constexpr = K // BLOCK
    at = k // BLOCK + tl.arange(0, GROUPS)
    there = (rows[:, None] < M) & (at[None, :] < across)
    s = tl.load(scales + (rows // BLOCK_ROWS)[:, None] * across + at[None, :], mask=there, other=0.0).to(tl.float32)
    parts = tl.reshape(w, [w.shape[0], GROUPS, w.shape[1] // GROUPS])
    return tl.reshape(parts * s[:, :, None], [w.shape[0], w.shape[1]])


@triton.jit
def quantised_sum(
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
    FORMAT: tl.constexpr,
    SCALES: tl.constexpr,
    SCALES_AT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    UNPACK: tl.constexpr,
):
    """C = B @ A.T. Sums are kept per row and byte within DEPTH elements of k, and reduced at the end."""
    command = tl.program_id(1)
    words: tl.constexpr = tl.pointer_type(tl.int64)
    is_int4: tl.constexpr = FORMAT == "int4"
    each: tl.constexpr = 2 if is_int4 else 1  # codes of a byte
    size: tl.constexpr = DEPTH // each
    groups: tl.constexpr = DEPTH // BLOCK if DEPTH > BLOCK else 1
    bits: tl.constexpr = DTYPE.primitive_bitwidth
    pair: tl.constexpr = tl.uint32 if bits == 16 else tl.uint64
    scale_type: tl.constexpr = tl.float16 if is_int4 else tl.float32
    if DIRECT:
        a, b, c = a_table, b_table, c_table
    else:
        a = tl.load(a_table.to(words) + command)
        b = tl.load(b_table.to(words) + command)
        c = tl.load(c_table.to(words) + command)
    codes = tl.multiple_of(a.to(tl.pointer_type(tl.uint8)), 16)
    scales = tl.multiple_of((a + SCALES_AT).to(tl.pointer_type(scale_type)), 16)
    c = tl.multiple_of(c.to(tl.pointer_type(DTYPE)), 16)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, size)
    weights = codes + rows[:, None].to(tl.int64) * (K // each) + at[None, :]
    if is_int4:
        inputs = tl.multiple_of(b.to(tl.pointer_type(pair)), 16)
    else:
        inputs = tl.multiple_of(b.to(tl.pointer_type(DTYPE)), 16)
    sums = ()
    for _ in tl.static_range(N):
        sums = sums + (tl.zeros([ROWS, size], tl.float32),)
    for k in tl.range(0, K, DEPTH, num_stages=STAGES):
        first = k // each
        is_input = (first + at < K // each) | (K % DEPTH == 0)
        there = (rows[:, None] < M) & (first + at[None, :] < K // each) | (K % DEPTH == 0 and M % ROWS == 0)
        w = tl.load(weights + first, mask=there, other=0, eviction_policy=POLICY)
        added = ()
        if is_int4:
            low, high = values_of(w, DTYPE, UNPACK)
            low, high = low.to(tl.float32), high.to(tl.float32)
            if SCALES == "block":
                low = scaled(low, scales, rows, k, M, K, BLOCK_ROWS, groups)
                high = scaled(high, scales, rows, k, M, K, BLOCK_ROWS, groups)
            for j in tl.static_range(N):
                pairs = tl.load(inputs + j * (LEADING[1] // 2) + first + at, mask=is_input, other=0)
                x, y = halves_of(pairs, DTYPE, bits)
                product = low * x.to(tl.float32)[None, :] + high * y.to(tl.float32)[None, :]
                added = added + (sums[j] + product,)
        else:
            value = value_of(w, FORMAT, tl.float32)
            if SCALES == "block":
                value = scaled(value, scales, rows, k, M, K, BLOCK_ROWS, groups)
            for j in tl.static_range(N):
                x = tl.load(inputs + j * LEADING[1] + k + at, mask=is_input, other=0.0).to(tl.float32)
                added = added + (sums[j] + value * x[None, :],)
        sums = added
    for j in tl.static_range(N):
        total = tl.sum(sums[j], 1)
        if SCALES == "channel":
            total = total * tl.load(scales + rows, mask=rows < M, other=0.0).to(tl.float32)
        elif SCALES == "tensor":
            total = total * tl.load(scales).to(tl.float32)
        tl.store(c + j * LEADING[2] + rows, total.to(DTYPE), mask=rows < M)


@triton.jit
def quantised_dot(
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
    FORMAT: tl.constexpr,
    SCALES: tl.constexpr,
    SCALES_AT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    UNPACK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """C = B @ A.T by tl.dot, in DTYPE, on COLUMNS columns; only the first N exist.

    DEPTH divides a block of scales.
    """
    command = tl.program_id(1)
    words: tl.constexpr = tl.pointer_type(tl.int64)
    is_int4: tl.constexpr = FORMAT == "int4"
    each: tl.constexpr = 2 if is_int4 else 1  # codes of a byte
    across: tl.constexpr = K // BLOCK
    scale_type: tl.constexpr = tl.float16 if is_int4 else tl.float32
    if DIRECT:
        a, b, c = a_table, b_table, c_table
    else:
        a = tl.load(a_table.to(words) + command)
        b = tl.load(b_table.to(words) + command)
        c = tl.load(c_table.to(words) + command)
    codes = tl.multiple_of(a.to(tl.pointer_type(tl.uint8)), 16)
    scales = tl.multiple_of((a + SCALES_AT).to(tl.pointer_type(scale_type)), 16)
    c = tl.multiple_of(c.to(tl.pointer_type(DTYPE)), 16)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, DEPTH // each)
    columns = tl.arange(0, COLUMNS)
    weights = codes + rows[:, None].to(tl.int64) * (K // each) + at[None, :]
    if is_int4:
        inputs = tl.multiple_of(b.to(tl.pointer_type(tl.uint32)), 16)
    else:
        inputs = tl.multiple_of(b.to(tl.pointer_type(DTYPE)), 16)
    inputs += columns[None, :] * (LEADING[1] // each) + at[:, None]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in tl.range(0, K, DEPTH, num_stages=STAGES):
        first = k // each
        there = (rows[:, None] < M) & (first + at[None, :] < K // each) | (K % DEPTH == 0 and M % ROWS == 0)
        w = tl.load(weights + first, mask=there, other=0, eviction_policy=POLICY)
        given = tl.load(inputs + first, mask=(columns[None, :] < N) & (first + at[:, None] < K // each), other=0)
        if SCALES == "block":
            part = tl.zeros([ROWS, COLUMNS], tl.float32)
        else:
            part = sums
        if is_int4:
            low, high = values_of(w, DTYPE, UNPACK)
            x, y = halves_of(given, DTYPE, 16)
            part = tl.dot(high, y, tl.dot(low, x, part))
        else:
            part = tl.dot(value_of(w, FORMAT, DTYPE), given, part)
        if SCALES == "block":
            s = tl.load(scales + rows // BLOCK_ROWS * across + k // BLOCK, mask=rows < M, other=0.0)
            sums += part * s.to(tl.float32)[:, None]
        else:
            sums = part
    if SCALES == "channel":
        sums = sums * tl.load(scales + rows, mask=rows < M, other=0.0).to(tl.float32)[:, None]
    elif SCALES == "tensor":
        sums = sums * tl.load(scales).to(tl.float32)
    outputs = c + columns[None, :] * LEADING[2] + rows[:, None]
    tl.store(outputs, sums.to(DTYPE), mask=(rows[:, None] < M) & (columns[None, :] < N))
