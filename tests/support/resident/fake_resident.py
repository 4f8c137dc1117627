"""Fakes of the persistent kernel, its streams and CuPy, on threads: `devices.resident` runs without a GPU.

`FakeKernel` reads the memory that `Resident` prepared for the real kernel, by address. It runs commands in any order
that their dependencies allow. Work on the device's own stream ends at once, so an event only waits for a thread.
"""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.resident import ring as rl
from launchopt.devices.resident.ring import is_sent
from launchopt.kernels.shared import COMMAND_WORDS, END, OUTPUT_WORDS, QUEUE, KernelState
from support.cuda.fake_cuda import FakeCuda, fake_cuda
from support.resident.resident_ring import Posted, Reader, multiplied

PROCESSORS, PATIENCE_S, ELAPSED_MS = 8, 60.0, 0.25
AT_ONCE = 5  # commands taken from the ring and not yet run, among which it chooses the next


def at(address: int, shape: tuple[int, ...], kind: Any) -> Any:
    """Return a view of the memory at an address."""
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.ctypeslib.as_array(pointer, (count,)).view(kind).reshape(shape)


class FakeKernel:
    """A launch of the kernel. parameters: struct Queue of kernels/persistent/queue.cuh."""

    def __init__(self, parameters: Any) -> None:
        words = parameters.values.tolist()
        self.at = self.settings = dict(zip(QUEUE.names or (), words, strict=True))
        capacity = 1 << self.settings["capacity_bits"]
        self._done, self._host_done = (at(self.at[name], (capacity,), np.int64) for name in ("done", "host_done"))
        self._shapes = at(self.at["shapes"], (self.settings["shape_count"], 8), np.int64).tolist()
        self._control, self._progress = at(self.at["control"], (2,), np.int64), at(self.at["progress"], (2,), np.int64)
        ring = at(self.at["ring"], (capacity, COMMAND_WORDS), np.uint64)
        self._reader = Reader(ring, self._host_done, int(self._progress[0]))
        self._chooser = random.Random(7)
        self._open: dict[int, Posted] = {}

    def run(self) -> None:
        """Run commands until END, or until none arrives within the patience."""
        since_s = time.monotonic()
        while True:
            command = self._reader.take() if len(self._open) < AT_ONCE else None
            if command is not None and command.shape != END:
                self._open[self._reader.next - 1] = command
                since_s = time.monotonic()
            elif command is not None:
                while self._open:
                    self._do_one()
                self._complete(self._reader.next - 1)
                return self._end(KernelState.ENDED)
            elif self._open:
                self._do_one()
            elif self._control[1] or time.monotonic() - since_s > self.settings["patience_ns"] * 1e-9:
                self._reader.next += 1
                return self._end(KernelState.GAVE_UP)
            else:
                time.sleep(1e-5)

    def _do_one(self) -> None:
        able = [index for index, each in self._open.items() if index - each.before not in self._open or not each.before]
        index = self._chooser.choice(able)
        command = self._open.pop(index)
        shape = self._shapes[command.shape]
        rows, columns, k, row_elements, column_elements, row_step, column_step, _ = shape
        extents = (
            (rows - 1) * row_elements + k,
            (columns - 1) * column_elements + k,
            (rows - 1) * row_step + (columns - 1) * column_step + 1,
        )
        addresses = command.a, command.b, command.c
        operands = [at(where, (extent,), np.float32) for where, extent in zip(addresses, extents, strict=True)]
        multiplied(shape, *operands)
        if is_sent(ShapeKey(rows, columns, k, Dtype.fp32)):  # sends every small output, as for a lone command
            outputs = at(self.at["host_outputs"], (self._reader.capacity, OUTPUT_WORDS), np.uint64)
            bits = operands[2][: rows * row_step : row_step].view(np.uint32).astype(np.uint64)
            outputs[index % self._reader.capacity, :rows] = np.uint64(index + 1 << rl.STAMP_SHIFT) | bits
        self._complete(index)

    def _complete(self, index: int) -> None:
        self._done[index % len(self._done)] = index + 1
        self._reader.complete(index)

    def _end(self, state: int) -> None:
        self._progress[0] = self._reader.next
        self._control[0] = state


