"""Both GEMVs of quantised weights on the host: products agree with float64 for every format, scale and dtype."""

from __future__ import annotations

from itertools import product, starmap

import numpy as np
import pytest
from support.cuda_on_host import built, can_build, launch
from support.quantised import PACKINGS

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.cuda.op_kernels import GEMV_WARPS, QUANTISED_GEMV, TENSOR_GEMV, gemv_geometry
from launchopt.devices.cuda.op_plans import gemv_of, tensor_warps, warps_per_row
from launchopt.verify.products import Tolerance
from launchopt.weights.packing import Packing, Scales, WeightFormat
from launchopt.weights.quantiser import dequantised, quantised

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

CALL = (
    "struct Given {{ char *a, *b, *c; i64 request; Args p; }}; const Given& given = *(const Given*)arguments; "
    "{}(given.a, given.b, given.c, given.request, given.p)"
)
WARPS_MACRO = {QUANTISED_GEMV: "WARPS_PER_ROW", TENSOR_GEMV: "WARPS"}
COMMANDS = 2


def is_wide(packing: Packing) -> bool:
    """Return whether 16 warps may share rows of a weight."""
    return tensor_warps(ShapeKey(4096, 1, 4096, Dtype.bf16, packing=packing), 1) == 16


# Every packing, each with another dtype, number of columns, warps a row, and launch.
CASES = [
    (packing, dtype, n, warps, pdl)
    for packing, (dtype, n, warps, pdl) in zip(
        PACKINGS * 2,
        [
            *((Dtype.bf16, 1, 1, 0), (Dtype.fp16, 2, 2, 1), (Dtype.fp32, 1, 8, 0), (Dtype.bf16, 3, 4, 1)),
            *((Dtype.fp32, 2, 1, 0), (Dtype.fp16, 1, 2, 0), (Dtype.bf16, 8, 1, 0), (Dtype.fp16, 1, 8, 1)),
            *((Dtype.fp32, 1, 2, 0), (Dtype.fp16, 1, 4, 0), (Dtype.bf16, 1, 8, 0), (Dtype.bf16, 4, 1, 0)),
            *((Dtype.fp16, 1, 1, 0), (Dtype.bf16, 1, 2, 0), (Dtype.fp16, 2, 8, 0), (Dtype.fp32, 3, 2, 1)),
            *((Dtype.bf16, 1, 4, 1), (Dtype.bf16, 2, 2, 0)),
        ],
        strict=True,
    )
]


def kernel_products(
    packing: Packing,
    dtype: Dtype,
    n: int,
    warps: int,
    pdl: int,
    m: int,
    k: int,
    name: str = QUANTISED_GEMV,
    largest: float = 1,
) -> None:
    """Compute two commands with a kernel, and compare their outputs with float64. largest: magnitude of the inputs."""
    generator = np.random.default_rng([m, k, n])
    shape = ShapeKey(m, n, k, dtype, packing=packing)
    slots = np.zeros((COMMANDS, packing.end(m, k) + 256), np.uint8)
    a = slots[:, -slots.ctypes.data % 16 :][:, : packing.end(m, k)]
    quantised(np, generator.uniform(-1, 1, (COMMANDS, m, k)).astype(np.float32), packing, a)
    stride = slots.strides[0] // 16 * 16
    packed = np.zeros(COMMANDS * stride + 16, np.uint8)
    first = -packed.ctypes.data % 16
    for i in range(COMMANDS):
        packed[first + i * stride :][: a.shape[1]] = a[i]
    b = from_float32(generator.uniform(-largest, largest, (COMMANDS, n, k + 16)).astype(np.float32), dtype)
    c = from_float32(np.full((COMMANDS, n, m + 3), np.nan, np.float32), dtype)
    made = gemv_geometry(shape, COMMANDS, (k, k + 16, m + 3), (stride, b.strides[0], c.strides[0]), warps, name)
    words = np.array([packed.ctypes.data + first, b.ctypes.data, c.ctypes.data, 0, *made.args], np.int64)
    macros = {"DTYPE": int(dtype), "N": n, "PDL": pdl, **packing.macros, WARPS_MACRO[name]: warps}
    launch(built(name, CALL.format(name), **macros), made.grid, made.block[0], 0, words.ctypes.data, seed=n)
    weights = dequantised(np, a, m, k, packing, np.float64)
    expected = to_float32(b[:, :, :k], dtype).astype(np.float64) @ weights.transpose(0, 2, 1)
    got = to_float32(c, dtype)
    bound = Tolerance.of(shape)
    assert (np.abs(got[:, :, :m] - expected) <= bound.storing * np.abs(expected) + bound.computing * largest).all()
    assert np.isnan(got[:, :, m:]).all(), "written beside the rows"


