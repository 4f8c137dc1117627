"""A run as torch.profiler sees it: operators, launches and kernels, as the Kineto JSON that PyTorch's tools read.

Enters: `start` and `stop` around a run, in the thread that launches. Leaves: one gzipped Chrome trace a run where
`write` is told to, for Perfetto and `python -m runner.trace`. Kineto records through CUPTI, which has room for one
tracer: not together with timing=cupti, nor under nsys or ncu. Tracing costs time in every operator and launch, so that
such a run's other times are not headline times.
"""

from __future__ import annotations

import gzip
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launchopt.errors import DeviceError, RunError
from launchopt.timing.nvtx_ranges import is_profiled


def require() -> None:
    """DeviceError where PyTorch is not installed, or a profiler has CUPTI already."""
    if find_spec("torch") is None:
        raise DeviceError("timing=torch: PyTorch not installed: install launchopt[torch]")
    if is_profiled():
        raise DeviceError("timing=torch: CUPTI has room for one tracer, and a profiler is attached; use timing=host")


def trace_path(folder: Path, mode: str, repeat: int) -> Path:
    """Where the trace of one repeat goes."""
    return folder / f"torch-{mode}-{repeat}.json.gz"


class TorchTrace:
    """Records between `start` and `stop`; holds the last recording until the next `start`."""

    def __init__(self) -> None:
        require()
        import torch

        profiler = torch.profiler
        self._profiler: Any = profiler
        self._activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            self._activities.append(profiler.ProfilerActivity.CUDA)
        self._recording: Any = None

    def start(self) -> None:
        """Forget, then record. The first time takes seconds: CUPTI is loaded."""
        self._recording = self._profiler.profile(activities=self._activities)
        self._recording.start()

    def stop(self) -> None:
        """After the last result."""
        self._recording.stop()

    def write(self, path: Path) -> None:
        """The last recording, whole or not at all; RunError where it cannot be written."""
        plain, packed = (path.with_name(f".{path.name}.{kind}.tmp") for kind in ("json", "gz"))
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
