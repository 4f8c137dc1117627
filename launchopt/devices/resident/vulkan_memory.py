"""Memory of a GPU that the host stores to over the bus, from the GPU's Vulkan driver: CUDA has no call for it on PCIe.

In: the UUID of a GPU, and how many bytes. Out: memory that is device-local, host-visible and coherent (the GPU's BAR1),
mapped for the host, and a file descriptor by which CUDA imports it (VK_KHR_external_memory_fd). NVIDIA's library is
asked for itself, by the interface that it has for the Vulkan loader ("Architecture of the Vulkan Loader Interfaces",
negotiation of version 5): so there need be no loader, nor an X server.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, ClassVar, NamedTuple

LIBRARIES = ("libEGL_nvidia.so.0", "libGLX_nvidia.so.0")  # the second one wants X11
INTERFACE_VERSION = 5  # of what a driver has for a loader
API_VERSION = 1 << 22 | 1 << 12  # Vulkan 1.1, whose core has what is asked for but for the file descriptor
LOCAL_VISIBLE_COHERENT = 1 | 2 | 4  # VkMemoryPropertyFlagBits
OPAQUE_FD = 1  # VkExternalMemoryHandleTypeFlagBits
WHOLE = (1 << 64) - 1
UUID_BYTES, MOST_GPUS, MOST_TYPES = 16, 64, 32
# VkStructureType.
APPLICATION, INSTANCE, QUEUE, DEVICE, ALLOCATE = 0, 1, 2, 3, 5
PROPERTIES_2, ID_PROPERTIES, EXPORT, GET_FD = 1000059001, 1000071004, 1000072002, 1000074002
EXTENSION = b"VK_KHR_external_memory_fd"

# What each function takes, of those that are called.
POINTER_, SIZE, FLAGS, MEMORY = c_void_p, c_uint64, c_uint32, c_uint64
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "vkCreateInstance": (POINTER_, POINTER_, POINTER_),
    "vkDestroyInstance": (POINTER_, POINTER_),
    "vkEnumeratePhysicalDevices": (POINTER_, POINTER_, POINTER_),
    "vkGetPhysicalDeviceProperties2": (POINTER_, POINTER_),
    "vkGetPhysicalDeviceMemoryProperties": (POINTER_, POINTER_),
    "vkCreateDevice": (POINTER_, POINTER_, POINTER_, POINTER_),
    "vkAllocateMemory": (POINTER_, POINTER_, POINTER_, POINTER_),
    "vkMapMemory": (POINTER_, MEMORY, SIZE, SIZE, FLAGS, POINTER_),
    "vkGetMemoryFdKHR": (POINTER_, POINTER_, POINTER_),
    "vkFreeMemory": (POINTER_, MEMORY, POINTER_),
}
WITHOUT_RESULT = {
    *("vkDestroyInstance", "vkGetPhysicalDeviceProperties2", "vkGetPhysicalDeviceMemoryProperties", "vkFreeMemory"),
}


class VulkanError(Exception):
    """There is no such memory here; why."""


class _Info(ctypes.Structure):
    """What every VkStructure that is passed begins with."""

    _fields_: ClassVar[Any] = (("type", c_int32), ("next", c_void_p))


class _Application(_Info):
    _fields_ = (
        ("name", c_char_p),
        ("version", c_uint32),
        ("engine", c_char_p),
        ("of_engine", c_uint32),
        ("api", c_uint32),
    )


class _Instance(_Info):
    _fields_ = (
        *(("flags", c_uint32), ("application", c_void_p)),
        *(("layers", c_uint32), ("layer_names", c_void_p), ("extensions", c_uint32), ("extension_names", c_void_p)),
    )


class _Ids(_Info):
    _fields_ = (
        *(("device", c_uint8 * UUID_BYTES), ("driver", c_uint8 * UUID_BYTES)),
        *(("luid", c_uint8 * 8), ("nodes", c_uint32), ("is_luid_valid", c_uint32)),
    )


class _Properties(_Info):
    _fields_ = (("core", c_uint64 * 103),)  # VkPhysicalDeviceProperties, 824 bytes


class _MemoryType(ctypes.Structure):
    _fields_ = (("flags", c_uint32), ("heap", c_uint32))


class _Types(ctypes.Structure):
    _fields_ = (
        ("count", c_uint32),
        ("types", _MemoryType * MOST_TYPES),
        ("heaps", c_uint32),
        ("of_heaps", c_uint64 * 32),
    )


class _Queue(_Info):
    _fields_ = (("flags", c_uint32), ("family", c_uint32), ("count", c_uint32), ("priorities", POINTER(c_float)))


class _Device(_Info):
    _fields_ = (
        *(("flags", c_uint32), ("queues", c_uint32), ("of_queues", c_void_p)),
        *(("layers", c_uint32), ("layer_names", c_void_p), ("extensions", c_uint32), ("names", POINTER(c_char_p))),
        ("features", c_void_p),
    )


class _Export(_Info):
    _fields_ = (("handles", c_uint32),)


class _Allocate(_Info):
    _fields_ = (("size", c_uint64), ("memory_type", c_uint32))


class _GetFd(_Info):
    _fields_ = (("memory", c_uint64), ("handle", c_uint32))


class Memory(NamedTuple):
    """`address`: the host's; `fd`: whoever imports it has it from then on; `handle`: for `free`."""

    address: int
    fd: int
    handle: int


