"""Bounds of sums over GPUs: right sums lie within them in any order of additions, and a lost part does not."""

from __future__ import annotations

import numpy as np
import pytest

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.types import Array
from launchopt.verify.ops import allowed, exact
from launchopt.verify.sums import reduced

DTYPES = pytest.mark.parametrize("dtype", [Dtype.fp16, Dtype.bf16], ids=lambda dtype: dtype.name)


def rounded(values: Array, dtype: Dtype) -> Array:
    return to_float32(from_float32(values.astype(np.float32), dtype), dtype)


def drawn(parts: int, dtype: Dtype) -> list[Array]:
    given = np.random.default_rng(parts).normal(size=(parts, 40, 500))
    given[1, :, ::2] -= given[0, :, ::2]  # where parts cancel, partial sums are larger than the result
    return [rounded(each, dtype) for each in given]


def added_in_any_order(parts: list[Array], dtype: Dtype, seed: int) -> Array:
    """Add pairs of what is there, chosen at random, with a rounding each, until one is left."""
    generator, left = np.random.default_rng(seed), [*parts]
    while len(left) > 1:
        one = left.pop(int(generator.integers(len(left))))
        other = left.pop(int(generator.integers(len(left))))
        left.append(rounded(one + other, dtype))
    return left[0]


@DTYPES
@pytest.mark.parametrize("parts", [2, 3, 4, 8])
def test_each_order_of_rounded_additions_is_within_the_bound(parts: int, dtype: Dtype) -> None:
    given = drawn(parts, dtype)
    graded = [exact(np, each.astype(np.float64)) for each in given]
    expected = reduced(np, graded, dtype, rounds_sums=True)
    of_once = allowed(np, reduced(np, graded, dtype, rounds_sums=False))
    errors = [np.abs(added_in_any_order(given, dtype, seed) - expected.value) for seed in range(10)]
    assert max(float((error / allowed(np, expected)).max()) for error in errors) <= 1
    assert (parts > 2) == any((error > of_once).any() for error in errors), "one rounding more than of a result"


@DTYPES
@pytest.mark.parametrize("parts", [4, 8])
def test_a_lost_part_and_one_that_is_added_twice_are_found(parts: int, dtype: Dtype) -> None:
    given = drawn(parts, dtype)
    expected = reduced(np, [exact(np, each.astype(np.float64)) for each in given], dtype, rounds_sums=True)
    for wrong in (given[1:], [*given, given[0]]):
        error = np.abs(added_in_any_order(wrong, dtype, 1) - expected.value)
        assert (error > allowed(np, expected)).mean() > 0.5
