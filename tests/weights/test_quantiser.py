"""The quantiser: how far a weight may be from what it stands for, and what its scales are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from launchopt.weights.codes import decoded
from launchopt.weights.packing import BLOCK, LARGEST_CODE, Packing, Scales, WeightFormat
from launchopt.weights.quantiser import dequantised, quantised, scales_in

PACKINGS = [
    Packing(each, scales) for each in (WeightFormat.fp8, WeightFormat.int8, WeightFormat.int4) for scales in Scales
]


def random_weights(seed: int, count: int, rows: int, cols: int) -> NDArray[np.float32]:
    """Weights whose rows and blocks differ in size."""
    generator = np.random.default_rng(seed)
    sizes = 2.0 ** generator.integers(-6, 6, (count, rows, cols // 32, 1))
    values = generator.uniform(-1, 1, (count, rows, cols // 32, 32)) * sizes
    return values.reshape(count, rows, cols).astype(np.float32)


def spread_scales(packed: NDArray[np.uint8], rows: int, cols: int, packing: Packing) -> NDArray[np.float64]:
    """The scale of each value, found without the code that is tested."""
    scales = scales_in(packed, rows, cols, packing).astype(np.float64)
    row, col = np.arange(rows), np.arange(cols)
    if packing.scales is Scales.tensor:
        row, col = row * 0, col * 0
    elif packing.scales is Scales.channel:
        col = col * 0
    else:
        row, col = row // packing.block_rows, col // BLOCK
    spread: NDArray[np.float64] = scales[:, row][:, :, col]
    return spread


def half_steps(values: NDArray[np.float64], packing: Packing) -> NDArray[np.float64]:
    """Half the distance between two codes around each value, in units of the scale."""
    if packing.format is not WeightFormat.fp8:
        return np.full(values.shape, 0.5)
    sizes: NDArray[np.float64] = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(values), 2.0**-6))) - 4)
    return sizes


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@given(seed=st.integers(0, 1 << 30), rows=st.integers(1, 200), blocks=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_a_weight_is_within_half_a_step_of_what_it_stands_for(
    packing: Packing, seed: int, rows: int, blocks: int
) -> None:
    cols = blocks * BLOCK
    weights = random_weights(seed, 2, rows, cols)
    packed = quantised(np, weights, packing)
    got = dequantised(np, packed, rows, cols, packing, np.float64)
    scale = spread_scales(packed, rows, cols, packing)
    exact = weights.astype(np.float64)
    # A value may be a rounding of the scale beyond the largest code, and a value / scale is rounded to fp32.
    allowed = half_steps(exact / scale, packing) * (1 + 2.0**-10) * scale
    assert (np.abs(got - exact) <= allowed).all()


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_the_largest_value_of_a_group_has_the_largest_code(packing: Packing) -> None:
    weights = random_weights(3, 2, 130, 256)
    packed = quantised(np, weights, packing)
    scale = spread_scales(packed, 130, 256, packing)
    codes = decoded(np, packed[:, : packing.codes_bytes(130, 256)], packing.format).reshape(weights.shape)
    ratio = np.abs(weights) / scale
    assert ratio.max() == pytest.approx(LARGEST_CODE[packing.format], rel=2**-10)
    assert np.abs(codes).max() == LARGEST_CODE[packing.format]


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_groups_of_zeros_have_the_scale_one(packing: Packing) -> None:
    packed = quantised(np, np.zeros((1, 3, 256), np.float32), packing)
    assert (scales_in(packed, 3, 256, packing) == 1).all()
    assert (dequantised(np, packed, 3, 256, packing) == 0).all()


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_tiny_weights_do_not_lose_their_scale(packing: Packing) -> None:
    weights = np.full((1, 2, 256), 2.0**-30, np.float32)
    packed = quantised(np, weights, packing)
    assert (scales_in(packed, 2, 256, packing) > 0).all()
    assert np.isfinite(dequantised(np, packed, 2, 256, packing)).all()


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_weights_are_the_same_in_parts_and_at_once(packing: Packing, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = random_weights(5, 2, 300, 256)
    whole = quantised(np, weights, packing)
    monkeypatch.setattr("launchopt.weights.quantiser.PART_ELEMENTS", 256 * 7)
    np.testing.assert_array_equal(quantised(np, weights, packing), whole)


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_the_rest_of_a_slot_is_zero(packing: Packing) -> None:
    size = packing.end(5, 128)
    slot = np.full((2, size + 40), 0xFF, np.uint8)
    quantised(np, random_weights(1, 2, 5, 128), packing, slot)
    assert (slot[:, size:] == 0).all()
    codes, scales = packing.codes_bytes(5, 128), packing.scales_at(5, 128)
    assert (slot[:, codes:scales] == 0).all()


def test_fp32_rounds_once_what_fp64_has_exactly() -> None:
    packing = Packing(WeightFormat.fp8, Scales.channel)
    packed = quantised(np, random_weights(2, 1, 9, 128), packing)
    exact = dequantised(np, packed, 9, 128, packing, np.float64)
    np.testing.assert_array_equal(dequantised(np, packed, 9, 128, packing), exact.astype(np.float32))


def test_slots_without_all_scales_are_refused() -> None:
    packing = Packing(WeightFormat.fp8, Scales.channel)
    packed = quantised(np, random_weights(2, 1, 9, 128), packing)
    with pytest.raises(ValueError, match="9x128 weights of fp8 per channel have 9x1 scales: 1315 bytes are too few"):
        dequantised(np, packed[:, :-1], 9, 128, packing)
