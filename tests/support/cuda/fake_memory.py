"""Memory of the host that tests take for a GPU's: arrays with an address, and account of which of them are still there.

`FakeMemory` is what CuPy gives `devices.megakernel`; whoever launches says what it uses, and an array that is freed
while a launch uses it is noted.
"""

from __future__ import annotations

import ctypes
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray


class OnGpu(np.ndarray[Any, Any]):
    """A NumPy array with an address, as CuPy's has."""

    @property
    def data(self) -> Any:
        at = self.ctypes.data
        return SimpleNamespace(
            ptr=at, copy_from_host_async=lambda source, size, stream: ctypes.memmove(at, source, size)
        )


class FakeMemory:
    """Of CuPy what `devices.megakernel` calls. `under_way`: addresses that launches use of which no end was awaited."""

    def __init__(self, multiprocessors: int, shared_bytes: int) -> None:
        self._there: weakref.WeakValueDictionary[int, OnGpu] = weakref.WeakValueDictionary()
        self.under_way: set[int] = set()
        self.freed_early: list[int] = []
        stream = SimpleNamespace(synchronize=lambda: None)
        attributes = {"MultiProcessorCount": multiprocessors, "MaxSharedMemoryPerBlockOptin": shared_bytes}
        device = SimpleNamespace(attributes=attributes, compute_capability="90")
        self.cuda = SimpleNamespace(get_current_stream=lambda: stream, Device=lambda: device)

    def asarray(self, values: NDArray[Any]) -> OnGpu:
        made = values.copy().view(OnGpu)
        address = made.data.ptr
        self._there[address] = made
        weakref.finalize(made, self._freed, address)
        return made

    def zeros(self, size: int, kind: Any) -> OnGpu:
        return self.asarray(np.zeros(size, kind))

    def full(self, size: int, value: int, kind: Any) -> OnGpu:
        return self.asarray(np.full(size, value, kind))

    def holding(self, address: int) -> OnGpu:
        """The array that begins there."""
        return self._there[address]

    def _freed(self, address: int) -> None:
        if address in self.under_way:
            self.freed_early.append(address)

    def at(self, address: int) -> OnGpu:
        """What lies there, which a launch uses from now on."""
        found = self._there.get(address)
        assert found is not None, f"nothing lies at {address:#x} any more"
        self.under_way.add(address)
        return found
