"""kernels/quantise_inputs.cu on the host: codes and scales of inputs equal those of the quantiser, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cuda_on_host import built, can_build, launch

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.cuda.op_kernels import quantising_geometry
from launchopt.weights.codes import decoded
from launchopt.weights.packing import Packing, Scales, WeightFormat
from launchopt.weights.quantiser import quantised

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

CALL = (
    "struct Given { char *a, *b, *c; i64 request; Args p; }; const Given& given = *(const Given*)arguments; "
    "quantise_inputs(given.a, given.b, given.c, given.request, given.p)"
)
CHANNEL, TENSOR = Packing(WeightFormat.fp8, Scales.channel), Packing(WeightFormat.fp8, Scales.tensor)
each_packing = pytest.mark.parametrize("packing", [CHANNEL, TENSOR], ids=str)


def aligned(shape: tuple[int, ...], kind: Any) -> Any:
    """Return an array of zeros that begins at a multiple of 16 bytes."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    memory = np.zeros(size + 16, np.uint8)
    return memory[-memory.ctypes.data % 16 :][:size].view(kind).reshape(shape)


def quantised_by_kernel(values: Any, packing: Packing, dtype: Dtype, apart: int = 0) -> Any:
    """Return the slot that the kernel makes of columns [n, k], in fp32. apart: elements between two columns."""
    n, k = values.shape
    stored = from_float32(values, dtype)
    columns = aligned((n, k + apart), stored.dtype)
    columns[:, :k] = stored
    slot = aligned((packing.end(n, k) + 16,), np.uint8)
    made = quantising_geometry(ShapeKey(16, n, k, dtype, packing=packing), (k, k + apart, 16))
    words = np.array([0, columns.ctypes.data, slot.ctypes.data, 0, *made.args], np.int64)
    library = built("quantise_inputs", CALL, races=True, DTYPE=int(dtype), **packing.macros)
    launch(library, made.grid, made.block[0], 0, words.ctypes.data, seed=n)
    assert not slot[packing.end(n, k) :].any(), "written behind the scales"
    return slot[: packing.end(n, k)]


@each_packing
@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("n", "k"), [(1, 16), (3, 48), (2, 1040), (5, 256)])
def test_codes_and_scales_equal_those_of_the_quantiser(n: int, k: int, dtype: Dtype, packing: Packing) -> None:
    generator = np.random.default_rng([n, k])
    values = (generator.uniform(-1, 1, (n, k)) * 2.0 ** generator.integers(-9, 3, (n, 1))).astype(np.float32)
    stored = to_float32(from_float32(values, dtype), dtype)
    expected = quantised(np, stored[None], packing)[0]
    np.testing.assert_array_equal(quantised_by_kernel(values, packing, dtype), expected)


@each_packing
def test_rows_that_registers_do_not_hold_are_read_again(packing: Packing) -> None:
    values = np.random.default_rng(4).normal(size=(1, 5 * 8 * 1024 + 16)).astype(np.float32)
    stored = to_float32(from_float32(values, Dtype.fp16), Dtype.fp16)
    expected = quantised(np, stored[None], packing)[0]
    np.testing.assert_array_equal(quantised_by_kernel(values, packing, Dtype.fp16), expected)


def test_columns_may_be_apart_if_each_has_a_scale() -> None:
    values = np.random.default_rng(5).uniform(-1, 1, (3, 64)).astype(np.float32)
    expected = quantised(np, to_float32(from_float32(values, Dtype.bf16), Dtype.bf16)[None], CHANNEL)[0]
    np.testing.assert_array_equal(quantised_by_kernel(values, CHANNEL, Dtype.bf16, 16), expected)
    for packing, apart in ((TENSOR, 80), (Packing(WeightFormat.fp8, Scales.block), 64)):
        with pytest.raises(ValueError, match="no quantised inputs"):
            quantising_geometry(ShapeKey(16, 3, 64, Dtype.bf16, packing=packing), (64, apart, 16))


def test_every_code_and_every_tie_between_two_codes_is_rounded_as_the_quantiser_rounds_it() -> None:
    """The largest value is 448, so that the scale is 1 and values are rounded as they are."""
    codes = np.sort(decoded(np, np.arange(127, dtype=np.uint8), WeightFormat.fp8))
    ties = (codes[1:] + codes[:-1]) / 2
    sizes = np.concatenate([codes, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(448))])
    values = np.concatenate([sizes, -sizes, np.zeros(-2 * len(sizes) % 16, np.float32)])[None].astype(np.float32)
    expected = quantised(np, values[None], TENSOR)[0]
    assert expected[TENSOR.scales_at(*values.shape) :].view(np.float32)[0] == 1
    np.testing.assert_array_equal(quantised_by_kernel(values, TENSOR, Dtype.fp32), expected)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-42])
def test_zeros_have_the_scale_1_and_tiny_values_the_smallest_normal_scale(size: float) -> None:
    values = np.full((1, 16), size, np.float32)
    expected = quantised(np, values[None], CHANNEL)[0]
    np.testing.assert_array_equal(quantised_by_kernel(values, CHANNEL, Dtype.fp32), expected)
