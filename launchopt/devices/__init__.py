"""Devices that run launches. `find_device` starts nothing; `open_device` and `open_floors` start the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launchopt.devices.base import Device, DeviceInfo, GpuDevice
from launchopt.errors import DeviceError

if TYPE_CHECKING:
    from launchopt.devices.floors import Floors


def find_device(kind: str, index: int) -> tuple[DeviceInfo, str]:
    """Return the device of `kind` (auto, cpu, cuda) and why it was chosen.

    Raise DeviceError for `cuda` if this machine has no usable GPU of that index.
    """
    from launchopt.devices.cpu.info import cpu_info

    if kind == "cpu":
        return cpu_info(), "as asked"
    from launchopt.devices.cuda.info import cuda_info, why_no_gpu

    try:
        return cuda_info(index), "as asked" if kind == "cuda" else "found by device=auto"
    except DeviceError as error:
        if kind == "cuda":
            raise
        return cpu_info(), why_no_gpu(error)


def open_device(kind: str, index: int, threads: int | None, tunes: bool = True) -> Device:
    """Open the device of `kind`, cpu or cuda, and import the libraries that it needs.

    tunes: on a GPU, the algorithms that cuBLASLt proposes are timed.
    """
    if kind == "cpu":
        from launchopt.devices.cpu.device import CpuDevice

        return CpuDevice(threads)
    from launchopt.devices.cuda.device import CudaDevice

    gpu: GpuDevice = CudaDevice(index, tunes)
    return gpu


def open_floors(kind: str, index: int) -> Floors:
    """Open the device of `kind`, cpu or cuda, to measure its floors, and import the libraries that it needs."""
    if kind == "cpu":
        from launchopt.devices.cpu.floors import CpuFloors

        return CpuFloors()
    from launchopt.devices.cuda.floors.gpu import open_cuda_floors

    return open_cuda_floors(index)
