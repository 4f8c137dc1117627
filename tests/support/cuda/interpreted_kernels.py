"""Runs the Triton kernels in Triton's interpreter, on NumPy's memory, and compares: `python interpreted_kernels.py`.

A program of its own: the interpreter is chosen when Triton is imported (TRITON_INTERPRET=1). Prints what it did.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.triton import elementwise
from launchopt.devices.triton.gemm import variant
from launchopt.devices.triton.tuning import Config, configs
from launchopt.weights.packing import Packing
from launchopt.weights.quantiser import dequantised, quantised
from support.quantised import PACKINGS

# m, n, k, dtype, elements between rows of A, B and C
GEMMS = [
    (8, 1, 16, Dtype.fp32, (0, 0, 0)),
    (7, 1, 300, Dtype.fp32, (4, 0, 1)),
    (5, 1, 129, Dtype.bf16, (0, 0, 0)),
    (33, 3, 70, Dtype.fp16, (2, 6, 5)),
    (16, 16, 64, Dtype.fp32, (0, 0, 0)),
    (20, 2, 33, Dtype.bf16, (0, 1, 0)),
    (1, 1, 1, Dtype.fp16, (0, 0, 0)),
]
COMMANDS = 3
SIZES = 130, 1, 384  # of quantised weights, whose last block of rows is not whole


def random(generator: np.random.Generator, dtype: Dtype, *shape: int) -> Any:
    return from_float32(generator.standard_normal(shape).astype(np.float32), dtype)


def poisoned(dtype: Dtype, *shape: int) -> Any:
    return from_float32(np.full(shape, np.nan, np.float32), dtype)


def table(arrays: Any) -> Any:
    """Return a table of the arrays' addresses."""
    return np.array([array.ctypes.data for array in arrays], np.int64)


def check_gemm(
    m: int, n: int, k: int, dtype: Dtype, padding: tuple[int, int, int], config: Config, direct: bool
) -> None:
    generator, count = np.random.default_rng(m + k), 1 if direct else COMMANDS
    lead = (k + padding[0], k + padding[1], m + padding[2])
    a, b = random(generator, dtype, count, m, lead[0]), random(generator, dtype, count, n, lead[1])
    c = poisoned(dtype, count, n, lead[2])
    made = variant(ShapeKey(m, n, k, dtype), lead, config, False, direct)
    tables = [table(array) for array in (a, b, c)]
    arguments = [int(array[0]) if direct else array.ctypes.data for array in tables]
    made.function[(-(-m // config.rows), count, 1)](*arguments, 0, **made.constants)
    wide_a, wide_b, got = (to_float32(array, dtype) for array in (a[..., :k], b[..., :k], c))
    exact = wide_b.astype(np.float64) @ wide_a.astype(np.float64).transpose(0, 2, 1)
    error = np.abs(got[..., :m] - exact).max() / np.sqrt((exact**2).mean())
    allowed = 8 * dtype.unit_roundoff + 64 * Dtype.fp32.unit_roundoff  # rounding the result, and sums in fp32
    assert error < allowed, f"{config}: error {error}"
    assert np.isnan(got[..., m:]).all(), f"{config}: written beside C"


def check_quantised(packing: Packing, n: int, dtype: Dtype, config: Config, direct: bool) -> None:
    """Compare products of quantised weights, whose last block is not whole, with those of their values."""
    (m, _, k), count = SIZES, 1 if direct else 2
    generator, lead = np.random.default_rng(n), (k, k + 2, m + 3)
    values = generator.standard_normal((count, m, k)).astype(np.float32)
    a, b, c = (
        quantised(np, values, packing),
        random(generator, dtype, count, n, lead[1]),
        poisoned(dtype, count, n, lead[2]),
    )
    made = variant(ShapeKey(m, n, k, dtype, packing=packing), lead, config, False, direct)
    tables = [table(array) for array in (a, b, c)]
    arguments = [int(array[0]) if direct else array.ctypes.data for array in tables]
    made.function[(-(-m // config.rows), count, 1)](*arguments, 0, **made.constants)
    wide_b, got = to_float32(b[..., :k], dtype), to_float32(c, dtype)
    exact = wide_b.astype(np.float64) @ dequantised(np, a, m, k, packing, np.float64).transpose(0, 2, 1)
    error = np.abs(got[..., :m] - exact).max() / np.sqrt((exact**2).mean())
    assert error < 8 * dtype.unit_roundoff + 64 * Dtype.fp32.unit_roundoff, f"{packing} {n} {config}: error {error}"
    assert np.isnan(got[..., m:]).all(), f"{config}: written beside C"


def check_elementwise(features: int, n: int, dtype: Dtype, size: int) -> None:
    """Compare bias, ReLU and scale of `size` requests with NumPy; rows of B and C have padding of their own."""
    generator, pitches = np.random.default_rng(features), (features + 3, features + 5)
    bias, scale = random(generator, dtype, 2, features)
    inputs, outputs = random(generator, dtype, size, n, pitches[0]), poisoned(dtype, size, n, pitches[1])
    strides = inputs.strides[0], outputs.strides[0]
    made = elementwise.variant(features, pitches, strides, dtype)
    blocks = elementwise.grid(ShapeKey(features, n, features, dtype, Op.SCALE), size)
    made.function[blocks](*(array.ctypes.data for array in (bias, scale, inputs, outputs)), **made.constants)
    x = to_float32(inputs[..., :features], dtype)
    expected = np.maximum(x + to_float32(bias, dtype), 0) * to_float32(scale, dtype)
    got, exact = to_float32(outputs, dtype), to_float32(from_float32(expected, dtype), dtype)
    loose = 2 * dtype.unit_roundoff if dtype is Dtype.bf16 else 0.0  # the interpreter truncates to bf16
    assert (np.abs(got[..., :features] - exact) <= loose * np.abs(exact)).all()
    assert np.isnan(got[..., features:]).all(), "written beside C"


def main() -> None:
    """Check all kernels."""
    for m, n, k, dtype, padding in GEMMS:
        for config in configs(ShapeKey(m, n, k, dtype)):
            if config.dot and dtype is Dtype.bf16:
                continue  # the interpreter's tl.dot takes bf16 for integers
            for direct in (False, True):
                check_gemm(m, n, k, dtype, padding, config, direct)
            print(f"{m}x{n}x{k} {dtype.name} {config}")
    for packing in PACKINGS:
        for n, dtype in ((1, Dtype.fp32), (3, Dtype.fp16)):
            for config in configs(ShapeKey(*SIZES, dtype, packing=packing))[1 - n % 2 :: 3]:
                if config.rows > 1:  # a program a row takes long
                    check_quantised(packing, n, dtype, config, direct=n == 1)
            print(f"{packing}, {n} columns, {dtype.name}")
    for dtype in Dtype:
        for features, n, size in ((5, 1, 1), (600, 2, 2), (32, 1, 3)):
            check_elementwise(features, n, dtype, size)
            print(f"bias, ReLU and scale of {features} features, {n} columns, {size} requests {dtype.name}")


if __name__ == "__main__":
    main()
