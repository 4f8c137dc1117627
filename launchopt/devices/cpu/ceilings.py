"""Ceilings of a CPU: rates of main memory and of BLAS, measured with the threads of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from launchopt.timing.activity import Bandwidths, Ceilings

LEAST_BYTES = 64 << 20  # smallest array that is copied
SQUARES = ((1024, 3), (512, 24))  # side of a square GEMM, and its runs; a busy machine disturbs short runs less


def measure(cache_bytes: int, threads: int) -> Ceilings:
    """Return the copy and read rates beyond the cache, GB/s, and the rate of a square fp32 GEMM, TFLOP/s."""
    rates = memory(cache_bytes, threads)
    peak = max(_square_flops_per_s(side, times) for side, times in SQUARES)
    return Ceilings(rates.copy_gb_per_s, rates.read_gb_per_s, peak * 1e-12)


def memory(cache_bytes: int, threads: int) -> Bandwidths:
    """Return the copy and read rates beyond the cache, GB/s."""
    size = max(LEAST_BYTES, 2 * cache_bytes)
    whole = np.ones(size // 4, np.float32)
    source, target = np.split(whole, 2)  # halves of one array: to map more memory would take longer than the copies
    targets, sources = np.array_split(target, threads), np.array_split(source, threads)
    with ThreadPoolExecutor(threads) as pool:  # NumPy releases the GIL while it copies
        copy_s = _fastest(lambda: list(pool.map(np.copyto, targets, sources)))
    rows, vector = whole.reshape(-1, 8192), np.ones(8192, np.float32)
    read_s = _fastest(lambda: rows @ vector)
    return Bandwidths(2 * source.nbytes / copy_s * 1e-9, whole.nbytes / read_s * 1e-9)


def _square_flops_per_s(side: int, times: int) -> float:
    square, product = np.ones((side, side), np.float32), np.empty((side, side), np.float32)
    seconds = _fastest(lambda: np.matmul(square, square, out=product), times)
    return 2 * side**3 / seconds


def _fastest(work: Callable[[], object], times: int = 3) -> float:
    """Return the seconds of the fastest of a few runs: a ceiling is the best rate, not the mean rate."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
