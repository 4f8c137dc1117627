"""runner.bench resident and stream: what the kernel that stays takes for one command, and for many in its ring."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cuda.libraries import imported
from support.resident.fake_resident import ELAPSED_MS, FakeResidentCuda, fake_resident_cuda

from launchopt.command import Dtype
from launchopt.modes import mode_class
from launchopt.recording.recorder import Recorder
from runner.bench import resident
from runner.bench.__main__ import main
from runner.plan.job import Job

LEAST = {"nothing", "alone"}  # in names of what has no goal


class OnFake:
    """In place of a `Consumer`: mode persistent on a device whose kernel is a stand-in. Copies 2 bytes a ns."""

    device: FakeResidentCuda

    def __init__(self, job: Job) -> None:
        (arm,) = job.arms
        self.device.open(job.stream, Recorder(job.stream.commands), seed=0)
        limits = dict.fromkeys(job.stream.shapes, 1)
        self.prepared = [mode_class(arm.mode)(**arm.options).prepare(self.device, limits)]

    def __enter__(self) -> OnFake:
        return self

    def __exit__(self, *error: object) -> None:
        self.prepared[0].close()

    def about(self) -> dict[str, Any]:
        return {"ceilings": {"copy_gb_per_s": 2.0}}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeResidentCuda]:
    monkeypatch.setattr(resident, "Consumer", OnFake)
    monkeypatch.setattr(resident, "COMMANDS", 30)
    monkeypatch.setattr(resident, "CASES", ((3, 8, True), (2, 7, False)))
    monkeypatch.setattr(resident, "STREAMS", ((3, 5, Dtype.fp32, 40), (2, 7, Dtype.fp32, 25)))
    with fake_resident_cuda() as found:
        monkeypatch.setattr(OnFake, "device", found, raising=False)
        yield found


def test_a_lone_commands_median_and_99th_percentile(device: FakeResidentCuda) -> None:
    found = {}
    for figure in resident.suite(2, "cuda"):
        found[figure.case] = figure
        assert device.file == ("echo" if "words alone" in figure.case else "persistent")
        assert device.macros.get("WITHOUT") == (1 if "nothing multiplied" in figure.case else None)
    small, other = "3x1x8 fp32, hot", "2x1x7 fp32, from memory"
    ends = ("its outputs with the host", "as much sent, nothing multiplied", "its words alone", "complete")
    whats = [f"{small}, {end}" for end in ends]
    cases = [f"one command there and back, {what}" for what in (*whats, f"{other}, complete")]
    assert list(found) == [f"{case}, p{percent}" for case in cases for percent in (50, 99)]
    for case in cases:
        half, most = (found[f"{case}, p{percent}"] for percent in (50, 99))
        assert len(half.samples) == len(most.samples) == 2
        assert all(0 < p50 <= p99 for p50, p99 in zip(half.samples, most.samples, strict=True))
        assert (half.goal, most.goal) == (None if LEAST & set(case.split()) else resident.GOAL_US, None)


def test_outputs_that_the_host_was_not_sent_are_no_figure(
    device: FakeResidentCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit of one output of each is another in C."""
    right = resident.verify

    def changed(stream: Any, arenas: Any, *how: Any) -> Any:
        found = right(stream, arenas, *how)
        for arena, array in arenas.arrays.items():
            if arena.role == "c":
                array.view("uint32")[:, 1] ^= 1
        return found

    monkeypatch.setattr(resident, "verify", changed)
    with pytest.raises(AssertionError, match="outputs that the host received differ from C"):
        next(iter(resident.suite(1, "cuda")))


def test_a_stream_with_products_without_and_at_the_least(device: FakeResidentCuda) -> None:
    found = {figure.case: figure.samples for figure in resident.streams(3, "cuda")}
    of_both = [
        found[f"a command of {case}"]
        for case in ("40 3x1x5 fp32, nothing multiplied", "25 2x1x7 fp32, as they wait in the ring")
    ]
    assert of_both == [pytest.approx([ELAPSED_MS * 1e6 / commands] * 3) for commands in (40, 25)]
    least = found["a command of 40 3x1x5 fp32, its bytes at the measured copy bandwidth"]
    assert least == [4 * (3 * 5 + 5 + 3) / 2.0]
    assert device.macros == resident.WITHOUT_PRODUCTS.macros


def test_outputs_that_are_wrong_are_no_figure(device: FakeResidentCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.resident.fake_resident.multiplied", lambda *operands: None)
    for figures in (resident.suite, resident.streams):
        with pytest.raises(AssertionError, match="outputs wrong"):
            next(iter(figures(1, "cuda")))


@pytest.mark.parametrize("part", ["resident", "stream"])
def test_another_device_is_left_out(part: str, tmp_path: Path) -> None:
    assert main([part, "--device", "cpu", "--output", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_stream_and_its_end_fit_into_the_ring() -> None:
    kernel = imported("launchopt.devices.resident.kernel")
    assert all(commands < 1 << kernel.CAPACITY_BITS for *_, commands in resident.STREAMS)


@pytest.mark.gpu
def test_on_a_gpu_streams_are_right_and_each_has_three_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "STREAMS", ((256, 256, Dtype.fp16, 3000), (40, 100, Dtype.fp32, 2)))
    found = {figure.case: figure.samples for figure in resident.streams(2, "cuda")}
    assert [len(samples) for samples in found.values()] == [2, 2, 1] * 2
    assert all(sample > 0 for samples in found.values() for sample in samples)
