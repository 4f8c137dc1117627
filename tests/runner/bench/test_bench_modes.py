"""Python around launch calls: every mode that launches from Python has a figure, of what is not within its calls."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launchopt.command import Dtype
from launchopt.modes import MODES, mode_class
from launchopt.queue.ring import Ring
from launchopt.workloads.gemv import gemv
from runner.bench import figures, modes
from runner.bench.__main__ import main
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.worker.consumer import Consumer

NAP_S, NAP_US = 0.002, 2000.0
BATCH = 16


def measurable(device: str) -> set[str]:
    """Modes that can run here, and do so from Python; but for those of quantised weights alone."""
    classes = {name: mode_class(name) for name in MODES}
    return {
        name
        for name, mode in classes.items()
        if not (mode.compiled_loop or mode.quantises_inputs) and device in mode.devices and mode.lacks() is None
    }


def test_every_mode_that_launches_from_python_has_a_figure(tmp_path: Path) -> None:
    assert main(["modes", "--device", "cpu", "--repeats", "1", "--output", str(tmp_path)]) == 0
    rows = figures.read(tmp_path)
    assert {row["case"].partition(":")[0] for row in rows} == measurable("cpu")
    assert len({row["case"] for row in rows}) == len(rows)
    for row in rows:
        assert (row["suite"], row["unit"], row["goal"]) == ("modes", "us", None)
        assert len(row["samples"]) == modes.BURSTS
        assert all(math.isfinite(sample) and sample > 0 for sample in row["samples"])
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.gpu
def test_on_a_gpu_there_is_a_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = tuple(name for name in MODES if not mode_class(name).packages)  # PyTorch's take minutes to compile
    monkeypatch.setattr(modes, "MODES", quick)
    found = list(modes.suite(1, "cuda"))
    assert {figure.case.partition(":")[0] for figure in found} == measurable("cuda") & set(quick)
    assert {figure.goal for figure in found} == {modes.GOAL_US}
    assert all(sample > 0 for figure in found for sample in figure.samples)


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Of pointer_array on the CPU, where a batch is one launch call."""
    monkeypatch.setattr(modes, "BUCKET", BATCH)
    stream = gemv(8, 1, 16, 4 * BATCH, Dtype.fp32, 4 * BATCH)
    arms = (Arm("pointer_array", BATCH, 0.0, None),)
    with Ring.create(256) as ring, Consumer(job(stream, ring, "cpu", arms)) as consumer:
        yield consumer
        gc.enable()
        gc.unfreeze()


def slowly(function: Callable[..., None]) -> Callable[..., None]:
    def slow(*arguments: Any) -> None:
        time.sleep(NAP_S)
        function(*arguments)

    return slow


def test_time_within_a_launch_call_is_taken_off(consumer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = modes.batches_of(consumer.device.work)
    assert [len(batch) for batch in batches] == [BATCH] * 4
    monkeypatch.setattr(consumer.device, "execute", slowly(consumer.device.execute))
    assert 0 < modes.around_us(consumer, 0, batches) < NAP_US / 4


def test_time_outside_of_launch_calls_is_left(consumer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = modes.batches_of(consumer.device.work)
    monkeypatch.setattr(consumer.prepared[0], "submit", slowly(consumer.prepared[0].submit))
    assert modes.around_us(consumer, 0, batches) >= NAP_US


def test_a_burst_is_shorter_than_the_launch_queue(consumer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "MOST_CALLS", 3)
    modes.around_us(consumer, 0, modes.batches_of(consumer.device.work))
    assert consumer.recorder.launch_calls == 3
    monkeypatch.setattr(modes, "MOST_CALLS", 1_000_000)
    modes.around_us(consumer, 0, modes.batches_of(consumer.device.work))
    assert consumer.recorder.launch_calls == modes.MOST_SUBMITS
