"""runner.bench resident and stream: what the kernel that stays takes for one command, and for many in its ring."""

from __future__ import annotations

from pathlib import Path

import pytest

from launchopt.command import Dtype
from runner.bench import resident
from runner.bench.__main__ import main


@pytest.mark.parametrize("part", ["resident", "stream"])
def test_another_device_is_left_out(part: str, tmp_path: Path) -> None:
    assert main([part, "--device", "cpu", "--output", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_stream_and_its_end_fit_into_the_ring() -> None:
    pytest.importorskip("cupy")
    from launchopt.devices.resident import CAPACITY_BITS

    assert all(commands < 1 << CAPACITY_BITS for *_, commands in resident.STREAMS)


@pytest.mark.gpu
def test_on_a_gpu_streams_are_right_and_each_has_three_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "STREAMS", ((256, 256, Dtype.fp16, 3000), (40, 100, Dtype.fp32, 2)))
    found = {figure.case: figure.samples for figure in resident.streams(2, "cuda")}
    assert [len(samples) for samples in found.values()] == [2, 2, 1] * 2
    assert all(sample > 0 for samples in found.values() for sample in samples)
