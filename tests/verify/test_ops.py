"""Float64 references of each op: equal to what fp32 gives but for rounding, and errors no larger than they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.steps.programs import NORM_EPSILON

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.verify import ops as vo
from launchopt.verify.ops import Graded, allowed, exact

COLUMNS, WIDTH = 40, 300
in_each_dtype = pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
Wide = NDArray[np.float32]


def rounded(values: Any, dtype: Dtype) -> Wide:
    """To storage and back."""
    stored: Wide = to_float32(from_float32(np.asarray(values, np.float32), dtype), dtype)
    return stored


def drawn(dtype: Dtype, *shape: int, seed: int = 1) -> Wide:
    return rounded(np.random.default_rng(seed).normal(size=shape), dtype)


def share(got: Wide, expected: Graded) -> float:
    """Of what is allowed, the most that an element takes."""
    limits = allowed(np, expected)
    difference = np.abs(got - expected.value)
    return float((difference[difference > 0] / limits[difference > 0]).max(initial=0.0))


def test_an_exact_value_has_no_error() -> None:
    graded = exact(np, np.ones((2, 3)))
    assert not graded.variance.any()
    assert graded.part(1).value.shape == graded.part(1).variance.shape == (3,)


@in_each_dtype
def test_one_op_on_exact_inputs_is_one_rounding_off_at_most(dtype: Dtype) -> None:
    """In half precision that is all that is allowed; in fp32 the roundings of the computation come on top."""
    b, vector = drawn(dtype, COLUMNS, WIDTH), drawn(dtype, 1, WIDTH, seed=2)
    given, wide = exact(np, b.astype(np.float64)), vector.astype(np.float64)
    other = drawn(dtype, COLUMNS, WIDTH, seed=3)
    gate, up = b[:, : WIDTH // 2], b[:, WIDTH // 2 :]
    cases = {
        "bias": (rounded(b + vector, dtype), vo.bias(given, wide, dtype)),
        "relu": (np.maximum(b, 0), vo.relu(np, given)),
        "scale": (rounded(b * vector, dtype), vo.scale(given, wide, dtype)),
        "add": (rounded(b + other, dtype), vo.add(exact(np, other.astype(np.float64)), given, dtype)),
        "norm": (
            rounded(b / np.sqrt((b**2).mean(axis=1, keepdims=True) + np.float32(NORM_EPSILON)) * vector, dtype),
            vo.norm(np, given, wide, dtype, NORM_EPSILON),
        ),
        "silu_mul": (rounded(gate / (1 + np.exp(-gate)) * up, dtype), vo.silu_mul(np, given, dtype)),
    }
    found = {name: share(*case) for name, case in cases.items()}
    assert all(value <= (0.17 if dtype is Dtype.fp32 else 1.0) for value in found.values()), found
    assert found["relu"] == 0


@in_each_dtype
@pytest.mark.parametrize("k", [16, 300, 4096])
def test_a_product_is_allowed_its_roundings(dtype: Dtype, k: int) -> None:
    b, weight = drawn(dtype, 8, k), drawn(dtype, 50, k - 5, seed=2)
    expected = vo.gemm(exact(np, b.astype(np.float64)), weight.astype(np.float64), dtype)
    one_by_one = np.zeros((8, 50), np.float32)  # the worst order there is
    for i in range(k - 5):
        one_by_one += b[:, i : i + 1] * weight[:, i]
    for got in (b[:, : k - 5] @ weight.T, one_by_one):
        assert 0 < share(rounded(got, dtype), expected) < (0.5 if dtype is Dtype.fp32 else 1.0)


@pytest.mark.parametrize("dtype", [Dtype.fp16, Dtype.bf16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("parts", [2, 8])
def test_a_product_whose_parts_are_added_in_half_precision_is_wrong(dtype: Dtype, parts: int) -> None:
    b, weight = drawn(dtype, 8, 1024), drawn(dtype, 50, 1024, seed=2)
    expected = vo.gemm(exact(np, b.astype(np.float64)), weight.astype(np.float64), dtype)
    total = np.zeros((8, 50), np.float32)
    for columns in np.split(np.arange(1024), parts):
        total = rounded(total + rounded(b[:, columns] @ weight[:, columns].T, dtype), dtype)
    assert share(total, expected) > 2


@in_each_dtype
def test_errors_of_inputs_are_carried_on(dtype: Dtype) -> None:
    """With inputs perturbed by a known amount, the error of each op is as large as its variance predicts."""
    generator = np.random.default_rng(7)
    b = generator.normal(size=(COLUMNS, WIDTH))
    sigma = 1e-2  # much more than any rounding
    given = Graded(b, np.full_like(b, sigma**2))
    off = Graded(b + generator.normal(size=b.shape) * sigma, given.variance)
    vector, weight = generator.uniform(0.5, 1.5, (1, WIDTH)), generator.uniform(-0.1, 0.1, (90, WIDTH))
    positions = np.arange(COLUMNS)
    cases = {
        "gemm": lambda x: vo.gemm(x, weight, dtype),
        "bias": lambda x: vo.bias(x, vector, dtype),
        "scale": lambda x: vo.scale(x, vector, dtype),
        "add": lambda x: vo.add(x, exact(np, b), dtype),
        "norm": lambda x: vo.norm(np, x, vector, dtype, NORM_EPSILON),
        "silu_mul": lambda x: vo.silu_mul(np, x, dtype),
        "rope": lambda x: vo.rope(np, x, positions, 4, 50, 1e4, dtype),
    }
    for name, op in cases.items():
        expected = op(given)
        true = np.sqrt(((op(off).value - expected.value) ** 2).mean())
        reported = math.sqrt(expected.variance.mean())
        assert 0.9 < reported / true < (1.1 if dtype is not Dtype.bf16 else 1.3), name


@pytest.mark.parametrize(
    ("gate", "up"), [(0.0, 0.0), (1e-4, -2e-4), (-1.278464542761074, 3.0)], ids=["zero", "near zero", "minimum of silu"]
)
def test_silu_mul_is_allowed_what_errors_of_both_inputs_cause_where_neither_matters_alone(
    gate: float, up: float
) -> None:
    """The true standard deviation of an error that comes from stored inputs is 0.4 times what is assumed."""
    sigma = 1e-2
    given = Graded(np.repeat([[gate, up]], 200_000, axis=0), np.full((200_000, 2), sigma**2))
    off = Graded(given.value + np.random.default_rng(3).normal(size=(200_000, 2)) * 0.4 * sigma, given.variance)
    expected = vo.silu_mul(np, given, Dtype.fp32)
    taken = share(vo.silu_mul(np, off, Dtype.fp32).value, expected)
    assert 0.2 < taken < 0.8


@in_each_dtype
def test_what_is_stored_before_a_product_may_underflow(dtype: Dtype) -> None:
    """PyTorch stores silu(gate), and may store a normed value, and multiplies that. Near 0 a half loses its digits."""
    size = np.geomspace(1e-9, 1.0, 100_000)
    b, factor = rounded(np.stack([-size, 9.0 - size], axis=1), dtype), drawn(dtype, 1, 2) * 8
    gate, up = b[:, :1].astype(np.float64), b[:, 1:].astype(np.float64)
    given, epsilon = exact(np, b.astype(np.float64)), 1e-3
    silu = rounded(rounded(gate / (1 + np.exp(-gate)), dtype) * up, dtype)
    normed = rounded(
        rounded(b / np.sqrt((b.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + epsilon), dtype) * factor, dtype
    )
    assert share(silu, vo.silu_mul(np, given, dtype)) <= 1.0
    assert share(normed, vo.norm(np, given, factor.astype(np.float64), dtype, epsilon)) <= 1.0


@in_each_dtype
def test_errors_of_attention_are_carried_on(dtype: Dtype) -> None:
    """Also where keys and values have much in common, which softmax does not notice."""
    generator = np.random.default_rng(8)
    heads, groups, dim, positions, columns = 6, 2, 32, 50, 9
    sigma = 2e-2

    def graded(*shape: int, common: float = 0.0) -> tuple[Graded, Graded]:
        value = generator.normal(size=shape) + common * generator.normal(size=(1, *shape[1:]))
        variance = np.full(shape, sigma**2)
        return Graded(value, variance), Graded(value + generator.normal(size=shape) * sigma, variance)

    seen = np.arange(positions) <= (positions - columns + np.arange(columns))[:, None]
    for common in (0.0, 3.0):
        (q, other_q), (keys, other_keys), (values, other_values) = (
            graded(columns, heads, dim),
            graded(positions, groups, dim, common=common),
            graded(positions, groups, dim, common=common),
        )

        def attended(q: Graded, keys: Graded, values: Graded) -> Graded:
            scores = vo.scores(np, q, keys, dtype)
            masked = Graded(*(np.where(seen, x, 0.0) for x in (scores.value, scores.variance, scores.differing)))
            return vo.weighed(np, vo.softmax(np, masked, seen, dtype), values, seen, dtype)

        expected = attended(q, keys, values)
        true = np.sqrt(((attended(other_q, other_keys, other_values).value - expected.value) ** 2).mean())
        rounding = 1 if dtype is Dtype.bf16 else 0  # 2**-8 of what values have in common is no longer little
        assert 0.8 < math.sqrt(expected.variance.mean()) / true < 2 + rounding


@in_each_dtype
def test_attention_is_that_of_plain_loops(dtype: Dtype) -> None:
    heads, groups, dim, positions = 4, 2, 8, 11
    q, keys, values = (
        drawn(dtype, *shape, seed=i) for i, shape in enumerate([(3, heads, dim), *[(11, groups, dim)] * 2])
    )
    wide = [exact(np, x.astype(np.float64)) for x in (q, keys, values)]
    seen = np.arange(positions) <= np.array([8, 9, 10])[:, None]
    scores = vo.scores(np, wide[0], wide[1], dtype)
    weights = vo.softmax(np, scores, seen, dtype)
    result = vo.weighed(np, weights, wide[2], seen, dtype)
    for column in range(3):
        for head in range(heads):
            count = 9 + column
            own = [float(q[column, head] @ keys[t, head // 2]) / math.sqrt(dim) for t in range(count)]
            powers = np.exp(np.array(own) - max(own))
            assert scores.value[head, column, :count] == pytest.approx(own, abs=1e-5)
            assert weights.value[head, column] == pytest.approx(
                [*powers / powers.sum(), *[0.0] * (11 - count)], abs=1e-5
            )
            expected = (powers / powers.sum()) @ values[:count, head // 2]
            assert result.value[column, head * dim : (head + 1) * dim] == pytest.approx(expected, abs=1e-5)


def test_rotation_is_by_position_and_leaves_values_alone() -> None:
    heads, dim = 3, 6
    b = np.random.default_rng(3).normal(size=(4, (heads + 2) * dim))
    positions = np.array([0, 1, 7, 4000])
    turned = vo.rope(np, exact(np, b), positions, heads, dim, 1e4, Dtype.fp32).value
    assert np.array_equal(turned[0], b[0])
    assert np.array_equal(turned[:, heads * dim :], b[:, heads * dim :])
    for column, position in enumerate(positions):
        for head in range(heads):
            own, result = (x[column, head * dim : (head + 1) * dim] for x in (b, turned))
            for i in range(dim // 2):
                number = complex(own[i], own[i + dim // 2]) * np.exp(1j * position * 1e4 ** (-2 * i / dim))
                assert (result[i], result[i + dim // 2]) == pytest.approx((number.real, number.imag))


def test_what_falls_below_the_smallest_number_is_allowed_to() -> None:
    """fp16 has none below 6e-8."""
    tiny = exact(np, np.full((1, 1), 2e-8))
    assert share(np.zeros((1, 1), np.float32), vo.scale(tiny, np.ones((1, 1)), Dtype.fp16)) < 1
    assert share(np.zeros((1, 1), np.float32), vo.scale(tiny, np.ones((1, 1)), Dtype.bf16)) > 1
