"""Where codes and scales of a weight are, and which weights cannot be quantised."""

import pytest

from launchopt.errors import ConfigError
from launchopt.weights.packing import PLAIN, Packing, Scales, WeightFormat, packing_of

FP8, INT8, INT4 = WeightFormat.fp8, WeightFormat.int8, WeightFormat.int4


@pytest.mark.parametrize(
    ("packing", "shape", "size", "slot"),
    [
        (Packing(FP8, Scales.channel), (300, 1), 300 * 256 + 1200, 300 * 256 + 1200),
        (Packing(FP8, Scales.tensor), (1, 1), 300 * 256 + 4, 300 * 256 + 4),
        (Packing(FP8, Scales.block), (3, 2), 300 * 256 + 24, 300 * 256 + 24),
        (Packing(INT8, Scales.block), (3, 2), 300 * 256 + 24, 300 * 256 + 24),
        (Packing(INT4, Scales.block), (300, 2), 150 * 256 + 1200, 38400 + 1200),
        (Packing(INT4, Scales.channel), (300, 1), 150 * 256 + 600, 38400 + 600),
    ],
    ids=str,
)
def test_scales_lie_behind_the_codes(packing: Packing, shape: tuple[int, int], size: int, slot: int) -> None:
    assert packing.scales_shape(300, 256) == shape
    assert packing.bytes(300, 256, 4) == size
    assert packing.slot_bytes(300, 256, 4) == slot


def test_scales_begin_at_a_multiple_of_256_bytes() -> None:
    packing = Packing(INT4, Scales.channel)
    assert packing.codes_bytes(3, 32) == 48
    assert packing.scales_at(3, 32) == 256
    assert packing.slot_bytes(3, 32, 4) == 256 + 6


@pytest.mark.parametrize("weights", [FP8, INT8, INT4])
def test_unset_scales_are_those_that_engines_use(weights: WeightFormat) -> None:
    assert packing_of(weights, None) == Packing(weights, Scales.block if weights is INT4 else Scales.channel)


def test_without_a_format_weights_are_not_quantised() -> None:
    assert packing_of(WeightFormat.none, None) == PLAIN
    assert not PLAIN
    assert str(PLAIN) == "none"
    assert str(Packing(FP8, Scales.block)) == "fp8 per block"


def test_scales_without_a_format_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^workload.scales=block: .*set workload.weights to fp8, int8, int4$"):
        packing_of(WeightFormat.none, Scales.block)


@pytest.mark.parametrize(
    ("packing", "cols", "message"),
    [
        (
            Packing(FP8, Scales.block),
            192,
            "workload.scales=block: k=192 is no multiple of a block: use a multiple of 128",
        ),
        (Packing(INT4, Scales.channel), 48, "workload.weights=int4: k=48 is no multiple of 32, the values in 16 bytes"),
        (Packing(INT8, Scales.tensor), 24, "workload.weights=int8: k=24 is no multiple of 16, the values in 16 bytes"),
    ],
    ids=str,
)
def test_rows_that_do_not_fit_are_refused_in_one_line(packing: Packing, cols: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        packing.check(cols)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_rows_that_fit_are_taken() -> None:
    PLAIN.check(7)
    Packing(FP8, Scales.block).check(256)
    Packing(INT4, Scales.tensor).check(32)
