"""What a Vulkan driver is asked for, by a stand-in that reads its structures as C lays them out; no GPU."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from ctypes import c_char_p, c_int32, c_uint32, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any

import pytest

from launchopt.devices.resident import vulkan_memory as vm
from launchopt.devices.resident.vulkan_memory import VulkanError, VulkanGpu, vulkan_gpu

# Of vulkan_core.h, as `struct` has them: with the compiler's padding, at the end too.
APPLICATION, INSTANCE = "iPPIPII", "iPIPIPIP"
IDS, PROPERTIES, TYPES = "iP16s16s8sII", "iP824s", "I64II32Q"
QUEUE, DEVICE = "iPIIIP", "iPIIPIPIPP"
EXPORT, ALLOCATE, GET_FD = "iPI0P", "iPQI0P", "iPQI0P"
LAYOUTS = {
    vm._Application: (APPLICATION, 48),
    vm._Instance: (INSTANCE, 64),
    vm._Ids: (IDS, 64),
    vm._Properties: (PROPERTIES, 840),
    vm._Types: (TYPES, 520),
    vm._Queue: (QUEUE, 40),
    vm._Device: (DEVICE, 72),
    vm._Export: (EXPORT, 24),
    vm._Allocate: (ALLOCATE, 32),
    vm._GetFd: (GET_FD, 32),
}
# What each function takes: a pointer or an object of the driver's, a number of 64 bits, of 32.
KINDS = {"p": c_void_p, "n": c_uint64, "w": c_uint32}
TAKEN = {
    "vkCreateInstance": "ppp",
    "vkDestroyInstance": "pp",
    "vkEnumeratePhysicalDevices": "ppp",
    "vkGetPhysicalDeviceProperties2": "pp",
    "vkGetPhysicalDeviceMemoryProperties": "pp",
    "vkCreateDevice": "pppp",
    "vkAllocateMemory": "pppp",
    "vkMapMemory": "pnnnwp",
    "vkGetMemoryFdKHR": "ppp",
    "vkFreeMemory": "pnp",
}
MAKING = ("vkCreateInstance", "vkEnumeratePhysicalDevices", "vkCreateDevice")
GIVING = ("vkAllocateMemory", "vkMapMemory", "vkGetMemoryFdKHR")
UUIDS = bytes(range(16)), bytes(range(100, 116))  # of two GPUs
LOCAL, VISIBLE, COHERENT, CACHED = 1, 2, 4, 8
BAR1 = LOCAL | VISIBLE | COHERENT
OURS, OPENED, FIRST_GPU, FIRST_HANDLE = 0x11_0000_0001, 0x22_0000_0002, 0x33_0000_0000, 0x44_0000_0000
OUT_OF_MEMORY = -2  # VK_ERROR_OUT_OF_DEVICE_MEMORY
COUNT = 1 << 16


def read(layout: str, address: int) -> tuple[Any, ...]:
    return struct.unpack(layout, ctypes.string_at(address, struct.calcsize(layout)))


class FakeVulkan:
    """A driver of two GPUs. `memory`: what is allocated, by its handle; `instances`: how many there are.

    lacks: what it does not have; fails: what ends with OUT_OF_MEMORY; flags: of the types of memory.
    """

    def __init__(
        self, lacks: str = "", fails: str = "", flags: tuple[int, ...] = (0, VISIBLE | COHERENT, BAR1)
    ) -> None:
        self._fails, self._flags, self._kept = fails, flags, dict[str, Any]()
        self.memory, self.fds, self.faults = dict[int, Any](), list[int](), list[AssertionError]()
        self.instances, self.negotiated, self.answer = 0, 0, 0
        for name, taken in TAKEN.items():
            if name != lacks:
                kinds = [KINDS[each] for each in taken]
                result = None if name in vm.WITHOUT_RESULT else c_int32
                self._kept[name] = ctypes.CFUNCTYPE(result, *kinds)(self._guarded(name, getattr(self, name)))
        self.vk_icdNegotiateLoaderICDInterfaceVersion = ctypes.CFUNCTYPE(c_int32, c_void_p)(self._negotiate)
        self.vk_icdGetInstanceProcAddr = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_char_p)(self._address)

    def _guarded(self, name: str, does: Callable[..., None]) -> Callable[..., int]:
        """What is wrong would be lost on its way through C."""

        def call(*arguments: Any) -> int:
            if name == self._fails:
                return OUT_OF_MEMORY
            try:
                does(*arguments)
            except AssertionError as error:
                self.faults.append(error)
            return 0

        return call

    def _negotiate(self, version: int) -> int:
        self.negotiated = c_uint32.from_address(version).value
        return self.answer

    def _address(self, instance: int | None, name: bytes) -> int | None:
        if (instance is None) != (name == b"vkCreateInstance"):
            self.faults.append(AssertionError(f"{name!r} of {instance}"))
        found = self._kept.get(name.decode())
        return None if found is None else ctypes.cast(found, c_void_p).value

    def vkCreateInstance(self, info: int, allocator: int | None, made: int) -> None:  # noqa: N802
        kind, chain, flags, application, layers, _, extensions, _ = read(INSTANCE, info)
        assert (kind, chain, flags, layers, extensions, allocator) == (1, 0, 0, 0, 0, None)
        kind, chain, *_, api = read(APPLICATION, application)
        assert (kind, chain, api >> 22, api >> 12 & 0x3FF) == (0, 0, 1, 1), "Vulkan 1.1"
        c_uint64.from_address(made).value = OURS
        self.instances += 1

    def vkDestroyInstance(self, instance: int, allocator: int | None) -> None:  # noqa: N802
        assert (instance, allocator) == (OURS, None)
        self.instances -= 1

    def vkEnumeratePhysicalDevices(self, instance: int, count: int, gpus: int) -> None:  # noqa: N802
        room = c_uint32.from_address(count)
        assert instance == OURS
        assert room.value >= len(UUIDS)
        room.value = len(UUIDS)
        for i in range(len(UUIDS)):
            c_uint64.from_address(gpus + 8 * i).value = FIRST_GPU + i

    def vkGetPhysicalDeviceProperties2(self, gpu: int, properties: int) -> None:  # noqa: N802
        kind, ids = read("iP", properties)
        assert (kind, read("iP", ids)) == (1000059001, (1000071004, 0))
        ctypes.memset(properties + 16, 0xAA, 824)
        ctypes.memmove(ids + 16, UUIDS[gpu - FIRST_GPU] + bytes(32), 48)

    def vkGetPhysicalDeviceMemoryProperties(self, gpu: int, found: int) -> None:  # noqa: N802
        assert gpu == FIRST_GPU + 1
        pairs = [word for flags in self._flags for word in (flags, 0)]
        words = len(self._flags), *pairs, *[BAR1] * (64 - len(pairs)), 1, 80 << 30, LOCAL, *[0] * 30
        ctypes.memmove(found, struct.pack(TYPES, *words), struct.calcsize(TYPES))

    def vkCreateDevice(self, gpu: int, info: int, allocator: int | None, made: int) -> None:  # noqa: N802
        kind, chain, flags, queues, queue, layers, _, extensions, names, features = read(DEVICE, info)
        assert (gpu, allocator, kind, chain, flags) == (FIRST_GPU + 1, None, 3, 0, 0)
        assert (queues, layers, extensions, features) == (1, 0, 1, 0)
        assert c_char_p.from_address(names).value == b"VK_KHR_external_memory_fd"
        kind, chain, flags, family, count, priorities = read(QUEUE, queue)
        assert (kind, chain, flags, family, count) == (2, 0, 0, 0, 1)
        assert 0 <= ctypes.c_float.from_address(priorities).value <= 1
        c_uint64.from_address(made).value = OPENED

    def vkAllocateMemory(self, device: int, info: int, allocator: int | None, made: int) -> None:  # noqa: N802
        kind, export, size, index = read(ALLOCATE, info)
        assert (device, allocator, kind, self._flags[index] & BAR1) == (OPENED, None, 5, BAR1)
        assert read(EXPORT, export) == (1000072002, 0, 1), "for a file descriptor"
        handle = FIRST_HANDLE + len(self.memory)
        self.memory[handle] = ctypes.create_string_buffer(size)
        c_uint64.from_address(made).value = handle

    def vkMapMemory(self, device: int, handle: int, first: int, size: int, flags: int, mapped: int) -> None:  # noqa: N802
        assert (device, first, size, flags) == (OPENED, 0, (1 << 64) - 1, 0)
        c_uint64.from_address(mapped).value = ctypes.addressof(self.memory[handle])

    def vkGetMemoryFdKHR(self, device: int, info: int, fd: int) -> None:  # noqa: N802
        kind, chain, handle, handles = read(GET_FD, info)
        assert (device, kind, chain, handles) == (OPENED, 1000074002, 0, 1)
        assert handle in self.memory
        self.fds.append(os.open(os.devnull, os.O_RDONLY))
        c_int32.from_address(fd).value = self.fds[-1]

    def vkFreeMemory(self, device: int, handle: int, allocator: int | None) -> None:  # noqa: N802
        assert (device, allocator) == (OPENED, None)
        assert self.memory.pop(handle, None)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeVulkan]]:
    """Makes a driver that is there from then on, under the name of the library asked for first."""
    made = list[FakeVulkan]()

    def install(**how: Any) -> FakeVulkan:
        made.append(driver := FakeVulkan(**how))
        monkeypatch.setattr(ctypes, "CDLL", lambda name: {vm.LIBRARIES[0]: driver}[name])
        return driver

    yield install
    for driver in made:
        assert driver.faults == []
        for fd in driver.fds:
            os.close(fd)


@pytest.mark.parametrize("ours", LAYOUTS, ids=lambda ours: ours.__name__)
def test_structures_are_as_in_vulkan_core_h(ours: Any) -> None:
    layout, size = LAYOUTS[ours]
    assert struct.calcsize(layout + "0P") == ctypes.sizeof(ours) == size


def test_memory_is_the_gpus_and_mapped(installed: Callable[..., FakeVulkan]) -> None:
    """Of the GPU with this UUID, of the first kind that is all that is asked for."""
    driver = installed(flags=(0, LOCAL, VISIBLE | COHERENT | CACHED, BAR1 | CACHED, BAR1))
    gpu = VulkanGpu(UUIDS[1])
    assert (driver.negotiated, driver.instances) == (5, 1)
    first, second = gpu.allocate(COUNT), gpu.allocate(2 * COUNT)
    for memory, size in ((first, COUNT), (second, 2 * COUNT)):
        assert ctypes.sizeof(driver.memory[memory.handle]) == size
        assert memory.address == ctypes.addressof(driver.memory[memory.handle])
    assert [first.fd, second.fd] == driver.fds
    gpu.free(first.handle)
    assert list(driver.memory) == [second.handle]


def test_a_gpu_is_opened_once(installed: Callable[..., FakeVulkan]) -> None:
    driver = installed()
    vulkan_gpu.cache_clear()
    assert vulkan_gpu(UUIDS[1]) is vulkan_gpu(UUIDS[1])
    assert driver.instances == 1
    vulkan_gpu.cache_clear()


@pytest.mark.parametrize("name", MAKING)
def test_a_gpu_that_cannot_be_opened(installed: Callable[..., FakeVulkan], name: str) -> None:
    driver = installed(fails=name)
    with pytest.raises(VulkanError, match=rf"^{name} failed with VkResult -2$"):
        VulkanGpu(UUIDS[1])
    assert driver.instances == 0


@pytest.mark.parametrize("name", GIVING)
def test_memory_that_cannot_be_had(installed: Callable[..., FakeVulkan], name: str) -> None:
    driver = installed(fails=name)
    gpu = VulkanGpu(UUIDS[1])
    with pytest.raises(VulkanError, match=rf"^{name} failed with VkResult -2$"):
        gpu.allocate(COUNT)
    assert driver.memory == {}
    assert driver.fds == []


def test_a_function_that_the_driver_has_not(installed: Callable[..., FakeVulkan]) -> None:
    """As where it lacks the extension."""
    driver = installed(lacks="vkGetMemoryFdKHR")
    with pytest.raises(VulkanError, match=r"^the Vulkan driver has no vkGetMemoryFdKHR$"):
        VulkanGpu(UUIDS[1]).allocate(COUNT)
    assert driver.memory == {}


def test_another_gpu(installed: Callable[..., FakeVulkan]) -> None:
    driver = installed()
    with pytest.raises(VulkanError, match="does not know the GPU with UUID " + "ee" * 16):
        VulkanGpu(b"\xee" * 16)
    assert driver.instances == 0


@pytest.mark.parametrize("flags", [(), (LOCAL, VISIBLE | COHERENT, LOCAL | VISIBLE, LOCAL | COHERENT)], ids=len)
def test_no_memory_of_that_kind(installed: Callable[..., FakeVulkan], flags: tuple[int, ...]) -> None:
    driver = installed(flags=flags)
    with pytest.raises(VulkanError, match="both its own and the host's"):
        VulkanGpu(UUIDS[1])
    assert driver.instances == 0


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing by the first name; by the second what is no driver."""

    def load(name: str) -> Any:
        if name == vm.LIBRARIES[0]:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace()

    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(VulkanError, match=r"^no Vulkan driver: libEGL_nvidia.so.0: cannot open.*; .*no attribute"):
        VulkanGpu(UUIDS[1])


def test_a_driver_that_refuses_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the next one; both say why."""
    drivers = dict(zip(vm.LIBRARIES, (FakeVulkan(), FakeVulkan()), strict=True))
    monkeypatch.setattr(ctypes, "CDLL", drivers.__getitem__)
    first, second = drivers.values()
    first.answer = -9
    VulkanGpu(UUIDS[1])
    assert (first.instances, second.instances) == (0, 1)
    second.answer = -3
    with pytest.raises(VulkanError, match=r"EGL.*answers VkResult -9; .*GLX.*answers VkResult -3$"):
        VulkanGpu(UUIDS[1])
