"""A run as torch.profiler sees it: operators, launches and kernels, as the Kineto JSON that PyTorch's tools read.

`start` and `stop` enclose a run, in the thread that launches. `write` makes one gzipped Chrome trace of it, for
Perfetto and `python -m runner.trace`. Kineto records through CUPTI, which takes one tracer: not together with
timing=cupti, nor under nsys or ncu. Tracing costs time in every operator and launch, so that other times of such a run
are not headline times.
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
    """Raise DeviceError if PyTorch is not installed, or if a profiler uses CUPTI already."""
    if find_spec("torch") is None:
        raise DeviceError("timing=torch: PyTorch not installed: install launchopt[torch]")
    if is_profiled():
        raise DeviceError("timing=torch: CUPTI has room for one tracer, and a profiler is attached; use timing=host")


def trace_path(folder: Path, mode: str, repeat: int) -> Path:
    """Return the path of the trace of one repeat."""
    return folder / f"torch-{mode}-{repeat}.json.gz"


class TorchTrace:
    """Records between `start` and `stop`, and holds the recording until the next `start`."""

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
        """Forget the last recording, then record. The first call takes seconds, since it loads CUPTI."""
        self._recording = self._profiler.profile(activities=self._activities)
        self._recording.start()

    def stop(self) -> None:
        """Stop recording. Call it after the last result."""
        self._recording.stop()

    def write(self, path: Path) -> None:
        """Write the last recording, whole or not at all; RunError if that fails."""
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
