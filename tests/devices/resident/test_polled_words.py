"""Words that a kernel polls: where they lie, and that all is given back; the Vulkan driver and CUDA are stand-ins."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launchopt.devices.resident.vulkan_memory import Memory, VulkanError

pytest.importorskip("cupy")
from launchopt.devices.resident import polled_words as pw

GRANULE, GPU_ADDRESS, HANDLE, IMPORTED, ORDINAL, OPAQUE_FD = 1 << 16, 0x7F_0000_0000, 77, 88, 3, 1
UUID = bytes([1, 0, *range(14)])


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_SUPPORTED = 801


class Rig:
    """A GPU that both drivers know. `called`: by whom it is given back; `fails`: a call of CUDA's."""

    def __init__(self) -> None:
        self.called, self.fails, self.refusal = list[tuple[str, int]](), "", ""
        self.fds, self.memory = list[int](), ctypes.create_string_buffer(1)
        kinds = SimpleNamespace(CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD=OPAQUE_FD)
        self.driver = SimpleNamespace(
            CUexternalMemoryHandleType=kinds,
            CUDA_EXTERNAL_MEMORY_HANDLE_DESC=lambda: SimpleNamespace(handle=SimpleNamespace()),
            CUDA_EXTERNAL_MEMORY_BUFFER_DESC=SimpleNamespace,
            cuDeviceGetUuid=self.uuid,
            cuImportExternalMemory=self.imported,
            cuExternalMemoryGetMappedBuffer=self.mapped,
            cuMemFree=lambda address: self.called.append(("cuMemFree", address)),
            cuDestroyExternalMemory=lambda memory: self.called.append(("cuDestroyExternalMemory", memory)),
        )

    def vulkan_gpu(self, uuid: bytes) -> Any:
        assert uuid == UUID
        if self.refusal:
            raise VulkanError(self.refusal)
        return self

    def allocate(self, count: int) -> Memory:
        self.memory = ctypes.create_string_buffer(b"\xff" * count, count)
        self.fds.append(os.open(os.devnull, os.O_RDONLY))
        return Memory(ctypes.addressof(self.memory), self.fds[-1], HANDLE)

    def free(self, handle: int) -> None:
        self.called.append(("vkFreeMemory", handle))

    def answer(self, name: str, value: Any) -> tuple[Status, Any]:
        if name == self.fails:
            return Status.CUDA_ERROR_NOT_SUPPORTED, None
        return Status.CUDA_SUCCESS, value

    def uuid(self, ordinal: int) -> Any:
        assert ordinal == ORDINAL
        return self.answer("cuDeviceGetUuid", SimpleNamespace(bytes=UUID))

    def imported(self, wanted: Any) -> Any:
        assert (wanted.type, wanted.handle.fd, wanted.size) == (OPAQUE_FD, self.fds[-1], len(self.memory))
        if self.fails != "cuImportExternalMemory":
            os.close(wanted.handle.fd)  # it is CUDA's now
        return self.answer("cuImportExternalMemory", IMPORTED)

    def mapped(self, memory: int, wanted: Any) -> Any:
        assert (memory, wanted.size) == (IMPORTED, len(self.memory))
        return self.answer("cuExternalMemoryGetMappedBuffer", GPU_ADDRESS)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig()
    runtime = SimpleNamespace(getDevice=lambda: ORDINAL)
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=made.driver))  # type: ignore[arg-type]
    monkeypatch.setattr(pw, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr(pw, "vulkan_gpu", made.vulkan_gpu)
    monkeypatch.setattr(pw, "platform", SimpleNamespace(machine=lambda: "x86_64"))
    monkeypatch.setattr(pw, "pinned", np.ones)
    yield made
    gc.collect()
    for fd in made.fds:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)


def in_host_memory(words: pw.PolledWords, count: int, why: str) -> bool:
    assert words.address == words.array.ctypes.data
    assert words.array.tolist() == [0] * count
    return not words.is_near and (words.why_not, words.where) == (why, f"host memory: {why}")


@pytest.mark.parametrize(("count", "granules"), [(1, 1), (GRANULE // 8, 1), (GRANULE // 8 + 1, 2)])
def test_they_lie_in_the_gpus_memory(rig: Rig, count: int, granules: int) -> None:
    words = pw.PolledWords(count, np.uint64)
    assert (words.is_near, words.why_not, words.where) == (True, "", "GPU memory, by BAR1")
    assert (words.address, words.array.ctypes.data) == (GPU_ADDRESS, ctypes.addressof(rig.memory))
    assert (words.array.dtype, words.array.tolist()) == (np.uint64, [0] * count)
    assert len(rig.memory) == granules * GRANULE
    assert rig.memory.raw[8 * count :] == b"\xff" * (granules * GRANULE - 8 * count), "of nobody"
    words.array[-1] = 5
    assert rig.memory.raw[8 * count - 8] == 5
    words.clear()
    assert not words.array.any()
    assert rig.called == []


def test_they_are_given_back(rig: Rig) -> None:
    """When nobody has them any more, in the reverse of how they came."""
    words = pw.PolledWords(8, np.int64)
    assert rig.called == []
    del words
    gc.collect()
    assert rig.called == [("cuMemFree", GPU_ADDRESS), ("cuDestroyExternalMemory", IMPORTED), ("vkFreeMemory", HANDLE)]


def test_they_need_not_lie_there(rig: Rig) -> None:
    assert in_host_memory(pw.PolledWords(8, np.int64, near=False), 8, "mode.bar1=false")
    assert rig.fds == []


def test_a_host_that_was_not_tried(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pw, "platform", SimpleNamespace(machine=lambda: "aarch64"))
    assert in_host_memory(pw.PolledWords(8, np.int64), 8, "not tried on aarch64")
    assert rig.fds == []


def test_a_profiler(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/tool.so")
    assert in_host_memory(pw.PolledWords(8, np.int64), 8, "not tried under a profiler")
    assert rig.fds == []


def test_a_driver_that_has_no_such_memory(rig: Rig) -> None:
    rig.refusal = "no Vulkan driver: it is not there"
    assert in_host_memory(pw.PolledWords(8, np.int64), 8, rig.refusal)


@pytest.mark.parametrize(
    ("name", "given_back"),
    [
        ("cuDeviceGetUuid", []),
        ("cuImportExternalMemory", [("vkFreeMemory", HANDLE)]),
        ("cuExternalMemoryGetMappedBuffer", [("cuDestroyExternalMemory", IMPORTED), ("vkFreeMemory", HANDLE)]),
    ],
)
def test_what_cuda_will_not_have(rig: Rig, name: str, given_back: list[tuple[str, int]]) -> None:
    """All is given back at once, the file descriptor too, and once."""
    rig.fails = name
    words = pw.PolledWords(8, np.int64)
    assert in_host_memory(words, 8, f"{name}: CUDA_ERROR_NOT_SUPPORTED")
    assert rig.called == given_back
    del words
    gc.collect()
    assert rig.called == given_back
