"""Turn errors of CUDA's libraries into the one line that a run ends with.

`GpuErrors` replaces exceptions of CuPy, nvmath and PyTorch, and the RunError of a compiled call, if the GPU has no
memory left or its context is lost. It raises `ArenaMemoryError` for lack of memory while a job is prepared, and
`GpuError` otherwise. Other exceptions pass. This module imports none of the libraries at once, since a library that is
not loaded raised nothing.

    with GpuErrors() as gpu:
        prepare()
        gpu.where = "in batched, repeat 0"
        run()
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from launchopt.errors import ArenaMemoryError, GpuError, Interrupted, LaunchoptError, RunError, one_line

OUT_OF_MEMORY = 2  # value in cudaError_t and in CUresult, which number errors alike
CUBLAS_ALLOC_FAILED = 3  # value in cublasStatus_t
# Errors after which every call fails until the process ends: ECC and NVLink errors, faults of a kernel, the watchdog.
LOST = frozenset((214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721))

_MOST_CHARACTERS = 200  # most characters of a library's message
_MEMORY_ADVICE = (
    "free GPU memory of other processes (see nvidia-smi), or make the workload or batching.max_batch smaller"
)
_LOST_ADVICE = (
    "the GPU's context is lost, and the run with it: run it again; if the error comes back,"
    " compute-sanitizer --target-processes all names the kernel, and nvidia-smi -q lists hardware errors"
)


class StatusError(RunError):
    """A call from compiled code failed. code: CUDA's number of the error; None: it has none."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code

    @classmethod
    def of_cublas(cls, status: int, name: str) -> StatusError:
        """Return the error for a status of cublasLtMatmul."""
        return cls(f"cublasLtMatmul failed: {name}", OUT_OF_MEMORY if status == CUBLAS_ALLOC_FAILED else None)


def failure_of(status: int) -> RunError:
    """Return the error for a status of a compiled launch that is not OK."""
    from launchopt.devices.cublaslt.launch import KERNEL_STATUS
    from launchopt.devices.peers.nccl import FAILED
    from launchopt.devices.resident.ring import GAVE_UP_LINE, GONE

    if status == GONE:
        return RunError(GAVE_UP_LINE)
    if status % KERNEL_STATUS == 0:
        code = status // KERNEL_STATUS
        if code >= FAILED:
            return RunError(f"NCCL's all-reduce failed with ncclResult_t {code - FAILED}")
        return StatusError(f"cuLaunchKernelEx failed with CUresult {code}", code)
    from nvmath.bindings import cublasLt

    return StatusError.of_cublas(status, cublasLt.get_status_name(status))


@dataclass(frozen=True, slots=True)
class Fault:
    """CUDA's number of an error, and its message."""

    code: int
    text: str

    def message(self, where: str) -> str:
        """Return the error and advice in one line. where: the place in the run, such as "in MODE, repeat 3"."""
        advice = _LOST_ADVICE if self.code in LOST else _MEMORY_ADVICE
        return f"CUDA error {self.code} ({one_line(self.text, _MOST_CHARACTERS).rstrip('.')}) {where}: {advice}"


def no_memory(error: object, where: str) -> ArenaMemoryError:
    """Return the error of an allocation that failed before the first run."""
    return ArenaMemoryError(Fault(OUT_OF_MEMORY, str(error)).message(where))


def fault_of(error: BaseException) -> Fault | None:
    """Return the fault behind an error if it is lack of memory or a lost context, else None."""
    if isinstance(error, Interrupted):
        return None
    code = _code_of(error)
    if code == OUT_OF_MEMORY:
        return Fault(code, str(error))
    own = Fault(code, str(error)) if code in LOST and code is not None else None
    return _lost_context() or own  # `error` may have no number, or a shorter message


def is_lost(error: BaseException) -> bool:
    """Return whether the GPU's context is lost. CUDA then refuses every call, also calls that free memory."""
    fault = fault_of(error)
    return fault is not None and fault.code in LOST


def _code_of(error: BaseException) -> int | None:
    """Return CUDA's number of an error, or None if the error has none."""
    cupy, torch, cublas = (sys.modules.get(name) for name in ("cupy", "torch", "nvmath.bindings.cublasLt"))
    if isinstance(error, StatusError):
        return error.code
    if cupy and isinstance(error, cupy.cuda.memory.OutOfMemoryError):
        return OUT_OF_MEMORY
    if cupy and isinstance(error, cupy.cuda.runtime.CUDARuntimeError | cupy.cuda.driver.CUDADriverError):
        return int(error.status)
    if torch and isinstance(error, torch.OutOfMemoryError):
        return OUT_OF_MEMORY
    if cublas and isinstance(error, cublas.cuBLASLtError):
        return OUT_OF_MEMORY if getattr(error, "status", None) == CUBLAS_ALLOC_FAILED else None
    return None


def _lost_context() -> Fault | None:
    """Return the fault for which the GPU refuses every call; None if it accepts calls, or if no GPU is used."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return None
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except RuntimeError as error:
        code = _code_of(error)
        return Fault(code, str(error)) if code in LOST and code is not None else None
    return None


class GpuErrors:
    """A context manager that turns errors of a GPU into one line. where: see `Fault.message`; set before each run."""

    def __init__(self) -> None:
        self.where: str | None = None  # place in the run; None: the job is being prepared

    def __enter__(self) -> GpuErrors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and (fault := fault_of(error)):
            raise self._message_of(fault, getattr(error, "__notes__", ())) from None

    def _message_of(self, fault: Fault, notes: Sequence[str]) -> LaunchoptError:
        if self.where is not None:
            return GpuError(fault.message(self.where))
        text = fault.message(", ".join(notes) or "while the job was made ready")
        return GpuError(text) if fault.code in LOST else ArenaMemoryError(text)
