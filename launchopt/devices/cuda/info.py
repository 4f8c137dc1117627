"""Describe a GPU without running work on it: its name, cache, memory and state, and the processes that use it.

Only the driver and NVML are called, and no context is created. The parent process may therefore call these functions
before it starts children.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from launchopt.devices.base import DeviceInfo
from launchopt.distribution import install_command, missing
from launchopt.errors import DeviceError
from launchopt.files import JsonObject
from launchopt.timing.nvml import nvml_handle

NEEDED = {"cupy": "cupy", "nvmath": "nvmath-python", "cuda": "cuda-bindings"}
PACK_BYTES_PER_LAUNCH = 12 << 20  # bytes that an H200 copies (reads and writes) in 6 us, the cost of a launch call
DRIVER_OF_CUDA_13 = 580
INSTALL = f"{install_command('cuda13')} (driver {DRIVER_OF_CUDA_13} or newer), or {install_command('cuda12')}"


def _lacking() -> str:
    """Return the names of the packages for a GPU that are not installed."""
    return ", ".join(NEEDED[module] for module in missing(*NEEDED))


def why_no_gpu(error: DeviceError) -> str:
    """Return why `device=auto` takes the CPU, in one clause. error: what `cuda_info` raised."""
    if not _lacking():
        return str(error).removeprefix("device=cuda: ")
    return f"{_lacking()} not installed" if driver_version() else "no NVIDIA GPU found"


def gpu_hint() -> str | None:
    """Return what to type to use the GPU; None if there is no driver, or nothing to install."""
    driver = driver_version().get("driver")
    if driver is None or not _lacking():
        return None
    is_new = int(driver.split(".")[0]) >= DRIVER_OF_CUDA_13
    return f"To use the GPU, type {install_command('cuda13' if is_new else 'cuda12')}"


def cuda_info(index: int = 0) -> DeviceInfo:
    """Describe the GPU that CUDA numbers `index`. DeviceError: a library, the driver or the GPU is missing."""
    if lacking := _lacking():
        raise DeviceError(f"device=cuda: {lacking} not installed; type {INSTALL}")
    from cuda.bindings import driver

    try:
        _ok(driver.cuInit(0))
        count = _ok(driver.cuDeviceGetCount())
    except (DeviceError, RuntimeError) as error:
        raise DeviceError(f"device=cuda: no usable NVIDIA GPU ({_reason(error)})") from None
    if index >= count:
        raise DeviceError(f"device.index={index}: this machine has {count} GPU(s), numbered from 0")
    device = _ok(driver.cuDeviceGet(index))
    uuid = bytes(_ok(driver.cuDeviceGetUuid(device)).bytes)
    asked = driver.CUdevice_attribute
    cache_bytes = _ok(driver.cuDeviceGetAttribute(asked.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device))
    major = _ok(driver.cuDeviceGetAttribute(asked.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = _ok(driver.cuDeviceGetAttribute(asked.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    name = _ok(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
    total = _ok(driver.cuDeviceTotalMem(device))
    free = _free_bytes(uuid, total)
    memory = f"memory of {name}"
    return DeviceInfo("cuda", index, name, free, cache_bytes, memory, PACK_BYTES_PER_LAUNCH, 10 * major + minor)


def _reason(error: Exception) -> str:
    return textwrap.shorten(str(error), 160, placeholder=" ...") or type(error).__name__


def _ok(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise DeviceError(status.name)
    return values[0] if values else None


def _free_bytes(uuid: bytes, total: int) -> int:
    """Return the free memory by NVML, or `total` if NVML does not answer; an allocation may then fail later."""
    import pynvml

    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(nvml_handle(uuid)).free)
    except pynvml.NVMLError:
        return int(total)


def uuid_of(index: int) -> bytes:
    """Return the uuid of the GPU that CUDA numbers `index`. cuInit must have been called."""
    from cuda.bindings import driver

    return bytes(_ok(driver.cuDeviceGetUuid(_ok(driver.cuDeviceGet(index)))).bytes)


def gpu_state(index: int) -> JsonObject:
    """Return clocks, power, temperature, throttle reasons and used memory; a reading that NVML refuses is absent."""
    import pynvml

    readings: dict[str, Callable[[object], object]] = {
        "sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        "power_w": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
        "temperature_c": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": lambda gpu: hex(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
        "memory_used_bytes": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
    }
    state: JsonObject = {}
    try:
        gpu = nvml_handle(uuid_of(index))
    except pynvml.NVMLError as error:
        return {"nvml": str(error)}
    for name, read in readings.items():
        with contextlib.suppress(pynvml.NVMLError):
            state[name] = read(gpu)
    return state


def cuda_of_driver() -> tuple[int, int] | None:
    """Return the newest CUDA version that the GPU's driver supports, (major, minor); None if NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return None
    return version // 1000, version % 1000 // 10


def driver_version() -> dict[str, str]:
    """Return the version of the GPU's driver, under the key "driver"; {} if NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return {"driver": str(pynvml.nvmlSystemGetDriverVersion())}
    except pynvml.NVMLError:
        return {}


def library_versions() -> dict[str, str]:
    """Return the versions of the CUDA driver, its runtime, the libraries, and the display driver."""
    import cupy
    from nvmath.bindings import cublasLt

    return {
        "cuda_driver": str(cupy.cuda.runtime.driverGetVersion()),
        "cuda_runtime": str(cupy.cuda.runtime.runtimeGetVersion()),
        "cublaslt": str(cublasLt.get_version()),
        "cupy": cupy.__version__,
        "nvmath-python": version("nvmath-python"),
        **driver_version(),
    }


@dataclass(frozen=True, slots=True)
class GpuUsers:
    """The processes that use a GPU, and whether its driver stays loaded between processes; None: NVML does not say."""

    others: dict[int, int | None] | None  # memory in bytes (None: unknown) of other processes, by process id
    persistence: bool | None


def gpu_users(index: int) -> GpuUsers:
    """Ask NVML which processes use the GPU that CUDA numbers `index`. Process ids are the host's, not a container's."""
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
