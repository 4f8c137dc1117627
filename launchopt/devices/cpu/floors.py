"""Floors of a CPU as the device: rates of main memory and BLAS, and the time of one BLAS call.

A call computes before it returns. So there is no launch whose stages could be timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from launchopt.command import Dtype
from launchopt.devices.cpu.device import CpuDevice
from launchopt.devices.floors import CALLS, Measured, ceilings_of, host_floors
from launchopt.devices.launch_breakdown import Stage

M, K = 8, 16  # shape of the matmul that is timed
HOW = {
    "copy": "NumPy copies beyond the last cache, read + written, fastest of 3",
    "read": "NumPy fp32 matrix times vector beyond the last cache, fastest of 3",
    "peak": "NumPy GEMM, 1024 x 1024 x 1024, fastest of 3",
}


class CpuFloors:
    """Measures the floors, with the BLAS threads that a run has by default."""

    def __init__(self) -> None:
        self._device = CpuDevice()
        self.absent: dict[str, str] = {}

    def about(self) -> dict[str, object]:
        """Return facts about the processor, NumPy and its BLAS."""
        return {**self._device.info.as_dict(), **self._device.versions()}

    def measure(self, repeats: int) -> Iterator[Measured]:
        """Yield each floor once it is measured."""
        fp32 = Dtype.fp32
        yield from ceilings_of({fp32: [self._device.ceilings(fp32) for _ in range(repeats)]}, HOW)
        calls = [_blas_call_us() for _ in range(repeats + 1)][1:]
        how = f"NumPy matmul of {M}x1x{K} fp32 into a given output, {CALLS} times: a launch call of this device"
        yield Measured("blas_call_host_us", "us", calls, how)
        yield from host_floors(repeats)

    def stages(self) -> dict[str, dict[str, Stage]]:
        """Return nothing: this device has no launches with stages."""
        return {}

    def close(self) -> None:
        """Restore the number of threads of BLAS."""
        self._device.close()


def _blas_call_us() -> float:
    a, b, c = np.ones((1, K, M), np.float32), np.ones((1, 1, K), np.float32), np.empty((1, 1, M), np.float32)
    start_ns = time.perf_counter_ns()
    for _ in range(CALLS):
        np.matmul(b, a, out=c)
    return (time.perf_counter_ns() - start_ns) / CALLS / 1e3
