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
    assert [row["case"] for row in rows] == [f"{size} KB, shared memory" for size in (4, 16, 128, 512)]
    assert all(row["unit"] == "us" and row["median"] > 0 for row in rows)


def with_gpus(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(kind: str, index: int) -> None:
        if index >= count:
            raise DeviceError(f"device=cuda: there is no GPU {index}")

    monkeypatch.setattr(collectives, "find_device", found)


def test_one_gpu_is_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(1, monkeypatch)
    assert list(collectives.suite(1, "cuda")) == []


@pytest.mark.parametrize(("there", "ranks"), [(2, 2), (4, 4), (8, 8), (9, 8)])
def test_all_visible_gpus_are_ranks_but_at_most_eight(there: int, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(there, monkeypatch)
    assert collectives.visible_ranks() == ranks


@pytest.mark.parametrize(("ranks", "case", "goal"), [(2, "4 KB, one-shot, captured", 3.0), (4, "4 KB on 4 GPUs", None)])
def test_only_two_gpus_have_a_goal(ranks: int, case: str, goal: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {collectives._case(size, collectives.OWN, ranks): [2.0] for size in collectives.SIZES}
    monkeypatch.setattr(collectives, "_on_gpus", lambda repeats: times)
    first = next(collectives.suite(1, "cuda"))
    assert first.case.startswith(case)
    assert first.goal == goal
