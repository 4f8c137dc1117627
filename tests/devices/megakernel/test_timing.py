"""Single launches of a step: positions, copies of the weights, memory, and that stamps change no result.

It runs on the host: with a device that records its calls, NumPy arrays, and programs that write chosen values.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cuda.libraries import imported
from support.megakernel.fake_megakernel import MULTIPROCESSORS, fake_megakernel
from support.steps.programs import stream_of
from support.steps.step_runs import StepRun

from launchopt.command import Dtype
from launchopt.devices.steps.stages import step_of
from launchopt.errors import RunError
from launchopt.modes.megakernel import MegakernelMode
from launchopt.streams.operands import ArenaKey

mt: Any = imported("launchopt.devices.megakernel.timing")

COPIES = 3
LEFT, RIGHT, WRONG = 7, 8, 1  # memory after the run, after another launch of the step, and after one without weights


class OnGpu(np.ndarray[Any, Any]):
    """The part of a CuPy array that the module uses."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(array=self, copy_from_device_async=self._filled)

    def _filled(self, source: Any, size: int, stream: Any) -> None:
        assert size == self.nbytes == source.array.nbytes
        self[...] = source.array

    def get(self) -> Any:
        return np.array(self)


def on_gpu(values: Any, kind: Any = np.int32) -> Any:
    return np.array(values, kind).view(OnGpu)


class Stream(nullcontext[None]):
    """A CuPy stream, as a context manager."""


class Event:
    """An event that records its time. The clock advances by a microsecond for each entry of the log."""

    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def record(self, stream: Stream) -> None:
        self.at_us = len(self._log)
        self._log.append("event")


class Program:
    """A program whose launch writes a chosen value into memory and advances positions, as a step does."""

    def __init__(self, rig: Rig, replica: int, macros: dict[str, int], stamped: bool) -> None:
        self._rig, self._replica, self._name = rig, replica, "+".join(macros) or "plain"
        self.stamps = on_gpu([[[1, 2, 3], [1735, 1000, 0]]], np.int64)
        self._writes = WRONG if "WITHOUT" in macros else rig.stamped_writes if stamped else RIGHT
        assert stamped == ("STAMPS" in macros)

    def launch(self) -> None:
        rig = self._rig
        rig.log.append((self._name, self._replica))
        rig.stood.append(rig.positions.tolist())
        rig.positions += 1
        rig.memory[:] = self._writes


