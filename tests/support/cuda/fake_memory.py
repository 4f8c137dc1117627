"""Memory of the host in place of a GPU's: arrays with an address, and a record of which are still alive.

`FakeMemory` stands for CuPy in `devices.megakernel`. A launch names the arrays that it uses; an array that is freed
while a launch uses it is recorded.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray


class OnGpu(np.ndarray[Any, Any]):
    """A NumPy array with CuPy's way to its address."""

    def get(self) -> NDArray[Any]:
        """Return a copy as a plain array of the host."""
        return np.array(self)

    @property
    def data(self) -> Any:
        at = self.ctypes.data
        return SimpleNamespace(
            ptr=at, copy_from_host_async=lambda source, size, stream: ctypes.memmove(at, source, size)
        )


_alive: dict[int, weakref.ref[OnGpu]] = {}  # arrays by their address
_changing = threading.RLock()  # ranks are threads, which allocate while others look


def allocated(array: NDArray[Any]) -> OnGpu:
    """Return an array as memory of the GPU, whose end `require_inside` knows."""
    made = array.view(OnGpu)
    address, known = made.ctypes.data, weakref.ref(made)
    with _changing:
        _alive[address] = known
    return made


def require_inside(address: int, size: int) -> None:
    """Raise AssertionError for bytes that begin in an allocated array and reach beyond its end."""
    with _changing:
        arrays = _alive.copy()
    for start, known in arrays.items():
        array = known()
        if array is None:
            _forget(start, known)
        elif start <= address < start + array.nbytes:
            beyond = address + size - start - array.nbytes
            assert beyond <= 0, f"an operand of {size} bytes ends {beyond} bytes behind its memory"


def _forget(address: int, known: weakref.ref[OnGpu]) -> None:
    """Drop an array that is gone, unless another one lies at its address by now."""
    with _changing:
        if _alive.get(address) is known:
            del _alive[address]


class FakeMemory:
    """The part of CuPy that `devices.megakernel` calls. `under_way`: addresses that unfinished launches use."""

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
        """Return the array that begins at an address."""
        return self._there[address]

    def _freed(self, address: int) -> None:
        if address in self.under_way:
            self.freed_early.append(address)

    def at(self, address: int) -> OnGpu:
        """Return the array at an address, which a launch uses from now on."""
        found = self._there.get(address)
        assert found is not None, f"nothing lies at {address:#x} any more"
        self.under_way.add(address)
        return found