@pytest.mark.parametrize(("packing", "dtype", "n", "warps", "pdl"), CASES, ids=str)
def test_products_agree_with_float64(packing: Packing, dtype: Dtype, n: int, warps: int, pdl: int) -> None:
    for m, k in ((130, 256), (3, 1024), (9, 128)):
        kernel_products(packing, dtype, n, warps, pdl, m, k)


@pytest.mark.parametrize(("packing", "dtype", "n", "_", "pdl"), CASES, ids=str)
def test_products_of_tensor_cores_agree_with_float64(packing: Packing, dtype: Dtype, n: int, _: int, pdl: int) -> None:
    halves = Dtype.fp16 if dtype is Dtype.fp32 else dtype
    for m, k in ((130, 256), (3, 1024), (33, 2176)):
        kernel_products(packing, halves, n, GEMV_WARPS, pdl, m, k, TENSOR_GEMV)


@pytest.mark.parametrize("pdl", [0, 1])
@pytest.mark.parametrize("packing", [each for each in PACKINGS if is_wide(each)], ids=str)
def test_products_of_16_warps_agree_with_float64(packing: Packing, pdl: int) -> None:
    """Their rounds have 2,048 inputs: some warps have none, or the last one ends within a round."""
    for n, dtype in ((1, Dtype.bf16), (2, Dtype.fp16)):
        for m, k in ((17, 128), (33, 2176), (16, 4160)):
            kernel_products(packing, dtype, n, 16, pdl, m, k, TENSOR_GEMV)


@pytest.mark.parametrize("largest", [1e30, 1e-10, 1e-36])
def test_tensor_cores_take_bf16_inputs_that_fp16_cannot_hold(largest: float) -> None:
    for packing, n in zip(PACKINGS, [1, 2, 8] * 3, strict=True):
        kernel_products(packing, Dtype.bf16, n, GEMV_WARPS, 0, 17, 1152, TENSOR_GEMV, largest)


@pytest.mark.parametrize(
    ("packing", "k"),
    [
        (Packing(WeightFormat.fp8, Scales.channel), 16 * 37),  # vectors that fill no round of a warp
        (Packing(WeightFormat.int4, Scales.tensor), 32 * 37),
        (Packing(WeightFormat.fp8, Scales.block), 128 * 33),  # more vectors than are loaded ahead
        (Packing(WeightFormat.int4, Scales.block), 128 * 67),
    ],
    ids=str,
)
def test_rows_of_any_length_are_read_to_their_end(packing: Packing, k: int) -> None:
    kernel_products(packing, Dtype.bf16, 1, 1, 0, 5, k)


@pytest.mark.parametrize(("weight_format", "step"), [(WeightFormat.fp8, 64), (WeightFormat.int4, 128)], ids=str)
def test_tensor_cores_read_rows_to_their_end(weight_format: WeightFormat, step: int) -> None:
    """A round has 2 steps, and the warps of a block have 16 steps at a time."""
    packing = Packing(weight_format, Scales.channel if step == 64 else Scales.tensor)
    for steps in (1, 3, 17, 36):
        kernel_products(packing, Dtype.bf16, 2, GEMV_WARPS, 0, 17, steps * step, TENSOR_GEMV)


