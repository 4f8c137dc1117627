"""Measure the floors of one NVIDIA GPU: costs of launches (`launches`), and rates of memory and matrix units.

No other process should use the GPU during the measurement. It takes about ten seconds and, for a short time, 6 GiB of
the GPU's memory.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cupy
import numpy as np

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.cublaslt.kernel_plans import Launch
from launchopt.devices.cublaslt.launch_tables import BASES, PlanColumn
from launchopt.devices.cublaslt.plans import Gemm
from launchopt.devices.cuda.device import CudaDevice
from launchopt.devices.cuda.floors import dispatch
from launchopt.devices.cuda.floors.launches import Kernel, LaunchFloors
from launchopt.devices.cuda.floors.loops import launch_burst
from launchopt.devices.cuda.graph_cache import Graphs
from launchopt.devices.floors import Measured, ceilings_of, host_floors
from launchopt.devices.launch_breakdown import Stage
from launchopt.devices.prepared import Counters
from launchopt.errors import ArenaMemoryError, DeviceError
from launchopt.files import JsonObject
from launchopt.recording.recorder import Recorder
from launchopt.timing import cupti, nvtx_ranges
from launchopt.timing.activity import Activity
from launchopt.types import Table
from launchopt.workloads.gemv import gemv

M, K, COMMANDS = 64, 8192, 8  # the GEMM of gemv_micro, as small as the smallest launches of a decode step
MOST_GRAPHS = 2  # graphs that exist at a time
# A kernel holds the queue, so that work submitted meanwhile waits. It runs for HOLD_FACTOR times the ns that the host
# takes to submit the work, within these limits.
LEAST_HOLD_NS, MOST_HOLD_NS, HOLD_FACTOR = 1_000_000, 100_000_000, 3
HOW = {
    "copy": "cudaMemcpyAsync of 2 GiB on the GPU, read + written, fastest of 10",
    "read": "a kernel that reads 2 GiB, fastest of 10",
    "peak": "cuBLASLt GEMM of random numbers, 8192 x 8192 x 8192, accumulated in fp32, no TF32, fastest of 10",
}


def _row(columns: list[int]) -> Table:
    """Return the columns of a plan, padded with zeros to a row of the plans table."""
    padded: Table = np.zeros(len(PlanColumn), np.int64)
    padded[: len(columns)] = columns
    return padded


class CudaGpu:
    """A `launches.Gpu` on the main CUDA stream of a device.

    hold: plan of a kernel that runs for a given time, so that later launches wait in the queue.
    """

    def __init__(self, device: CudaDevice, hold: Table) -> None:
        self._device, self._hold_plan = device, hold
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._graphs = Graphs(device.stream, MOST_GRAPHS, Counters())
        self._made = 0
        self._event = cupy.cuda.Event()

    def check(self, status: int) -> None:
        """Raise RunError for a status that is not 0."""
        self._device.check(int(status))

    def synchronize(self) -> None:
        """Wait for everything submitted."""
        self._device.synchronize()

    def address(self, name: str) -> int:
        """Return the address of a function of the driver."""
        address = ctypes.cast(getattr(self._driver, name), ctypes.c_void_p).value
        assert address is not None
        return address

    def event(self) -> int:
        """Return the handle of an event with timing."""
        return int(self._event.ptr)

    def graph(self, record: Callable[[], None]) -> int:
        """Return the handle of an executable graph of the work that `record` submits, uploaded to the GPU."""
        self._made += 1
        made = self._graphs.make(self._made, self._made, record)
        self.synchronize()
        return int(made)

    def hold(self, nanoseconds: int) -> None:
        """Launch a kernel that runs for this many ns, so that later launches wait behind it."""
        operands = np.array([0, 0, 0, nanoseconds], np.int64)
        _, status = launch_burst(self._device.base.contexts[0], self._hold_plan, operands, 1)
        self.check(status)

    def _hold_for(self, work: Callable[[], None]) -> int:
        """Submit `work` once, and return the ns for which to hold the queue while it is submitted again."""
        start_ns = time.monotonic_ns()
        work()
        spent_ns = time.monotonic_ns() - start_ns
        self.synchronize()
        return min(max(LEAST_HOLD_NS, HOLD_FACTOR * spent_ns), MOST_HOLD_NS)

    def elapsed_us(self, work: Callable[[], None]) -> float:
        """Return the GPU us of the work that `work` submits. A kernel holds the queue until all of it is submitted."""
        stream, start, end = self._device.stream, cupy.cuda.Event(), cupy.cuda.Event()
        nanoseconds = self._hold_for(work)
        self.hold(nanoseconds)
        start.record(stream)
        work()
        end.record(stream)
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) * 1e3

    def traced(self, work: Callable[[], None], held: bool) -> Activity:
        """Return CUPTI's records of `work`. held: a kernel holds the queue while it is submitted.

        DeviceError: CUPTI is not installed, refuses, or lost records.
        """
        if nvtx_ranges.is_profiled():
            raise DeviceError("CUPTI does not share a process with a profiler: run without one")
        cupti.require()
        from cupti.cupti import cuptiError

        nanoseconds = self._hold_for(work) if held else 0
        self.synchronize()
        try:
            tracer = cupti.tracer()
            tracer.start()
            if held:
                self.hold(2 * nanoseconds)  # submitting takes longer with tracing
            work()
            self.synchronize()
            activity = tracer.stop()
        except cuptiError as error:
            raise DeviceError(f"CUPTI refused: {error}") from None
        if activity.dropped:
            raise DeviceError(f"CUPTI lost {activity.dropped} records")
        return activity

    def close(self) -> None:
        """Destroy the graphs."""
        self._graphs.close()


class CudaFloors:
    """The floors of one GPU. The device holds the operands of a few GEMMs."""

    def __init__(self, device: CudaDevice, recorder: Recorder) -> None:
        self.absent: dict[str, str] = {}
        self._device, self._recorder = device, recorder
        null, hold = (self._own(name) for name in ("null_kernel", "hold"))
        self._gpu = CudaGpu(device, hold)
        shape = ShapeKey(M, 1, K, Dtype.fp32)
        row, _ = device.lt.make(Gemm(shape, 1, (0, 0, 0)))
        operands = np.zeros(4, np.int64)
        operands[:3] = device.base.shapes[0, BASES]
        nothing = Kernel("null", "an empty kernel of four parameters", "cuLaunchKernelEx", null, np.zeros(4, np.int64))
        words = f"GEMM {M}x1x{K} fp32, operands in the L2"
        gemm = Kernel(f"cublaslt_{M}x1x{K}_fp32", words, "cublasLtMatmul", _row(row), operands)
        self._launches = LaunchFloors(self._gpu, device.base.contexts[0], nothing, gemm, self.absent)

        def launch() -> None:
            self._gpu.check(launch_burst(device.base.contexts[0], gemm.plan, gemm.operands, 1)[1])

        self._own_gemm = dispatch.OwnGemm(M, K, device.stream, launch)

    def _own(self, name: str) -> Table:
        """Return the plan of a kernel of null.cu, with one block of one thread."""
        kernels = self._device.kernels
        one = Launch((1, 1, 1), (1, 1, 1), 0, np.zeros(1, np.int64))
        return _row(kernels.row(kernels.function("null", name), one))

    def about(self) -> JsonObject:
        """Return the GPU's description and the versions of its driver and libraries."""
        return {**self._device.info.as_dict(), **self._device.versions()}

    def measure(self, repeats: int) -> Iterator[Measured]:
        """Measure the floors one by one. ArenaMemoryError: the GPU has too little free memory for large operands."""
        try:
            found = {dtype: [self._device.ceilings(dtype) for _ in range(repeats)] for dtype in Dtype}
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise ArenaMemoryError(f"{self._device.info.memory_name}: {error}") from None
        yield from ceilings_of(found, HOW)
        yield from host_floors(repeats)
        self._own_gemm.launch()  # loads the kernel, which a capture cannot
        yield from dispatch.measure(self._own_gemm, repeats, self.absent)
        yield from self._launches.measure(repeats)

    def stages(self) -> dict[str, dict[str, Stage]]:
        """Return the stages of one launch of an empty kernel, and of a GEMM."""
        return self._launches.stages()

    def close(self) -> None:
        """Release the GPU."""
        self._device.synchronize()
        self._gpu.close()
        self._device.close()
        self._recorder.close()


def open_cuda_floors(index: int) -> CudaFloors:
    """Open the GPU that CUDA numbers `index`, to measure its floors. DeviceError: there is no such GPU."""
    device = CudaDevice(index)
    recorder = Recorder(COMMANDS, COMMANDS, Path(tempfile.gettempdir()))
    device.open(gemv(M, 1, K, COMMANDS, Dtype.fp32, COMMANDS), recorder, 0)
    return CudaFloors(device, recorder)
