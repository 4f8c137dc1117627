"""A GPU of its own for each job of a sweep whose jobs run side by side on one machine.

A job process locks a GPU by its uuid (`pool`), or a MIG device, and names it in CUDA_VISIBLE_DEVICES before CUDA and
the job's children start. It keeps it until it ends. If there are more jobs than GPUs, jobs share: each takes one of
those that the fewest share. `shares` says so, in both jobs. GPUs are taken from those that CUDA_VISIBLE_DEVICES names:
indices, uuids or their beginnings, MIG devices; without it from all.

CUDA may number GPUs of several models in another order than NVML. Then an index does not say which GPU it means, and
GPUs are not divided, unless CUDA_DEVICE_ORDER=PCI_BUS_ID. Runs outside of such sweeps lock nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launchopt.errors import ConfigError
from runner.plan.cores import AT_ONCE
from runner.plan.pool import Pool

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
# Variables, which the children of a job inherit: the uuid, how many share it, and the folder of locks.
OWN, SHARED, POOL = "LAUNCHOPT_OWN_GPU", "LAUNCHOPT_SHARED_GPU", "LAUNCHOPT_GPU_POOL"
MOST = 64  # jobs on one GPU


def take(visible: str | None, folder: Path | None = None) -> str | None:
    """Take a GPU for the lifetime of this process, and return its uuid; None if GPUs cannot be told apart.

    visible: CUDA_VISIBLE_DEVICES of the sweep. A second call does nothing. CUDA must not have started.
    """
    if os.environ.get(OWN):
        return os.environ[OWN]
    _set(visible)
    pool, found = Pool(folder), visible_gpus(visible)
    if not found or not pool.is_usable():
        return None
    for rank in range(MOST):
        for uuid in found:
            if pool.take([f"{uuid}.{rank}".replace("/", "_")]):
                _set(uuid)
                os.environ |= {OWN: uuid, POOL: str(pool.folder)}
                if rank:
                    pool.share(_sharing(uuid))
                    os.environ[SHARED] = "1"
                return uuid
    return None


def own() -> str | None:
    """Return the uuid of the GPU that this process has taken."""
    return os.environ.get(OWN) or None


def shares(since_s: float) -> str | None:
    """Return with whom this process has shared its GPU since a time, of `time.time`; None if it was its own."""
    at_once = os.environ.get(AT_ONCE) or "1"
    if uuid := own():
        pool = Pool(Path(os.environ[POOL]))
        is_shared = os.environ.get(SHARED) or pool.is_shared(_sharing(uuid), since_s)
        return f"{uuid} with other jobs" if is_shared else None
    return f"the GPUs with {at_once} jobs at once" if int(at_once) > 1 else None


def check_index(index: int) -> None:
    """Raise ConfigError if a job that has a GPU of its own, which CUDA numbers 0, asks for another one."""
    if own() and index:
        wanted = f"jobs side by side take a GPU each: leave it out, and name their GPUs with {VISIBLE}"
        raise ConfigError("device.index", index, wanted)


def visible_gpus(visible: str | None) -> list[str]:
    """Return the uuids of the GPUs and MIG devices that CUDA_VISIBLE_DEVICES names; none if that is not certain."""
    import pynvml

    try:
        pynvml.nvmlInit()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        parts = [_parts(pynvml, each) for each in gpus]
        names = [_text(pynvml.nvmlDeviceGetUUID(each)) for each in gpus]
        models = {_text(pynvml.nvmlDeviceGetName(each)) for each in gpus}
    except pynvml.NVMLError:
        return []
    if visible is None:
        return [uuid for each in parts for uuid in each]
    is_ordered = len(models) < 2 or os.environ.get(ORDER) == "PCI_BUS_ID"
    found = list[str]()
    for word in (each.strip() for each in visible.split(",")):
        if word.isdecimal() and int(word) < len(gpus):
            if not is_ordered:
                return []
            found.append(parts[int(word)][0])
            continue
        every = [*names, *(uuid for each in parts for uuid in each if uuid not in names)]
        fitting = list(dict.fromkeys(uuid for uuid in every if word and uuid.startswith(word)))
        if len(fitting) != 1 and not word.startswith("MIG-GPU-"):
            break  # CUDA ignores this and the rest
        found.append(fitting[0] if fitting else word)
    return found if len(set(found)) == len(found) else []


def _parts(nvml: Any, gpu: object) -> list[str]:
    """Return the uuids of a GPU's MIG devices, or its own if it is not divided."""
    return list(_instances(nvml, gpu)) or [_text(nvml.nvmlDeviceGetUUID(gpu))]


def _instances(nvml: Any, gpu: object) -> Iterator[str]:
    try:
        if not nvml.nvmlDeviceGetMigMode(gpu)[0]:
            return
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except nvml.NVMLError:  # this GPU has no such mode
        return
    for index in range(count):
        with contextlib.suppress(nvml.NVMLError):  # there are fewer
            yield _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _sharing(uuid: str) -> str:
    return f"{uuid}.sharing".replace("/", "_")


def _set(visible: str | None) -> None:
    if visible is None:
        os.environ.pop(VISIBLE, None)
    else:
        os.environ[VISIBLE] = visible