@pytest.mark.parametrize(("name", "dtype"), [(QUANTISED_GEMV, Dtype.fp32), (TENSOR_GEMV, Dtype.bf16)])
@pytest.mark.parametrize("weight_format", [WeightFormat.fp8, WeightFormat.int8, WeightFormat.int4])
def test_every_code_is_unpacked_exactly(weight_format: WeightFormat, name: str, dtype: Dtype) -> None:
    """Row i consists of the byte i. With the scale 1 and inputs that pick one place, the output is the value there."""
    packing = Packing(weight_format, Scales.tensor)
    k = 4 * 128 // packing.bits
    slot = np.zeros(packing.end(256, k) + 16, np.uint8)
    slot = slot[-slot.ctypes.data % 16 :]
    slot[: packing.codes_bytes(256, k)] = np.repeat(np.arange(256), 64)
    one = np.float16(1) if packing.scale_bytes == 2 else np.float32(1)
    slot[packing.scales_at(256, k) :][: packing.scale_bytes] = np.frombuffer(one.tobytes(), np.uint8)
    values = dequantised(np, slot[None], 256, k, packing)[0]
    made = gemv_geometry(ShapeKey(256, 1, k, dtype, packing=packing), 1, (k, k, 256), (0, 0, 0), GEMV_WARPS, name)
    macros = {"DTYPE": int(dtype), "N": 1, "PDL": 0, **packing.macros, WARPS_MACRO[name]: GEMV_WARPS}
    library = built(name, CALL.format(name), **macros)
    for place in (0, 1, 2, 3, k - 1):
        b, c = (from_float32(np.zeros((1, size), np.float32), dtype) for size in (k, 256))
        b[0, place] = from_float32(np.ones(1, np.float32), dtype)[0]
        words = np.array([slot.ctypes.data, b.ctypes.data, c.ctypes.data, 0, *made.args], np.int64)
        launch(library, made.grid, made.block[0], 0, words.ctypes.data)
        is_number = np.isfinite(values).all(axis=1)
        np.testing.assert_array_equal(to_float32(c, dtype)[0, is_number], values[is_number, place])


def test_fewer_bytes_a_row_need_fewer_warps() -> None:
    """A warp has at most 512 bytes of a row in one round."""
    found = {}
    for packing, dtype in product([Packing(), PACKINGS[0], PACKINGS[-1]], [Dtype.bf16]):
        found[packing] = warps_per_row(ShapeKey(128, 1, 2048, dtype, packing=packing), 1)
    assert list(found.values()) == [8, 4, 2]


def test_tensor_cores_multiply_weights_of_many_rows_on_a_gpu_that_can() -> None:
    packing = Packing(WeightFormat.fp8, Scales.channel)
    many, few = (ShapeKey(m, 1, 4096, Dtype.bf16, packing=packing) for m in (4096, 64))
    odd, wide = (ShapeKey(4096, 1, k, dtype, packing=packing) for k, dtype in ((4112, Dtype.bf16), (4096, Dtype.fp32)))
    assert gemv_of(many, 1, 90) == gemv_of(few, 64, 90) == TENSOR_GEMV
    assert {gemv_of(many, 1, 80), gemv_of(few, 1, 90), gemv_of(odd, 1, 90), gemv_of(wide, 1, 90)} == {QUANTISED_GEMV}
    assert gemv_of(ShapeKey(4096, 1, 4096, Dtype.bf16), 1, 90) == "gemv"


def test_16_warps_share_rows_if_blocks_are_few_and_have_enough_registers() -> None:
    def warps(m: int, n: int = 1, k: int = 4096, packing: Packing = PACKINGS[0], size: int = 1) -> int:
        return tensor_warps(ShapeKey(m, n, k, Dtype.bf16, packing=packing), size)

    assert warps(4096) == warps(2 * 132 * 16, 2) == warps(2112, k=1088, size=2) == 16
    assert warps(2 * 132 * 16 + 1) == warps(4096, 3) == warps(4096, k=1024) == warps(2112, size=3) == 8
    formats, scales = (WeightFormat.fp8, WeightFormat.int8), (Scales.channel, Scales.tensor)
    assert [packing for packing in PACKINGS if is_wide(packing)] == list(starmap(Packing, product(formats, scales)))
