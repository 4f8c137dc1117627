"""A rate above what was measured: before it is called impossible, what is possible is measured again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from launchopt.command import Dtype
from launchopt.devices.base import Ceilings
from runner import consumer as module
from runner.consumer import Consumer

KEY = ("cpu", 0, 2, Dtype.fp32)


def measured(again: Ceilings, monkeypatch: pytest.MonkeyPatch) -> tuple[Consumer, list[Dtype]]:
    """A consumer whose ceilings were measured on a busy machine, and would now be `again`."""
    asked: list[Dtype] = []
    made: Any = object.__new__(Consumer)
    made._job = SimpleNamespace(device_index=0, threads=2, residency=None)
    made._stream = SimpleNamespace(dtype=Dtype.fp32)
    made.device = SimpleNamespace(info=SimpleNamespace(kind="cpu"), ceilings=lambda dtype: asked.append(dtype) or again)
    made._ceilings = Ceilings(10.0, 10.0, 0.001)
    monkeypatch.setattr(module, "_ceilings", {KEY: made._ceilings})
    return made, asked


ROW = {"achieved_tflops": 0.002, "achieved_gb_per_s": 1.0}


def test_a_ceiling_measured_on_a_busy_machine_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, asked = measured(Ceilings(8.0, 12.0, 0.1), monkeypatch)
    assert consumer._above_ceiling(ROW) == (None, False)
    assert asked == [Dtype.fp32]
    assert consumer._ceilings == module._ceilings[KEY] == Ceilings(10.0, 12.0, 0.1)


def test_what_stays_above_is_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, _ = measured(Ceilings(8.0, 12.0, 0.0015), monkeypatch)
    assert consumer._above_ceiling(ROW) == ("0.002 TFLOP/s is above the measured peak of 0.0015", True)


def test_what_is_possible_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, asked = measured(Ceilings(8.0, 12.0, 0.1), monkeypatch)
    assert consumer._above_ceiling(ROW | {"achieved_tflops": 0.0005}) == (None, False)
    assert asked == []