class FakeStream:
    """A stream that runs one kernel at a time, each on its own thread."""

    ptr = 0

    def __init__(self, **how: Any) -> None:
        self._thread: threading.Thread | None = None

    def launch(self, kernel: FakeKernel) -> None:
        self.synchronize()
        self._thread = threading.Thread(target=kernel.run, daemon=True)
        self._thread.start()

    def synchronize(self) -> None:
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), "the kernel hangs"

    def wait_event(self, event: FakeEvent) -> None:
        event.stream.synchronize()

    def __enter__(self) -> FakeStream:
        FakeResidentCuda.current = self
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: the device is idle wherever later work runs."""


class FakeEvent:
    """An event that waits for everything recorded on a stream."""

    def __init__(self, **how: Any) -> None:
        self.stream = FakeStream()

    def record(self, stream: FakeStream) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        self.stream.synchronize()


class FakeArray:
    """The part of a CuPy array that `Resident` uses."""

    def __init__(self, values: Any) -> None:
        self.values, self.data = values, SimpleNamespace(ptr=values.ctypes.data)

    def fill(self, value: int) -> None:
        self.values.fill(value)

    def __getitem__(self, part: slice) -> FakeArray:
        return FakeArray(self.values[part])


class FakeResidentCuda(FakeCuda):
    """A fake device whose kernels are `FakeKernel`s."""

    current: Any = None
    file, macros = "", {}

    def use(self, plans: Any, file: str, name: str, head: str = "", **macros: int) -> Any:
        """Replace `KernelPlans.function`: return a launcher of a `FakeKernel`."""
        assert file == name in ("persistent", "echo")
        self.file, self.macros = file, macros
        return lambda grid, block, arguments: FakeResidentCuda.current.launch(FakeKernel(*arguments))


def _wait_value(stream: int, address: int, value: int, kind: int) -> int:
    limit_s = time.monotonic() + PATIENCE_S
    while int(at(address, (1,), np.int64)[0]) < value:
        assert time.monotonic() < limit_s, "waits for a command that is never done"
        time.sleep(1e-5)
    return 0


def _fake_cupy() -> Any:
    attributes = {"MultiProcessorCount": PROCESSORS}
    cuda = SimpleNamespace(
        Device=lambda: SimpleNamespace(attributes=attributes),
        Stream=FakeStream,
        Event=FakeEvent,
        get_current_stream=FakeStream,
        get_elapsed_time=lambda begin, end: ELAPSED_MS,
    )
    return SimpleNamespace(cuda=cuda, zeros=lambda size, kind: FakeArray(np.zeros(size, kind)), asarray=FakeArray)


@contextmanager
def fake_resident_cuda() -> Iterator[Any]:
    """Yield a fake device on which mode=persistent runs."""
    with fake_cuda(FakeResidentCuda) as device, pytest.MonkeyPatch.context() as patch:
        from launchopt.devices.cublaslt.kernel_plans import KernelPlans
        from launchopt.devices.resident import kernel as resident

        driver = SimpleNamespace(cuStreamWaitValue64_v2=_Function())
        names = {name: getattr(ctypes, name) for name in ("c_void_p", "c_uint64", "c_uint")}
        patch.setattr(resident, "ctypes", SimpleNamespace(CDLL=lambda name: driver, **names))
        patch.setattr(resident, "cupy", _fake_cupy())
        patch.setattr(resident, "pinned", np.zeros)
        patch.setattr(KernelPlans, "function", lambda plans, *names, **macros: device.use(plans, *names, **macros))
        device.stream = FakeStream()
        yield device


class _Function:
    argtypes: Any = None

    def __call__(self, *words: int) -> int:
        return _wait_value(*words)
