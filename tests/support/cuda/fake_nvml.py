"""A stand-in for NVML: GPUs that draw the power that the test sets, and a clock that only sleeping moves."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from launchopt.timing import nvml
from runner.run import run as run_module

MS = 1_000_000
UUID = bytes(range(16))
NAMED = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
OTHER_UUID = bytes(range(16, 32))
OTHER = "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"


class NVMLError(Exception):
    pass


class Clock:
    """A clock that only advances when the code under test sleeps or reads NVML."""

    def __init__(self) -> None:
        self.ns = 5_000_000_000

    def monotonic_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


class Board(ModuleType):
    """A fake of the module `pynvml`, with GPUs that always draw `power_w`. None: NVML does not report it.

    other_clock_mhz: of the second GPU; None: there is one GPU.
    """

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    clock_mhz: int | None = 1980
    other_clock_mhz: int | None = None
    power_w: float | None = 400.0
    reasons: int | None = 0
    old_reasons: int | None = None
    step_ns, phase_ns = 20 * MS, 3 * MS
    answers = True

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__("pynvml")
        self._now_ns = now_ns

    def _reported(self, value: Any) -> Any:
        if value is None:
            raise NVMLError("Not Supported")
        return value

    def nvmlInit(self) -> None:  # noqa: N802
        self._reported(self.answers or None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        known = (NAMED,) if self.other_clock_mhz is None else (NAMED, OTHER)
        return str(self._reported(uuid if uuid in known else None))

    def nvmlDeviceGetClockInfo(self, gpu: str, kind: int) -> int:  # noqa: N802
        assert kind == self.NVML_CLOCK_SM
        return int(self._reported({NAMED: self.clock_mhz, OTHER: self.other_clock_mhz}[gpu]))

    def nvmlDeviceGetPowerUsage(self, gpu: str) -> int:  # noqa: N802
        return int(self._reported(self.power_w) * 1000)

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: str) -> int:  # noqa: N802
        return int(self._reported(self.reasons))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: str) -> int:  # noqa: N802
        return int(self._reported(self.old_reasons))

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: str) -> int:  # noqa: N802
        watts = self._reported(self.power_w)
        steps = (self._now_ns() - self.phase_ns) // self.step_ns
        return int(watts * steps * self.step_ns / MS)


def installed(monkeypatch: pytest.MonkeyPatch, board: Board) -> Board:
    monkeypatch.setitem(sys.modules, "pynvml", board)
    monkeypatch.setattr(run_module, "uuid_of", lambda index: UUID)
    monkeypatch.setattr(nvml, "_steps_ns", {})
    return board
