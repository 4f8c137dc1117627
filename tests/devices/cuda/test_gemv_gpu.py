"""Our own GEMV on a GPU against float64, and a chain of launches that may start before the previous one has ended."""

from __future__ import annotations

import numpy as np
import pytest
from support.steps.placed import Kernels, Placed, placed

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.arenas import to_float32
from launchopt.devices.cuda.op_kernels import Three, gemv_geometry

pytestmark = pytest.mark.gpu

GEMV = Kernels("gemv")
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
either_way = pytest.mark.parametrize("pdl", [0, 1])
# m, k, padding, offset: first rows of whole 16-byte vectors, then rows that are not
SIZES = [(1, 8, 0, 0), (33, 4096, 0, 0), (1000, 512, 64, 8), (17, 2056, 0, 0), (40, 1027, 5, 0), (20, 20_004, 4, 0)]
MISFITS = [(1, 1, 0, 0), (33, 7, 0, 0), (40, 1023, 0, 0), (9, 512, 1, 0), (9, 512, 0, 3), (64, 20_001, 0, 0)]


def check(a: Placed, b: Placed, c: Placed, warps: int, dtype: Dtype, pdl: int) -> None:
    """Compare each output of one launch; check that memory between the outputs does not change."""
    batch, n, m = c.view.shape
    k = b.view.shape[2]
    operands = [a, b, c]
    rows: Three = (a.row_elements, b.row_elements, c.row_elements)
    strides: Three = (a.stride_bytes, b.stride_bytes, c.stride_bytes)
    launch = gemv_geometry(ShapeKey(m, n, k, dtype), batch, rows, strides, warps)
    *_, found = GEMV.launch(launch, operands, 0, dtype, N=n, WARPS_PER_ROW=warps, PDL=pdl)
    wide_a, wide_b = (to_float32(array, dtype).astype(np.float64) for array in (a.stack(batch), b.view))
    exact = wide_b @ wide_a.transpose(0, 2, 1)
    largest = np.abs(wide_b) @ np.abs(wide_a).transpose(0, 2, 1)
    assert (found[c.between].view(np.uint8) == 0xFF).all(), "written beside C"
    c.flat[:] = found
    got = to_float32(c.view, dtype).astype(np.float64)
    # The bound covers the rounding of the result and of the fp32 sums, which have few terms per lane.
    bound = dtype.unit_roundoff * np.abs(exact) + 64 * Dtype.fp32.unit_roundoff * largest + 1e-7
    assert (np.abs(got - exact) <= bound).all()


@in_each_dtype
@either_way
@pytest.mark.parametrize(("m", "k", "padding", "offset"), SIZES + MISFITS)
@pytest.mark.parametrize(("n", "warps"), [(1, 1), (1, 8), (2, 2), (3, 4), (8, 1), (8, 8)])
def test_products(dtype: Dtype, pdl: int, m: int, k: int, padding: int, offset: int, n: int, warps: int) -> None:
    generator, batch = np.random.default_rng(k), 3
    a = placed(dtype, batch if n < 3 else 1, (m, k), padding, offset).fill(generator, dtype)
    b = placed(dtype, batch, (n, k), padding, offset).fill(generator, dtype)
    check(a, b, placed(dtype, batch, (n, m), padding, offset), warps, dtype, pdl)


def test_a_chain_that_starts_early_computes_the_same() -> None:
    """Each launch reads the outputs of the previous one, and overwrites the inputs of the previous one."""
    import cupy

    from launchopt.devices.cublaslt import launch as lt
    from launchopt.devices.cublaslt.kernel_plans import KernelPlans, Launch, launch_address
    from launchopt.devices.cublaslt.launch_tables import ContextWord

    size, length, warps = 2048, 200, 2
    generator = np.random.default_rng(1)
    weights = cupy.asarray(generator.uniform(-1, 1, (8, size, size)).astype(np.float32) * np.float32(np.sqrt(3 / size)))
    start = generator.uniform(-1, 1, size).astype(np.float32)
    plans, stream = KernelPlans(Dtype.fp32), cupy.cuda.Stream(non_blocking=True)
    context = np.zeros(len(ContextWord), np.int64)
    context[ContextWord.LAUNCH_FUNCTION], context[ContextWord.STREAM] = launch_address(), stream.ptr
    launch = gemv_geometry(ShapeKey(size, 1, size, Dtype.fp32), 1, (size, size, size), (0, 0, 0), warps)
    found = []
    for early in (False, True):
        function = plans.function("gemv", "gemv", N=1, WARPS_PER_ROW=warps, PDL=int(early))
        words = Launch(launch.grid, launch.block, launch.shared_bytes, launch.args)
        plan = np.array(plans.row(function, words, early), np.int64)
        x = [cupy.asarray(start), cupy.zeros(size, np.float32)]
        cupy.cuda.Device().synchronize()
        for i in range(length):
            operands = (weights[i % 8].data.ptr, x[i % 2].data.ptr, x[1 - i % 2].data.ptr)
            assert lt.launch(context, plan, *operands, 0) == lt.OK
        stream.synchronize()
        found.append(x[length % 2].get())
    assert np.abs(found[0]).max() > 0.01
    assert (found[0] == found[1]).all()
