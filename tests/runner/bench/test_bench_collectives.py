"""The part collectives: its cases on the cpu device, and on GPUs over a stand-in for the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from launchopt.errors import DeviceError
from runner.bench import collectives
from runner.bench.__main__ import main
from runner.bench.figures import read


def test_two_processes_of_the_cpu_device_are_measured(tmp_path: Path) -> None:
    assert main(["collectives", "--device", "cpu", "--repeats", "1", "--output", str(tmp_path)]) == 0
    rows = read(tmp_path)
    assert [row["case"] for row in rows] == [f"{size} KB, shared memory" for size in (4, 16, 512)]
    assert all(row["unit"] == "us" and row["median"] > 0 for row in rows)


def test_one_gpu_is_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(kind: str, index: int) -> None:
        raise DeviceError("device=cuda: there is no GPU 1")

    monkeypatch.setattr(collectives, "find_device", found)
    assert list(collectives.suite(1, "cuda")) == []
