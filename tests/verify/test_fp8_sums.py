"""The bound of fp8 products, against an emulation of tensor cores that keep 14 bits of a sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from launchopt.command import Dtype, ShapeKey
from launchopt.verify.products import FP8_CHUNK, Tolerance
from launchopt.weights.packing import Packing, Scales, WeightFormat
from launchopt.weights.quantiser import rounded

FP8 = Packing(WeightFormat.fp8, Scales.channel)
TOGETHER, KEPT = 32, 13  # products that are added at once; bits that are kept below the leading one of the largest
ROWS = 2000


def cut(values: NDArray[np.float64], largest: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values without the bits that are too small beside `largest`."""
    unit = np.ldexp(1.0, np.frexp(np.maximum(largest, 1e-30))[1] - 1 - KEPT)
    kept: NDArray[np.float64] = np.trunc(values / unit) * unit
    return kept


def largest_share(k: int, chunk: int) -> float:
    """Return the largest error of emulated products, as a share of the bound. chunk: products of a sum."""
    generator = np.random.default_rng(k)
    weights, inputs = (
        rounded(np, generator.uniform(-1, 1, (1, rows, k)).astype(np.float32), FP8, np.float64)[0] for rows in (ROWS, 1)
    )
    # In units of codes, as tensor cores add them.
    units = np.abs(weights).max(axis=1) * np.abs(inputs).max() / 448**2
    products = weights * inputs / units[:, None]
    total, part = np.zeros(ROWS), np.zeros(ROWS)
    for at in range(0, k, TOGETHER):
        own = products[:, at : at + TOGETHER]
        largest = np.maximum(np.abs(own).max(axis=1), np.abs(part))
        part = cut(part, largest) + cut(own, largest[:, None]).sum(axis=1)
        part = cut(part, np.abs(part))
        if (at + TOGETHER) % chunk == 0:
            total, part = total + part, np.zeros(ROWS)
    errors = np.abs(total + part - products.sum(axis=1)) * units
    return float(errors.max() / Tolerance.of(ShapeKey(16, 1, k, Dtype.bf16, packing=FP8), True).computing)


@pytest.mark.parametrize("k", [128, 512, 4096, 8192])
def test_sums_of_128_products_use_a_small_part_of_the_bound(k: int) -> None:
    assert 0.02 < largest_share(k, FP8_CHUNK) < 0.2


def test_sums_of_8192_products_without_fp32_exceed_the_bound() -> None:
    assert largest_share(8192, 8192) > 1


def test_the_bound_of_other_products_is_that_of_fp32() -> None:
    shape = ShapeKey(16, 1, 4096, Dtype.bf16, packing=FP8)
    assert Tolerance.of(shape).computing < 3e-3 * Tolerance.of(shape, True).computing
    assert Tolerance.of(shape, True).computing == pytest.approx(8 * 2**-13 * math.sqrt(128) * 64 / 3, rel=1e-2)
