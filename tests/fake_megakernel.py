"""A stand-in for kernels/megakernel.cu on the fake CUDA device: it reads its program where it lies, and interprets it.

`fake_megakernel()` gives a device on which mode=megakernel runs, and what was launched on it. Instructions run in a
random order that keeps to their waits, over the arenas of the host. Memory that CuPy would give is kept account of: a
launch that points to memory that is not there any more fails, and so does whoever frees what a launch still uses.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda, fake_cuda
from numpy.typing import NDArray

from launchopt.devices.instruction_interpreter import Memory, random_order, run
from launchopt.devices.instructions import WORDS, Instructions

MULTIPROCESSORS = 3
PROGRAM_WORDS = 3  # of struct Program


class OnGpu(np.ndarray[Any, Any]):
    """A NumPy array with an address, as CuPy's has."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class FakeMemory:
    """Of CuPy what `devices.megakernel` calls. `under_way`: addresses that launches use of which no end was awaited."""

    def __init__(self) -> None:
        self._there: weakref.WeakValueDictionary[int, OnGpu] = weakref.WeakValueDictionary()
        self.under_way: set[int] = set()
        self.freed_early: list[int] = []
        stream = SimpleNamespace(synchronize=lambda: None)
        device = SimpleNamespace(attributes={"MultiProcessorCount": MULTIPROCESSORS})
        self.cuda = SimpleNamespace(get_current_stream=lambda: stream, Device=lambda: device)

    def asarray(self, values: NDArray[Any]) -> OnGpu:
        made = values.copy().view(OnGpu)
        address = made.data.ptr
        self._there[address] = made
        weakref.finalize(made, self._freed, address)
        return made

    def zeros(self, size: int, kind: Any) -> OnGpu:
        return self.asarray(np.zeros(size, kind))

    def _freed(self, address: int) -> None:
        if address in self.under_way:
            self.freed_early.append(address)

    def at(self, address: int) -> OnGpu:
        """What lies there, which a launch uses from now on."""
        found = self._there.get(address)
        assert found is not None, f"nothing lies at {address:#x} any more"
        self.under_way.add(address)
        return found


class FakeMegakernel:
    """`launched`: of each launch the instructions."""

    def __init__(self, device: FakeCuda, memory: FakeMemory) -> None:
        self.device, self.memory = device, memory
        self.launched: list[Instructions] = []

    def function(self, file: str, name: str, **defines: int) -> Any:
        """In place of the device's."""
        assert (file, name, defines) == ("megakernel", "megakernel", {})
        return self

    def launch(self, function: Any, threads: int, parameters: Any, stream: Any, shared_bytes: int) -> Any:
        """In place of `KernelLaunch`."""
        assert function is self
        assert (threads, stream, shared_bytes) == (256, self.device.stream, 0)
        (parameter,) = parameters
        assert parameter.nbytes == ctypes.sizeof(ctypes.c_void_p)
        return self._run

    def _run(self, blocks: int, address: int) -> None:
        assert blocks == 2 * MULTIPROCESSORS, "all must be there at once"
        program = self.memory.at(address)
        assert (program.dtype, program.shape) == (np.int64, (PROGRAM_WORDS,))
        table, counters, count = program.tolist()
        instructions = np.asarray(self.memory.at(table))
        assert (instructions.dtype, instructions.shape) == (np.int64, (count, WORDS))
        counting = self.memory.at(counters)
        assert counting.dtype == np.uint32
        assert len(counting) > count, "one an instruction, and one of blocks that left"
        assert not counting.any()
        arrays = {array.ctypes.data: array for array in self.device.arenas.arrays.values()}
        order = random_order(instructions, len(self.launched))
        run(instructions, Memory(arrays), self.device.work.dtype, order)
        self.launched.append(instructions.copy())


@contextmanager
def fake_megakernel() -> Iterator[FakeMegakernel]:
    """The device; skips where `fake_cuda` does. At the end: nothing was freed that was in use."""
    with fake_cuda() as device, pytest.MonkeyPatch.context() as patch:
        from launchopt.devices import megakernel

        memory = FakeMemory()
        made = FakeMegakernel(device, memory)
        patch.setattr(device, "state_of_sequences", None, raising=False)
        patch.setattr(device, "kernels", made)
        patch.setattr(device, "synchronize", memory.under_way.clear)
        patch.setattr(device, "finish", lambda finish=device.finish: memory.under_way.clear() or finish())
        patch.setattr(megakernel, "cupy", memory)
        patch.setattr(megakernel, "KernelLaunch", made.launch)
        yield made
        assert memory.freed_early == []
