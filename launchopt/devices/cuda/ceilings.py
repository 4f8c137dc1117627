"""Measure the peak rates of this GPU. A run with a higher rate is wrong, or reads from a cache.

Copy is the rate of cudaMemcpyAsync within the GPU, bytes read plus bytes written. Read is the rate of a kernel that
only reads; it is higher than the copy rate. Peak is the rate of one large square cuBLASLt GEMM of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np

from launchopt.command import Dtype, ShapeKey
from launchopt.cupy_types import CudaStream
from launchopt.devices.arenas import Arenas
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import ContextWord, PlanKind
from launchopt.devices.cublaslt.plans import Gemm, Plans
from launchopt.streams.operands import ArenaKey
from launchopt.timing.activity import Bandwidths, Ceilings
from launchopt.types import Table

BUFFER_BYTES = 2 << 30  # most bytes to copy and to read
SIDE = 8192  # m, n and k of the GEMM
REPEATS = 10  # timings; the fastest counts
READ_SOURCE = r"""
extern "C" __global__ void read_all(const int4* data, long long count, int* never) {
    int4 sum = make_int4(0, 0, 0, 0);
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int4 value = __ldcs(data + i);
        sum.x ^= value.x; sum.y ^= value.y; sum.z ^= value.z; sum.w ^= value.w;
    }
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345677) *never = sum.x;
}
"""


def measure_ceilings(context: Table, dtype: Dtype, stream: CudaStream, check: Callable[[int], None]) -> Ceilings:
    """Measure the three peak rates in about 50 ms.

    context: arguments that launches on `stream` share, [ContextWord]. check: raises for a status that is not OK.
    """
    shape, key = ShapeKey(SIDE, SIDE, SIDE, dtype), ArenaKey("a", SIDE, SIDE, dtype)
    matrices = Arenas(cupy, {key: 3})
    matrices.fill(seed=1)
    plans = Plans(dtype)
    row, _ = plans.make(Gemm(shape, 1, (0, 0, 0)))
    plan, context = np.array([*row, PlanKind.MATMUL], np.int64), context.copy()
    context[ContextWord.HANDLE] = plans.handle
    a, b, c = (matrices.arrays[key].data.ptr + slot * key.slot_bytes for slot in range(3))
    cupy.cuda.Device().synchronize()
    found = measure(lambda: check(lt.launch(context, plan, a, b, c, 0)), shape.flops, stream)
    plans.close()
    return found


def measure(gemm: Callable[[], None], gemm_flops: int, stream: CudaStream) -> Ceilings:
    """Measure the three rates in about 50 ms. gemm: submits one large GEMM of `gemm_flops` to `stream`."""
    rates = measure_memory(stream)
    with stream:
        peak_s = fastest(gemm, stream)
    return Ceilings(rates.copy_gb_per_s, rates.read_gb_per_s, gemm_flops / peak_s * 1e-12)


def measure_memory(stream: CudaStream) -> Bandwidths:
    """Measure the copy and read rates in about 20 ms."""
    free, _ = cupy.cuda.runtime.memGetInfo()
    size = min(BUFFER_BYTES, free // 4) & ~0xFFF
    with stream:
        copy_s, read_s = _memory(size, stream)
    cupy.get_default_memory_pool().free_all_blocks()
    return Bandwidths(2 * size / copy_s * 1e-9, size / read_s * 1e-9)


def _memory(size: int, stream: CudaStream) -> tuple[float, float]:
    """Return the seconds to copy `size` bytes, and to read them."""
    source = cupy.full(size // 4, 0x5A5A5A5A, np.uint32)
    target = cupy.empty_like(source)
    never = cupy.zeros(1, np.int32)
    kernel = cupy.RawKernel(READ_SOURCE, "read_all")
    blocks = cupy.cuda.Device().attributes["MultiProcessorCount"] * 8
    copy_s = fastest(lambda: target.data.copy_from_device_async(source.data, size, stream), stream)
    read_s = fastest(lambda: kernel((blocks,), (512,), (source, np.int64(size // 16), never)), stream)
    return copy_s, read_s


def fastest(work: Callable[[], object], stream: CudaStream) -> float:
    """Return the time of the fastest of REPEATS runs of `work`, in seconds, measured by CUDA events."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    best = float("inf")
    for _ in range(REPEATS):
        start.record(stream)
        work()
        end.record(stream)
        end.synchronize()
        best = min(best, cupy.cuda.get_elapsed_time(start, end) * 1e-3)
    return best