class Rig:
    """A fake of the device and of its `Megakernel`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stamped_writes: int = RIGHT) -> None:
        self.log: list[Any] = []
        self.stood: list[Any] = []
        self.stamped_writes, self.clock = stamped_writes, {"sm_clock_mhz": 1980}
        self.positions, self.memory, self.weight = on_gpu([[5, 5], [6, 6]]), on_gpu([LEFT] * 4), on_gpu([9])
        arrays = {ArenaKey("c", 1, 4, Dtype.fp32): self.memory, ArenaKey("a", 1, 1, Dtype.fp32): self.weight}
        self.arenas = SimpleNamespace(arrays=arrays)
        self.state_of_sequences = SimpleNamespace(positions=self.positions)
        self.work, self.stream = SimpleNamespace(requests=2, replicas=COPIES), Stream()
        monkeypatch.setattr(mt, "chain_of", lambda work: work)
        monkeypatch.setattr(mt, "step_of", lambda work, requests, replica: replica)
        events = SimpleNamespace(
            Event=lambda: Event(self.log), get_elapsed_time=lambda one, other: (other.at_us - one.at_us) / 1e3
        )
        monkeypatch.setattr(mt, "cupy", SimpleNamespace(cuda=events))
        rig: Any = self
        self.timing = mt.StepTiming(rig, rig)

    def instructions_of(self, batch: int) -> int:
        return batch

    def variant(self, instructions: int, macros: Any, stamped: bool) -> Program:
        return Program(self, instructions, macros, stamped)

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def state(self) -> dict[str, Any]:
        self.log.append("state")
        return self.clock


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_each_launch_is_the_last_step_again(rig: Rig) -> None:
    rig.memory[:] = 0
    rig.timing.launches_us(rig.timing.programs(), 5)
    assert rig.stood == [[[5, 5], [5, 5]]] * (mt.WARM_UP + 5), "positions are those of the last step"


def test_launches_use_the_copies_in_turn_and_are_queued_ahead(rig: Rig) -> None:
    rig.log.clear()
    times = rig.timing.launches_us(rig.timing.programs(), 5)
    assert times == [2.0] * 5, "one us for the event, one for the launch"
    launches = [each for each in rig.log if isinstance(each, tuple)]
    in_turn = [("plain", i % COPIES) for i in range(mt.WARM_UP + 5)]
    assert launches[: mt.WARM_UP] == in_turn[: mt.WARM_UP]
    assert launches[mt.WARM_UP :] == in_turn[:5]
    assert rig.log[mt.WARM_UP :] == [
        *(part for each in in_turn[:5] for part in ("event", each, "event")),
        "synchronize",
    ]


def test_stamped_launches_are_queued_ahead(rig: Rig) -> None:
    plain, stamped = rig.timing.programs(), rig.timing.programs(mt.WITH_STAMPS)
    rig.log.clear()
    found = rig.timing.stamped(stamped, plain, 4)
    assert [(each.us, each.stamps.tolist(), each.clock_mhz) for each in found] == [(2.0, [[[1, 2, 3]]], 1735.0)] * 4
    assert rig.log[:5] == [("plain", COPIES - 1), "event", ("STAMPS", 0), "event", "synchronize"]


def test_stamps_change_no_byte(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    def checked(rig: Rig, spoiling: Any = mt.WITHOUT_WEIGHTS) -> None:
        rig.timing.require_same(*(rig.timing.programs(macros) for macros in (mt.WITH_STAMPS, mt.PLAIN, spoiling)))

    checked(rig)
    with pytest.raises(RunError, match="writes stamps"):
        checked(Rig(monkeypatch, stamped_writes=RIGHT + 1))
    with pytest.raises(RunError, match="not fetched"):
        checked(rig, mt.PLAIN)


def test_the_clock_is_asked_for_while_launches_are_under_way(rig: Rig) -> None:
    rig.log.clear()
    assert rig.timing.nvml_clock_mhz(rig.timing.programs()) == 1980.0
    assert rig.log[0] == "state"
    assert rig.log[-2:] == ["state", "synchronize"]
    assert len(rig.log) == mt.CLOCK_LAUNCHES + 3
    rig.clock = {"nvml": "not there"}
    assert rig.timing.nvml_clock_mhz(rig.timing.programs()) is None


def test_weights_are_left_alone(rig: Rig) -> None:
    rig.weight[:] = 10
    rig.timing.launches_us(rig.timing.programs(), 1)
    assert rig.weight.tolist() == [10]


def test_macros_reach_the_compiler_and_make_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_megakernel() as kernel:
        mode, stream = MegakernelMode(), stream_of("square", [(0, 4)] * 3)
        device: Any = kernel.device
        run = StepRun(mode, stream, 3, device)
        compiled: list[dict[str, int]] = []
        monkeypatch.setattr(
            kernel, "function", lambda file, name, head, **defines: compiled.append(defines) or SimpleNamespace()
        )
        monkeypatch.setattr("launchopt.devices.megakernel.launcher.KernelLaunch", lambda function, *more: function)
        prepared: Any = run.prepared
        instructions = prepared.steps.instructions_of(step_of(stream, 3, 0))
        plain = prepared.steps.variant(instructions)
        assert compiled == [], "the mode has compiled it"
        assert plain.stamps.size == 0
        for macros in (mt.WITH_STAMPS, mt.WITHOUT_WEIGHTS, mt.WITHOUT_WEIGHTS, mt.WITHOUT_WAITS):
            made = prepared.steps.variant(instructions, macros, "STAMPS" in macros)
            assert made.stamps.shape[0] == (MULTIPROCESSORS if "STAMPS" in macros else 0)
        assert [{name: each[name] for name in ("STAMPS", "WITHOUT") if name in each} for each in compiled] == [
            mt.WITH_STAMPS,
            mt.WITHOUT_WEIGHTS,
            mt.WITHOUT_WAITS,
        ]
        device.synchronize()
        run.close()
