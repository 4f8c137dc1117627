"""Who uses a GPU now, and whether its driver stays loaded between processes. Starts nothing on it; NVML only."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from launchopt.devices.cuda.info import nvml_handle, uuid_of


@dataclass(frozen=True, slots=True)
class GpuUsers:
    """`others`: memory in bytes (None: not told) of other processes by their id; None is what NVML does not tell."""

    others: dict[int, int | None] | None
    persistence: bool | None


def gpu_users(index: int) -> GpuUsers:
    """Of the GPU that CUDA numbers `index`. Process ids are those of the host: a container may not know them."""
    import pynvml

    others: dict[int, int | None] | None = None
    persistence: bool | None = None
    with contextlib.suppress(pynvml.NVMLError):
        gpu = nvml_handle(uuid_of(index))
        with contextlib.suppress(pynvml.NVMLError):
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
            others = {one.pid: one.usedGpuMemory for one in running if one.pid != os.getpid()}
        with contextlib.suppress(pynvml.NVMLError):
            persistence = bool(pynvml.nvmlDeviceGetPersistenceMode(gpu))
    return GpuUsers(others, persistence)
