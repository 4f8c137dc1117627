"""The real `CudaDevice` on the host: over a fake allocator and fake functions of cuBLASLt, the driver and the runtime.

Plans, tables, graphs, copies, feedback and marks are the product's. Stand-ins are: CuPy (`fake_cupy`), nvmath
(`fake_nvmath`), cudart (`fake_graphs`), and the libraries whose functions compiled code calls by address. Only fp32
without attention can be computed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from launchopt.devices.base import DeviceInfo
from launchopt.sampling import Sampling
from support.cuda import fake_nvmath
from support.cuda.fake_cupy import NO_SAMPLING, FakeCupy
from support.cuda.fake_graphs import FakeRuntime
from support.cuda.libraries import copies, imported, stand_ins

INFO = DeviceInfo("cuda", 0, "Fake", 1 << 40, 1 << 20, "memory of Fake", 0)
# Modules in which other names than `cupy` are replaced, too.
MODULES = ("cuda.device", "cuda.graph_cache", "cuda.loop_graphs")


class FakeCuda:
    """A base class that adds to `CudaDevice` the attributes that tests read."""

    cupy: FakeCupy
    runtime: FakeRuntime
    sampling: Sampling

    def open_steps(self, stream: Any, sampling: Sampling, on_host: bool, back: Any) -> Any:
        self.sampling = sampling
        self.cupy.sampling = NO_SAMPLING if stream.vocab is None else sampling
        return super().open_steps(stream, sampling, on_host, back)  # type: ignore[misc]

    @property
    def fed_back(self) -> int:
        """Return the number of launches that only feed back."""
        return self.cupy.fed_back

    def close(self) -> None:
        """Close the device; check that no graph, plan or descriptor is left."""
        super().close()  # type: ignore[misc]
        assert self.runtime.graphs == []
        assert self.runtime.executables == []
        assert fake_nvmath.alive == {}


def _runtime(cupy: FakeCupy) -> FakeRuntime:
    """Return a fake of CUDA's runtime. Its captures hold the launches of fake functions."""
    runtime = FakeRuntime(execute=lambda call: call(), goes_on=lambda: cupy.steps_left > 0)
    end = runtime.cudaStreamEndCapture

    def capturing(begin: Any) -> Any:
        def begin_capture(*arguments: Any) -> Any:
            result = begin(*arguments)
            cupy.capture(runtime.recording)
            return result

        return begin_capture

    def end_capture(stream: Any) -> Any:
        cupy.capture(None)
        return end(stream)

    begins = ("cudaStreamBeginCapture", "cudaStreamBeginCaptureToGraph")
    vars(runtime).update({name: capturing(getattr(runtime, name)) for name in begins}, cudaStreamEndCapture=end_capture)
    return runtime


def _libraries(cupy: FakeCupy) -> Any:
    """Return a replacement of ctypes.CDLL, with fakes of the driver and of cuBLASLt."""
    made = {
        "libcuda.so.1": SimpleNamespace(cuLaunchKernelEx=cupy.kernels.function, cuMemcpyHtoDAsync_v2=cupy.copy),
        "cublasLt": SimpleNamespace(cublasLtMatmul=cupy.matmul.function),
    }
    real = ctypes.CDLL
    return lambda name, *mode, **how: made.get(name) or real(name, *mode, **how)


class FakeRank(FakeCuda):
    """A device beside others, whose plans and graphs are still there when it closes."""

    def close(self) -> None:
        """Close the device."""
        super(FakeCuda, self).close()  # type: ignore[misc]


@contextmanager
def fake_cuda(kind: type[FakeCuda] = FakeCuda) -> Iterator[Any]:
    """Yield a fake device of class `kind` and `CudaDevice`."""
    cupy = FakeCupy()
    with stand_ins(), pytest.MonkeyPatch.context() as patch:
        device, *graphs = (imported(f"launchopt.devices.{name}") for name in MODULES)
        fake_nvmath.alive.clear()
        runtime = _runtime(cupy)
        patch.setitem(sys.modules, "cupy", cupy)
        for module in copies():
            if hasattr(module, "cupy"):
                patch.setattr(module, "cupy", cupy)
        for module in graphs:
            patch.setattr(module, "cudart", runtime)
        patch.setattr(ctypes, "CDLL", _libraries(cupy))
        patch.setattr(device, "cuda_info", lambda index: INFO)
        members = {"cupy": cupy, "runtime": runtime, "sampling": NO_SAMPLING}
        yield type(kind.__name__, (kind, device.CudaDevice), members)()


@contextmanager
def device_of(kind: str) -> Iterator[Any]:
    """Yield a fake CUDA device; None, which stands for the CPU device, for the kind cpu."""
    if kind == "cpu":
        yield None
        return
    with fake_cuda() as device:
        yield device
