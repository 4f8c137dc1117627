"""Where work runs. `find_device` looks without starting anything; `open_device` is for the process that works."""

from __future__ import annotations

from launchopt.devices.base import Device, DeviceInfo, GpuDevice
from launchopt.errors import DeviceError


def find_device(kind: str, index: int) -> tuple[DeviceInfo, str]:
    """The device of `kind` (auto, cpu, cuda) and, in words, why that one; DeviceError where it is not there."""
    from launchopt.devices.cpu.info import cpu_info

    if kind == "cpu":
        return cpu_info(), "as asked"
    from launchopt.devices.cuda.info import cuda_info

    try:
        return cuda_info(index), "as asked" if kind == "cuda" else "device=auto found a GPU"
    except DeviceError as error:
        if kind == "cuda":
            raise
        return cpu_info(), f"device=auto found no GPU: {error}"


def open_device(kind: str, index: int, threads: int | None) -> Device:
    """The device itself, `kind` cpu or cuda; imports the libraries it needs."""
    if kind == "cpu":
        from launchopt.devices.cpu.device import CpuDevice

        return CpuDevice(threads)
    from launchopt.devices.cuda.device import CudaDevice

    gpu: GpuDevice = CudaDevice(index)
    return gpu