class VulkanGpu:
    """The GPU with this UUID. VulkanError where no driver, or no such memory, is there."""

    def __init__(self, uuid: bytes) -> None:
        self._procedure, self._instance = _driver(), c_void_p()
        application = _Application(APPLICATION, None, b"launchopt", 1, None, 0, API_VERSION)
        info = _Instance(INSTANCE, None, 0, ctypes.addressof(application))
        self._call("vkCreateInstance", ctypes.byref(info), None, ctypes.byref(self._instance))
        try:
            self._open(uuid)
        except VulkanError:
            self._call("vkDestroyInstance", self._instance, None)
            raise

    def _open(self, uuid: bytes) -> None:
        gpu = self._find(uuid)
        self._type = self._memory_type(gpu)
        priority, names = c_float(1.0), (c_char_p * 1)(EXTENSION)
        queue = _Queue(QUEUE, None, 0, 0, 1, ctypes.pointer(priority))
        made = _Device(DEVICE, None, 0, 1, ctypes.addressof(queue), 0, None, 1, names)
        self._device = c_void_p()
        self._call("vkCreateDevice", gpu, ctypes.byref(made), None, ctypes.byref(self._device))

    def allocate(self, count: int) -> Memory:
        """So many bytes. The host should not read them: a load is a round trip over the bus."""
        export = _Export(EXPORT, None, OPAQUE_FD)
        info = _Allocate(ALLOCATE, ctypes.addressof(export), count, self._type)
        handle, address, fd = c_uint64(), c_void_p(), c_int32(-1)
        self._call("vkAllocateMemory", self._device, ctypes.byref(info), None, ctypes.byref(handle))
        try:
            self._call("vkMapMemory", self._device, handle, 0, WHOLE, 0, ctypes.byref(address))
            wanted = _GetFd(GET_FD, None, handle.value, OPAQUE_FD)
            self._call("vkGetMemoryFdKHR", self._device, ctypes.byref(wanted), ctypes.byref(fd))
        except VulkanError:
            self.free(handle.value)
            raise
        return Memory(int(address.value or 0), int(fd.value), int(handle.value))

    def free(self, handle: int) -> None:
        """Nobody uses it any more."""
        self._call("vkFreeMemory", self._device, c_uint64(handle), None)

    def _call(self, name: str, *arguments: Any) -> None:
        address = self._procedure(self._instance, name.encode())
        if not address:
            raise VulkanError(f"the Vulkan driver has no {name}")
        kind: Any = ctypes.CFUNCTYPE(None if name in WITHOUT_RESULT else c_int32, *FUNCTIONS[name])
        if result := kind(address)(*arguments):
            raise VulkanError(f"{name} failed with VkResult {result}")

    def _find(self, uuid: bytes) -> c_void_p:
        count, gpus = c_uint32(MOST_GPUS), (c_void_p * MOST_GPUS)()
        self._call("vkEnumeratePhysicalDevices", self._instance, ctypes.byref(count), gpus)
        for gpu in gpus[: count.value]:
            ids = _Ids(ID_PROPERTIES, None)
            both = _Properties(PROPERTIES_2, ctypes.addressof(ids))
            self._call("vkGetPhysicalDeviceProperties2", gpu, ctypes.byref(both))
            if bytes(ids.device) == uuid:
                return c_void_p(gpu)
        raise VulkanError(f"the Vulkan driver does not know the GPU with UUID {uuid.hex()}")

    def _memory_type(self, gpu: c_void_p) -> int:
        found = _Types()
        self._call("vkGetPhysicalDeviceMemoryProperties", gpu, ctypes.byref(found))
        for i in range(found.count):
            if found.types[i].flags & LOCAL_VISIBLE_COHERENT == LOCAL_VISIBLE_COHERENT:
                return i
        raise VulkanError("no memory of this GPU is both its own and the host's")


@cache
def vulkan_gpu(uuid: bytes) -> VulkanGpu:
    """Made once a process: that takes 0.1 to 0.6 s."""
    return VulkanGpu(uuid)


def _driver() -> Any:
    """Its vk_icdGetInstanceProcAddr."""
    failures = []
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            negotiate, procedure = library.vk_icdNegotiateLoaderICDInterfaceVersion, library.vk_icdGetInstanceProcAddr
        except (OSError, AttributeError) as error:
            failures.append(str(error))
            continue
        version = c_uint32(INTERFACE_VERSION)
        if result := negotiate(ctypes.byref(version)):
            failures.append(f"{name} answers VkResult {result}")
            continue
        procedure.restype, procedure.argtypes = c_void_p, [c_void_p, c_char_p]
        return procedure
    raise VulkanError(f"no Vulkan driver: {'; '.join(failures)}")
