"""The rates of a GPU's memory, on a fake CuPy whose copies and reads take given times."""

from __future__ import annotations

import contextlib
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

import pytest
from support.cuda.libraries import imported

from launchopt.timing.activity import Bandwidths

ceilings: Any = imported("launchopt.devices.cuda.ceilings")
FREE_BYTES = 4 << 30
COPY_MS, READ_MS, GEMM_MS = 1.0, 0.25, 2.0


class FakeCupy:
    """Adds to `now_ms` what each piece of work takes, the first of its kind ten times as long."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._done: set[float] = set()
        pointer = SimpleNamespace(copy_from_device_async=lambda source, size, stream: self.works(COPY_MS))
        self.full = self.zeros = lambda *_: SimpleNamespace(data=pointer)
        self.empty_like = lambda array: array
        self.RawKernel = lambda source, name: lambda grid, block, arguments: self.works(READ_MS)
        self.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
        self.cuda = SimpleNamespace(
            Device=lambda: SimpleNamespace(attributes={"MultiProcessorCount": 132}),
            Event=lambda: FakeEvent(self),
            get_elapsed_time=lambda start, end: end.at_ms - start.at_ms,
            runtime=SimpleNamespace(memGetInfo=lambda: (FREE_BYTES, 2 * FREE_BYTES)),
        )

    def works(self, ms: float) -> None:
        self.now_ms += ms if ms in self._done else 10 * ms
        self._done.add(ms)


class FakeEvent:
    def __init__(self, clock: FakeCupy) -> None:
        self._clock, self.at_ms = clock, 0.0

    def record(self, stream: object) -> None:
        self.at_ms = self._clock.now_ms

    def synchronize(self) -> None:
        pass


def test_the_memory_measured_again_is_measured_as_before_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCupy()
    monkeypatch.setattr(ceilings, "cupy", fake)
    stream: Any = contextlib.nullcontext()
    size = FREE_BYTES // 4
    expected = Bandwidths(2 * size / COPY_MS * 1e-6, size / READ_MS * 1e-6)
    before = ceilings.measure(lambda: fake.works(GEMM_MS), 10**12, stream)
    assert astuple(before) == pytest.approx((*astuple(expected), 500.0))
    assert before.bandwidths == ceilings.measure_memory(stream)
