"""Codes of fp8, int8 and int4: the right value for each code, and the nearest code for each value."""

import numpy as np
import pytest

from launchopt.weights.codes import decoded, encode_e4m3, encoded
from launchopt.weights.packing import LARGEST_CODE, WeightFormat

FORMATS = [WeightFormat.fp8, WeightFormat.int8, WeightFormat.int4]
ALL = np.arange(256, dtype=np.uint8)


def test_every_code_of_e4m3_has_the_value_that_pytorch_gives_it() -> None:
    torch = pytest.importorskip("torch")
    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(decoded(np, ALL, WeightFormat.fp8), expected)


def test_floats_become_the_codes_that_pytorch_gives_them() -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(1)
    spread = generator.standard_normal(100_000) * 2.0 ** generator.integers(-14, 8, 100_000)
    values = np.clip(spread, -448, 448).astype(np.float32)
    expected = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(encode_e4m3(np, values), expected)


def test_values_between_two_codes_of_e4m3_go_to_the_even_one() -> None:
    values = decoded(np, ALL[:0x7F], WeightFormat.fp8)
    halves = (values[:-1] + values[1:]) / 2
    codes = encode_e4m3(np, halves.astype(np.float32))
    np.testing.assert_array_equal(codes, (ALL[:0x7E] + 1) // 2 * 2)
    np.testing.assert_array_equal(encode_e4m3(np, -halves.astype(np.float32)), codes | 0x80)


def test_e4m3_saturates_and_keeps_nan() -> None:
    values = np.array([448, 464, 1e9, np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    assert encode_e4m3(np, values).tolist() == [0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x00, 0x80]


@pytest.mark.parametrize("weight_format", FORMATS)
def test_codes_survive_the_way_to_values_and_back(weight_format: WeightFormat) -> None:
    largest = LARGEST_CODE[weight_format]
    values = decoded(np, ALL, weight_format)
    kept = values[np.abs(values) <= largest]
    kept = kept[: len(kept) // 2 * 2]
    np.testing.assert_array_equal(decoded(np, encoded(np, kept, weight_format), weight_format), kept)


@pytest.mark.parametrize("weight_format", [WeightFormat.int8, WeightFormat.int4])
def test_integers_saturate_symmetrically(weight_format: WeightFormat) -> None:
    largest = LARGEST_CODE[weight_format]
    values = np.array([1000, -1000, 0.5, 1.5], np.float32)
    assert decoded(np, encoded(np, values, weight_format), weight_format).tolist() == [largest, -largest, 0, 2]


def test_the_first_code_of_int4_is_in_the_lower_half_of_its_byte() -> None:
    codes = encoded(np, np.array([[-7, 7, 0, 1]], np.float32), WeightFormat.int4)
    assert codes.tolist() == [[1 | 15 << 4, 8 | 9 << 4]]
