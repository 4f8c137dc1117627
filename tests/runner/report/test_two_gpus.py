"""Two GPUs over one: rates of processes give a factor with an interval, and the whole interval must reach the goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.summary_rows import repeats, write

from launchopt.errors import DataError
from runner.report.blocks import FILES
from runner.report.two_gpus import FILE, JOBS, SWEEP, markdown

STEADY = (1.0, 1.004, 0.996)


def run(folder: Path, rate: float, processes: int = 3, **more: Any) -> str:
    """Write a run of some processes with three repeats each, and return its name."""
    rows = []
    for process in range(processes):
        each = repeats(*[10.0] * 3, mode="graph", run_id=folder.name, process=process, **more)
        rows += [row | {"commands_per_s": rate * at} for row, at in zip(each, STEADY, strict=True)]
    write(folder, [row | {"repeat": at} for at, row in enumerate(rows)])
    return folder.name


def sweep(folder: Path, seconds: int, status: str = "ok") -> str:
    folder.mkdir()
    ends = {"started_utc": "2026-11-27T10:00:00.0+00:00", "ended_utc": f"2026-11-27T10:00:{seconds}.0+00:00"}
    (folder / SWEEP).write_text(json.dumps({"status": status, "jobs": [{}] * 12, **ends}))
    return folder.name


def cells(folder: Path, one: list[str], two: list[str], of: str, goal: float = 1.9) -> list[str]:
    row = {"work": "some work", "one": one, "two": two, "of": of, "goal": goal}
    (folder / FILE).write_text(json.dumps({"rows": [row]}))
    (line,) = [line for line in markdown(folder / FILE).splitlines() if line.startswith("| some work")]
    return line.strip("| ").split(" | ")


def test_processes_before_and_behind_give_an_interval(tmp_path: Path) -> None:
    one = [run(tmp_path / "before", 99.0), run(tmp_path / "behind", 101.0)]
    two = [run(tmp_path / "two", 195.0, gpu_imbalance=0.01, producer_commands_per_s=400.0)]
    found = cells(tmp_path, one, two, "commands_per_s")
    assert found[1:3] == ["100 commands/s", "195 commands/s"]
    assert found[3].startswith("1.950x [1.9")
    assert found[4:] == ["1.9x", "yes", "1.0%", "400 commands/s"]
    assert cells(tmp_path, one, two, "commands_per_s", goal=1.95)[5] == "in the median"
    assert cells(tmp_path, one, two, "commands_per_s", goal=1.99)[5] == "NO"
    assert FILES[FILE] is markdown


def test_a_stack_of_a_split_model_shows_its_all_reduces_and_may_have_no_goal(tmp_path: Path) -> None:
    one = run(tmp_path / "one", 100.0)
    two = run(tmp_path / "two", 150.0, all_reduce_us=6.4, all_reduce_wait_us=4.0)
    row = {"work": "some work", "one": [one], "two": [two], "of": "commands_per_s", "modes": ["graph", "graph"]}
    (tmp_path / FILE).write_text(json.dumps({"rows": [row]}))
    text = markdown(tmp_path / FILE)
    assert "| met | all-reduce |" in text
    assert "1.500x [" in text
    assert text.rstrip().endswith("| — | — | 6.4 us, 4 of them waiting |")
    assert "Imbalance" not in text.partition("|")[0]
    (tmp_path / FILE).write_text(json.dumps({"rows": [row | {"modes": ["graph", "pdl"]}]}))
    with pytest.raises(DataError, match="no mode 'pdl'"):
        markdown(tmp_path / FILE)


def test_sweeps_are_compared_by_their_jobs_per_second(tmp_path: Path) -> None:
    found = cells(tmp_path, [sweep(tmp_path / "one", 40)], [sweep(tmp_path / "two", 20)], JOBS)
    assert found[1:] == ["0.3 jobs/s", "0.6 jobs/s", "2.000x", "1.9x", "yes"]


@pytest.mark.parametrize("wrong", [{"verified": False}, {"status": "failed: lost"}])
def test_a_run_with_a_wrong_output_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    names = [run(tmp_path / "one", 10.0), run(tmp_path / "two", 20.0, **wrong)]
    with pytest.raises(DataError, match="repeat 0"):
        cells(tmp_path, names[:1], names[1:], "commands_per_s")


def test_a_sweep_that_failed_and_a_file_of_another_kind_are_refused(tmp_path: Path) -> None:
    one, two = sweep(tmp_path / "one", 40), sweep(tmp_path / "two", 20, "failed")
    with pytest.raises(DataError, match="the sweep is failed"):
        cells(tmp_path, [one], [two], JOBS)
    (tmp_path / FILE).write_text("[]")
    with pytest.raises(DataError, match="not a list of runs on two GPUs"):
        markdown(tmp_path / FILE)
