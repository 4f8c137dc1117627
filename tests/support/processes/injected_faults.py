"""Faults of a GPU, injected into the consumer of a run. `heard` gets each order that the consumer receives.

In: FAULT in the environment, "WHEN KIND" or "WHEN KIND MODE", which affects only the job of that mode. WHEN: job,
before the device is opened; prepare, in the mode's `prepare`; run, at a submit in the middle of repeat REPEAT. KIND: a
function below. Functions for the fake GPU raise the errors of CuPy; the others make a real GPU fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from launchopt.modes import mode_class
from launchopt.modes.base import Mode, Prepared
from runner.worker.messages import Order

FAULT = "FAULT"
REPEAT = 2
SUBMIT = 3  # number of the submit in that repeat
LEFT_BYTES = 256 << 20  # memory that `take_most_memory` leaves

SITECUSTOMIZE = """
from multiprocessing import current_process
from multiprocessing.connection import Connection

def recv(self, *, plain=Connection.recv):
    message = plain(self)
    if current_process().name == "launchopt-consumer" and isinstance(message, tuple):
        from support.processes import injected_faults
        injected_faults.heard(message)
    return message

Connection.recv = recv
"""

_modes: list[str] = []
_prepared: dict[str, Prepared] = {}
_held: list[Any] = []


def heard(order: Order) -> None:
    """Inject the fault if this order is the time for it."""
    when, kind, *only = os.environ[FAULT].split()
    fault = globals()[kind]
    if order.job is not None:
        _modes[:] = [arm.mode for arm in order.job.arms]
        if only and only != _modes:
            return
        if when == "job":
            fault()
        if when == "prepare":
            _before(mode_class(_modes[0]), "prepare", 1, fault)
        if when == "run":
            for mode in set(_modes):
                _keep_prepared(mode_class(mode))
    elif when == "run" and order.kind == "run" and order.repeat == REPEAT and (not only or only == _modes):
        prepared = _prepared[_modes[order.arm]]
        prepared.compiled_loop = False
        for name in ("submit", "submit_each", "submit_steps"):
            _before(prepared, name, SUBMIT, fault)


def _keep_prepared(kind: type[Mode]) -> None:
    """Make modes of this class append each `Prepared` to `_prepared`."""
    plain: Any = kind.prepare

    def prepare(self: Mode, *arguments: Any) -> Prepared:
        _prepared[self.name] = plain(self, *arguments)
        return _prepared[self.name]

    kind.prepare = prepare


def _before(owner: Any, name: str, call: int, fault: Callable[[], None]) -> None:
    """Make `fault` happen before call number `call` of a method of `owner`, which Python then calls."""
    plain, calls = getattr(owner, name), [0]

    def wrapped(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            fault()
        return plain(*arguments)

    setattr(owner, name, wrapped)


# Faults of the fake GPU: CuPy's errors.


def says_no_memory() -> None:
    """Raise the error of CuPy's pool without memory."""
    import cupy

    raise cupy.cuda.memory.OutOfMemoryError(1 << 50, 1 << 30)


def says_context_lost() -> None:
    """Raise the error of a lost context. Later calls fail, too."""
    import cupy

    _forbid_closing()
    raise cupy.cuda.runtime.CUDARuntimeError(700)


def says_failed_of_lost_context() -> None:
    """Raise a library's error without a reason; CUDA has the reason: the context is lost."""
    import cupy

    from launchopt.devices.cuda.errors import StatusError

    def synchronize() -> None:
        raise cupy.cuda.runtime.CUDARuntimeError(700)

    _forbid_closing()
    cupy.cuda.runtime.deviceSynchronize = synchronize
    raise StatusError.of_cublas(13, "CUBLAS_STATUS_EXECUTION_FAILED")


def lands_no_more() -> None:
    """Let no step in flight end, and no launch fail; CUDA has the reason: the context is lost."""
    from launchopt.devices.cpu.device import CpuDevice
    from launchopt.devices.feedback.cpu import CpuSteps

    def feed_back(self: Any, flights: Any, count: int) -> None:
        import numpy as np

        flights.take_off(count, self._facts, *np.zeros_like(self._staged))

    def check_alive(self: Any) -> None:
        import cupy

        raise cupy.cuda.runtime.CUDARuntimeError(700)

    _forbid_closing()
    # The callers hold the function since before the run, so its code is replaced.
    CpuSteps.feed_back.__code__ = feed_back.__code__
    CpuDevice.check_alive.__code__ = check_alive.__code__


def _forbid_closing() -> None:
    from launchopt.devices.cpu.device import CpuDevice

    def close(self: Any) -> None:
        raise AssertionError("a lost GPU was touched")

    for owner, name in ((CpuDevice, "close"), (Prepared, "close")):
        setattr(owner, name, close)


# Faults of a real GPU.


def take_memory(but_bytes: int = 0) -> None:
    """Allocate all free memory of the GPU, in pieces down to 16 MB, as another process may."""
    import cupy

    cupy.cuda.Device(0).use()
    # Blocks that CuPy keeps would hide that the GPU has no more memory.
    cupy.get_default_memory_pool().free_all_blocks()
    runtime, piece = cupy.cuda.runtime, 1 << 37
    spared = runtime.malloc(but_bytes) if but_bytes else 0
    while piece >= 1 << 24:
        try:
            _held.append(runtime.malloc(piece))
        except runtime.CUDARuntimeError:
            piece //= 2
    if spared:
        runtime.free(spared)


def take_most_memory() -> None:
    """Allocate memory before a job, so that the job needs more than is left."""
    take_memory(LEFT_BYTES)


def find_memory_taken() -> None:
    """Take all free memory, then allocate 1 GiB more: the allocation fails."""
    import cupy

    take_memory()
    _held.append(cupy.empty(1 << 30, cupy.uint8))


def ask_for_too_much() -> None:
    """Ask for a petabyte of memory."""
    import cupy

    _held.append(cupy.empty(1 << 50, cupy.uint8))


def launch_bad_kernel() -> None:
    """Launch a kernel that writes to an invalid address, and do not wait: the next call of CUDA gets the error."""
    import cupy

    code = 'extern "C" __global__ void bad(int *where) { *where = 1; }'
    cupy.RawKernel(code, "bad")((1,), (1,), (cupy.uint64(0x10),))
