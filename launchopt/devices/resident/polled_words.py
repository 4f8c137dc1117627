"""Words that the host stores, and a kernel polls: in the GPU's own memory, where the host can store there.

In: how many words. Out: an array for the host, and their address for the GPU. A poll of the host's memory is a trip
over the bus and back, and a word that comes meanwhile waits for the next one; a poll of the GPU's memory is a hit in
its L2 cache. The host reaches it through BAR1, which is mapped by the GPU's Vulkan driver (`vulkan_memory`) and known
to CUDA as external memory. Elsewhere the words are pinned memory of the host, which the GPU reads by the same address.

Stores through BAR1 are combined: they leave the core when a line is full, or at a `native.store_fence`, in any order.
To read the words would take the host a trip over the bus. Tried on x86 without a profiler; else it is pinned memory.
"""

from __future__ import annotations

import ctypes
import os
import platform
import weakref
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.devices.feedback.cuda import pinned
from launchopt.devices.resident.vulkan_memory import Memory, VulkanError, VulkanGpu, vulkan_gpu
from launchopt.native import compiled, store_fence
from launchopt.timing import nvtx_ranges

GRANULE_BYTES = 64 << 10  # of BAR1's pages
TRIED = ("x86_64", "AMD64")


@compiled
def store_all() -> None:
    """What the host has stored is on its way before anything that it stores from here on."""
    store_fence()


class PolledWords:
    """`count` words of a dtype, all 0. near: whether they may lie in the GPU's memory.

    array: the host's view, not to be read where they are near. address: the GPU's. is_near: whether they lie there;
    why_not: else the reason. They are given back when this is: no kernel may poll them then.
    """

    def __init__(self, count: int, dtype: Any, near: bool = True) -> None:
        self.why_not = "" if near else "mode.bar1=false"
        if near:
            try:
                self._map(count, np.dtype(dtype))
            except VulkanError as error:
                self.why_not = str(error)
        self.is_near = not self.why_not
        if not self.is_near:
            self.array: NDArray[Any] = pinned(count, dtype)
            self.address = int(self.array.ctypes.data)
        self.clear()

    def clear(self) -> None:
        """All 0, before a kernel is launched."""
        self.array.fill(0)
        store_all()

    def _map(self, count: int, dtype: np.dtype[Any]) -> None:
        if platform.machine() not in TRIED:
            raise VulkanError(f"not tried on {platform.machine()}")
        if nvtx_ranges.is_profiled():
            raise VulkanError("not tried under a profiler")
        wanted = -(-count * dtype.itemsize // GRANULE_BYTES) * GRANULE_BYTES
        gpu = vulkan_gpu(_uuid())
        memory = gpu.allocate(wanted)
        imported, self.address = _imported(gpu, memory, wanted)
        self.array = np.frombuffer((ctypes.c_uint8 * wanted).from_address(memory.address), dtype, count)
        weakref.finalize(self, _give_back, gpu, memory, imported, self.address).atexit = False

    @property
    def where(self) -> str:
        """For a manifest."""
        return "GPU memory, by BAR1" if self.is_near else f"host memory: {self.why_not}"


def _uuid() -> bytes:
    """The current GPU's. CuPy's properties have it as a string that ends at its first zero byte."""
    from cuda.bindings import driver

    status, uuid = driver.cuDeviceGetUuid(cupy.cuda.runtime.getDevice())
    if int(status):
        raise VulkanError(f"cuDeviceGetUuid: {status.name}")
    return bytes(uuid.bytes)


def _imported(gpu: VulkanGpu, memory: Memory, count: int) -> tuple[Any, int]:
    """CUDA's name for the memory, and its address on the GPU. VulkanError where CUDA will not have it."""
    from cuda.bindings import driver

    handle = driver.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    handle.type = driver.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    handle.handle.fd, handle.size = memory.fd, count
    status, imported = driver.cuImportExternalMemory(handle)
    if int(status):
        os.close(memory.fd)
        gpu.free(memory.handle)
        raise VulkanError(f"cuImportExternalMemory: {status.name}")
    buffer = driver.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    buffer.size = count
    status, address = driver.cuExternalMemoryGetMappedBuffer(imported, buffer)
    if int(status):
        driver.cuDestroyExternalMemory(imported)
        gpu.free(memory.handle)
        raise VulkanError(f"cuExternalMemoryGetMappedBuffer: {status.name}")
    return imported, int(address)


def _give_back(gpu: VulkanGpu, memory: Memory, imported: Any, address: int) -> None:
    from cuda.bindings import driver

    driver.cuMemFree(address)
    driver.cuDestroyExternalMemory(imported)
    gpu.free(memory.handle)
