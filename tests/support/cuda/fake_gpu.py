"""A stand-in for a GPU and its driver, for `floors.launches`: kernels run one after another, KERNEL_NS each.

Its driver functions are C functions made from Python, which record the times of their calls. So compiled loops can be
timed, and traced, without a GPU.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from launchopt.command import Dtype
from launchopt.devices.cublaslt.kernel_plans import KernelPlans, Launch
from launchopt.devices.cublaslt.launch_tables import ContextWord, PlanColumn
from launchopt.devices.cuda.floors.launches import Kernel, LaunchFloors
from launchopt.errors import DeviceError, RunError
from launchopt.timing.activity import Activity

KERNEL_NS, DELAY_NS, COMPLETION_NS = 500, 3000, 20_000
STREAM = 0x5EA1
EVENT = 0xE7


def function_of(python: Callable[..., int], arguments: int) -> Any:
    """Return a C function with `arguments` int64 parameters."""
    return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * arguments)(python)


def address_of(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


class FakeGpu:
    """A fake of `launches.Gpu`. refuse: driver function that returns an error. cupti: why CUPTI is missing."""

    def __init__(self, refuse: str = "", cupti: str = "") -> None:
        self._refuse, self._cupti = refuse, cupti
        self._graphs: list[int] = []
        self._capturing = self._held = False
        self._busy_until_ns = 0
        self.launches = 0
        self.kept: Any = None
        self._forget()
        self._functions = {
            "cuLaunchKernelEx": function_of(lambda *words: self._launch("cuLaunchKernelEx"), 4),
            "cublasLtMatmul": function_of(lambda *words: self._launch("cublasLtMatmul"), 16),
            "cuStreamSynchronize": function_of(self._synchronize, 1),
            "cuGraphLaunch": function_of(self._replay, 2),
            "cuEventRecord": function_of(lambda event, stream: self._status("cuEventRecord", event == EVENT), 2),
        }

    def _forget(self) -> None:
        self._calls: list[tuple[int, ...]] = []
        self._kernels: list[tuple[int, ...]] = []

    def _status(self, name: str, is_right: bool = True) -> int:
        return 1 if name == self._refuse or not is_right else 0

    def _launch(self, name: str) -> int:
        called_ns = time.monotonic_ns()
        self.launches += 1
        if self._capturing:
            self._graphs[-1] += 1
        else:
            self._run(1)
        number = len(self._calls)
        self._calls.append((0, number, called_ns, time.monotonic_ns()))
        return self._status(name)

    def _run(self, count: int) -> None:
        earliest_ns = 0 if self._held else time.monotonic_ns() + DELAY_NS
        for _ in range(count):
            start_ns = max(earliest_ns, self._busy_until_ns)
            self._busy_until_ns = start_ns + KERNEL_NS
            self._kernels.append((0, 0, len(self._calls), start_ns, self._busy_until_ns, 7, 0))

    def _synchronize(self, stream: int) -> int:
        while time.monotonic_ns() < self._busy_until_ns + COMPLETION_NS:
            pass
        return self._status("cuStreamSynchronize", stream == STREAM)

    def _replay(self, graph: int, stream: int) -> int:
        self._run(self._graphs[graph])
        return self._status("cuGraphLaunch", stream == STREAM)

    # The methods of the protocol `launches.Gpu`.

    def check(self, status: int) -> None:
        if status:
            raise RunError(f"status {status}")

    def synchronize(self) -> None:
        self._busy_until_ns = time.monotonic_ns()

    def address(self, name: str) -> int:
        return address_of(self._functions[name])

    def event(self) -> int:
        return EVENT

    def graph(self, record: Callable[[], None]) -> int:
        self._graphs.append(0)
        self._capturing = True
        record()
        self._capturing = False
        return len(self._graphs) - 1

    def elapsed_us(self, work: Callable[[], None]) -> float:
        self.synchronize()
        start_ns = self._busy_until_ns
        self._held = True
        work()
        self._held = False
        return (self._busy_until_ns - start_ns) / 1e3

    def traced(self, work: Callable[[], None], held: bool) -> Activity:
        if self._cupti:
            raise DeviceError(self._cupti)
        self.synchronize()
        self._forget()
        self._held = held
        if held:
            self._run(1)  # a kernel holds the queue, and is traced, too
        work()
        self._held = False
        return Activity(np.array(self._kernels), np.array(self._calls), ["kernel"], ["call"], 0, 0)


def fake_floors(gpu: FakeGpu) -> tuple[LaunchFloors, dict[str, str]]:
    """Return the floors of an empty kernel and of a GEMM on this GPU, and the measurements that are absent."""
    context = np.zeros(len(ContextWord), np.int64)
    context[ContextWord.FUNCTION], context[ContextWord.LAUNCH_FUNCTION] = (
        gpu.address("cublasLtMatmul"),
        gpu.address("cuLaunchKernelEx"),
    )
    context[ContextWord.STREAM] = STREAM
    plans = KernelPlans(Dtype.fp32)
    handle = SimpleNamespace(kernel=SimpleNamespace(ptr=77), max_dynamic_shared_size_bytes=0)
    row = plans.row(handle, Launch((1, 1, 1), (1, 1, 1), 0, np.zeros(1, np.int64)))
    operands, absent = np.zeros(4, np.int64), dict[str, str]()
    null = Kernel("null", "an empty kernel", "cuLaunchKernelEx", np.array(row, np.int64), operands)
    gemm = Kernel("gemm", "a GEMM", "cublasLtMatmul", np.zeros(len(PlanColumn), np.int64), operands)
    gpu.kept = plans  # the rows point into it
    return LaunchFloors(gpu, context, null, gemm, absent), absent
