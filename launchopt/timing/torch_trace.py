"""Trace a run by torch.profiler: operators, launches and kernels, as Kineto JSON that PyTorch's tools read.

Call `start` before a run and `stop` after it, in the thread that launches. `write` then writes a gzipped Chrome trace
for Perfetto and `launchopt trace`. Kineto records through CUPTI, which accepts one tracer. It therefore excludes
timing=cupti, nsys and ncu. Tracing costs time in every operator and launch, so that other times of a traced run are not
headline times.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from launchopt.distribution import install_command, missing
from launchopt.errors import DeviceError, RunError
from launchopt.files import temporary_for
from launchopt.timing.nvtx_ranges import is_profiled


def require() -> None:
    """Raise DeviceError if PyTorch is not installed, or if an attached profiler uses CUPTI."""
    if missing("torch"):
        raise DeviceError(f"timing=torch needs torch; type: {install_command('torch')}")
    if is_profiled():
        raise DeviceError("timing=torch: CUPTI accepts one tracer, and a profiler is attached; use timing=host")


def trace_path(folder: Path, mode: str, repeat: int) -> Path:
    """Return the path of the trace of one repeat."""
    return folder / f"torch-{mode}-{repeat}.json.gz"


class Recording(Protocol):
    """A `torch.profiler.profile`."""

    def start(self) -> None:
        """Begin to record."""

    def stop(self) -> None:
        """Stop recording."""

    def export_chrome_trace(self, path: str) -> None:
        """Write the recording as JSON."""


class TorchTrace:
    """Records between `start` and `stop`, and keeps the recording until `write` or the next `start`."""

    def __init__(self) -> None:
        require()
        import torch

        profiler = torch.profiler
        self._profile: Callable[..., Recording] = profiler.profile
        self._activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            self._activities.append(profiler.ProfilerActivity.CUDA)
        self._recording: Recording | None = None

    def start(self) -> None:
        """Delete the last recording and start a new one. The first call takes seconds, since it loads CUPTI."""
        self._recording = self._profile(activities=self._activities)
        self._recording.start()

    def stop(self) -> None:
        """Stop recording, after the last result of the run."""
        assert self._recording is not None
        self._recording.stop()

    def write(self, path: Path) -> None:
        """Write the last recording atomically, and delete it from memory. RunError: the file cannot be written."""
        assert self._recording is not None
        # gzip keeps the name `packed` in the file, by which launchopt.reading.ownership knows it
        plain, packed = (temporary_for(path, kind) for kind in ("json", "gz"))
        try:
            self._recording.export_chrome_trace(str(plain))
            with plain.open("rb") as trace, gzip.open(packed, "wb", compresslevel=5) as out:
                shutil.copyfileobj(trace, out, 1 << 20)
            packed.replace(path)
        except OSError as error:
            raise RunError(f"{path}: {error.strerror or error}") from None
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
            self._recording = None
