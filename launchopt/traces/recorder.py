"""Record the GEMMs of a PyTorch program as a list that `workload=list` takes.

    with launchopt.record("gemms.csv", skip=3, steps=5) as recording:
        for batch in batches:
            model(batch)
            recording.step()

PyTorch's `ExecutionTraceObserver` writes to a temporary folder. At the end the trace becomes a list, which holds sizes,
and neither names nor paths of the program. One process records one program at a time: PyTorch has a single observer.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from launchopt.errors import ConfigError, DataError, PackageError
from launchopt.files import reason, require_replaceable, save_text
from launchopt.scratch import scratch
from launchopt.traces.execution_trace import ExecutionTrace, read_execution_trace
from launchopt.traces.gemm_list import ListedGemm
from launchopt.traces.record_hook import before_another, let_go

ANOTHER = "another execution trace runs in this process, and PyTorch has one at a time"
LEAST_FREE_BYTES = 1 << 16  # PyTorch ends a trace without a word when its disk is full
_SINGLE = threading.Lock()  # held while a recording runs


class Recording:
    """A context manager that records the GEMMs within it. A program that skips or counts steps calls `step`.

    A process that is forked within it goes on without a recording, and writes nothing.
    """

    def __init__(self, path: str | os.PathLike[str], skip: int, steps: int | None) -> None:
        for name, value, least in (("skip", skip, 0), ("steps", steps, 1)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ConfigError(name, value, f"allowed: whole numbers from {least}")
        if not isinstance(path, str | os.PathLike):
            raise ConfigError("path", repr(path), "allowed: the name of a .csv file, as text or pathlib.Path")
        self.path = Path(path)
        self._skip, self._stop = skip, None if steps is None else skip + steps
        self._done = 0  # steps that ended
        self._is_recording = self._is_open = self._is_displaced = False

    def __enter__(self) -> Recording:
        """Begin. Raises PackageError without PyTorch, DataError if the file cannot be written or another one runs."""
        try:
            import torch
        except ImportError:
            raise PackageError("launchopt.record", ["torch"], "pip install torch") from None
        try:
            require_replaceable(self.path)
            self._file = self.path.absolute()  # the program may change its folder
            if not self._file.parent.is_dir():
                raise DataError(self.path, None, "no such folder to write to: create it first")
        except OSError as error:
            raise DataError(self.path, None, f"cannot be written ({reason(error)})") from None
        if not _SINGLE.acquire(blocking=False):
            raise DataError(self.path, None, "another recording runs in this process: end it first")
        with ExitStack() as opened:
            opened.callback(_SINGLE.release)
            self._trace = opened.enter_context(scratch()) / "trace.json"
            self._observer = torch.profiler.ExecutionTraceObserver().register_callback(str(self._trace))
            if not self._trace.exists():  # PyTorch kept the other one, and says nothing
                self._observer._registered = False  # else it would end the other one
                raise DataError(self.path, None, f"{ANOTHER}: end it first")
            opened.callback(self._observer.unregister_callback)
            opened.callback(before_another(self._observer, self._give_way))
            opened.callback(_OPEN.clear)
            _OPEN.append(self)
            self._done, self._is_open, self._is_displaced = 0, True, False
            opened.callback(self._end)
            if self._skip == 0:
                self._start()
            self._close = opened.pop_all()
        return self

    def step(self) -> None:
        """Say that a step of the program ended."""
        self._done += 1
        if self._done == self._skip:
            self._start()
        elif self._done == self._stop:
            self._pause()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the list, unless the program raised. Raises DataError if it has no GEMM that can be replayed."""
        with self._close:
            if kind is None and (self._is_open or self._is_displaced):
                self._save()

    def _save(self) -> None:
        if self._done < self._skip:
            raise ConfigError("skip", self._skip, f"step() was called {self._done} times: skip fewer steps")
        self._end()
        self._observer.unregister_callback()
        try:
            if self._is_displaced:
                raise DataError(self.path, None, ANOTHER)
            found = read_execution_trace(self._trace)
        except DataError as problem:
            full = shutil.disk_usage(self._trace).free < LEAST_FREE_BYTES
            why = "the folder for temporary files (TMPDIR) is full" if full else problem.problem
            raise DataError(self.path, None, f"nothing was written: {why}") from None
        save_text(self._file, list_text(found, origin()))

    def _start(self) -> None:
        if self._is_open:
            self._observer.start()
            self._is_recording = True

    def _pause(self) -> bool:
        """Stop recording. Return whether it did record."""
        was_recording, self._is_recording = self._is_recording, False
        if was_recording:
            self._observer.stop()
        return was_recording

    def _end(self) -> None:
        self._pause()
        self._is_open = False

    def _give_way(self) -> None:
        """End before the program begins an execution trace of its own."""
        if self._is_open:
            self._end()
            self._is_displaced = True
            self._observer.unregister_callback()

    def _before_fork(self) -> None:
        self._was_recording = self._pause()  # else the fork could write what is buffered, too

    def _after_fork(self) -> None:
        if self._was_recording:
            self._start()

    def _leave(self) -> None:
        """Leave the recording to the process that forked this one."""
        self._is_open = False
        self._close.pop_all()
        let_go(str(self._trace))
        self._observer.unregister_callback()
        _OPEN.clear()
        _SINGLE.release()


_OPEN: list[Recording] = []  # at most one


def _each_open(does: Callable[[Recording], None]) -> None:
    for recording in [*_OPEN]:
        does(recording)


os.register_at_fork(
    before=lambda: _each_open(Recording._before_fork),
    after_in_parent=lambda: _each_open(Recording._after_fork),
    after_in_child=lambda: _each_open(Recording._leave),
)


def record(path: str | os.PathLike[str], *, skip: int = 0, steps: int | None = None) -> Recording:
    """Return a context manager that records the GEMMs of a PyTorch program, and writes them to `path` as a list.

    skip: number of steps before the recording. steps: number of recorded steps; None: all until the end. The program
    calls `step` of the returned object after each step. Raises ConfigError for other values.
    """
    return Recording(path, skip, steps)


def origin() -> str:
    """Return the version of PyTorch, and the device of this process."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "CPU"
    return f"PyTorch {torch.__version__}, {device}"


def list_text(trace: ExecutionTrace, origin: str) -> str:
    """Return the GEMMs of a trace as a list that `traces.gemm_list` reads. origin: what recorded it, on what."""
    return "".join(_lines(trace.gemms, trace.left_out, origin))


def _lines(gemms: Sequence[ListedGemm], left_out: Mapping[str, int], origin: str) -> Iterator[str]:
    yield f"# recorded with {origin}\n"
    for why, count in left_out.items():
        yield f"# left out: {count} GEMM operators {why}\n"
    yield "m,n,k,count,dtype,weight,group,input\n"
    for gemm in gemms:
        dtype = "" if gemm.dtype is None else gemm.dtype.name
        yield f"{gemm.m},{gemm.n},{gemm.k},{gemm.count},{dtype},{gemm.weight},{gemm.group},{gemm.input}\n"
