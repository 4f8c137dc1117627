"""Types of CuPy's objects, as far as launchopt uses them: CuPy itself has none, and is not imported here."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class CudaGraph(Protocol):
    """A captured CUDA graph, as CuPy has it."""

    def launch(self, stream: CudaStream) -> None:
        """Submit the graph to a CUDA stream."""

    def upload(self, stream: CudaStream) -> None:
        """Copy the graph to the GPU, so that its first launch is not slower than the others."""


class CudaStream(Protocol):
    """A CUDA stream, as CuPy has it. Inside a `with` block it is CuPy's current stream."""

    ptr: int  # cudaStream_t

    def synchronize(self) -> None:
        """Wait for everything submitted."""

    def begin_capture(self, mode: int | None = None) -> None:
        """Record work submitted from now on instead of running it."""

    def end_capture(self) -> CudaGraph:
        """Return CuPy's graph of the recorded work."""

    def wait_event(self, event: object) -> None:
        """Let work submitted from now on wait for a CuPy event."""

    def __enter__(self) -> CudaStream: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class DriverFunction(Protocol):
    """A function of the CUDA driver, as CuPy has it."""

    ptr: int  # CUfunction


class KernelFunction(Protocol):
    """A kernel, as CuPy has it."""

    kernel: DriverFunction
    max_dynamic_shared_size_bytes: int

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[object, ...]) -> None:
        """Launch the kernel on CuPy's current stream."""


class KernelModule(Protocol):
    """A module of kernels, as CuPy has it."""

    def get_function(self, name: str) -> KernelFunction:
        """Return the kernel of this name."""
