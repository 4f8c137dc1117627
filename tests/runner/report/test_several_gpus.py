"""Several GPUs over one: rates of processes give a factor with an interval, all of which must reach the goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.summary_rows import repeats, write

from launchopt.errors import DataError
from runner.report.blocks import FILES
from runner.report.pictures import draw_scaling
from runner.report.several_gpus import FILE, JOBS, LEGEND, SWEEP, lines, markdown

STEADY = (1.0, 1.004, 0.996)
PRODUCER = {"producer_commands_per_s": 400.0, "producer_cpu_ns_per_command": 20.0, "queue_wait_p99_us": 7.5}


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
    row = {"work": "some work", "one": one, "several": two, "gpus": 2, "of": of, "goal": goal}
    (folder / FILE).write_text(json.dumps({"rows": [row]}))
    (line,) = [line for line in markdown(folder / FILE).splitlines() if line.startswith("| some work")]
    return line.strip("| ").split(" | ")


def test_processes_before_and_behind_give_an_interval(tmp_path: Path) -> None:
    one = [run(tmp_path / "before", 99.0), run(tmp_path / "behind", 101.0)]
    two = [run(tmp_path / "two", 195.0, gpu_imbalance=0.01, **PRODUCER)]
    found = cells(tmp_path, one, two, "commands_per_s")
    assert found[1:3] == ["100 commands/s", "195 commands/s on 2"]
    assert found[3].startswith("1.950x [1.9")
    assert found[4:] == ["1.9x: yes", "1.0%", "7.5 us", "400 commands/s, 20 ns a command"]
    assert cells(tmp_path, one, two, "commands_per_s", goal=1.95)[4] == "1.95x: in the median"
    assert cells(tmp_path, one, two, "commands_per_s", goal=1.99)[4] == "1.99x: NO"
    assert FILES[FILE] is markdown


def test_a_stack_of_a_split_model_shows_its_all_reduces_and_may_have_no_goal(tmp_path: Path) -> None:
    one = run(tmp_path / "one", 100.0)
    two = run(tmp_path / "two", 150.0, all_reduce_us=6.4, all_reduce_wait_us=4.0)
    row = {
        "work": "some work",
        "one": [one],
        "several": [two],
        "gpus": 4,
        "of": "commands_per_s",
        "modes": ["graph", "graph"],
    }
    (tmp_path / FILE).write_text(json.dumps({"rows": [row]}))
    text = markdown(tmp_path / FILE)
    assert "| goal | all-reduce |" in text
    assert "1.500x [" in text
    assert text.rstrip().endswith("150 commands/s on 4 | 1.500x [1.500, 1.500] | — | 6.4 us, 4 waiting |")
    assert "Imbalance" not in text.partition("|")[0]
    (tmp_path / FILE).write_text(json.dumps({"rows": [row | {"modes": ["graph", "pdl"]}]}))
    with pytest.raises(DataError, match="no mode 'pdl'"):
        markdown(tmp_path / FILE)


def test_sweeps_are_compared_by_their_jobs_per_second(tmp_path: Path) -> None:
    found = cells(tmp_path, [sweep(tmp_path / "one", 40)], [sweep(tmp_path / "two", 20)], JOBS)
    assert found[1:] == ["0.3 jobs/s", "0.6 jobs/s on 2", "2.000x", "1.9x: in one run"]


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
    for read in (markdown, lines):
        with pytest.raises(DataError, match="not a list of runs on several GPUs"):
            read(tmp_path / FILE)


def test_a_line_without_its_runs_is_refused_by_the_picture_as_by_the_table(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"rows": [{"work": "a", "line": "a model", "gpus": 2}]}))
    for read in (markdown, lines):
        with pytest.raises(DataError, match="KeyError: 'of'"):
            read(tmp_path / FILE)


def test_each_answer_to_a_goal_stands_in_the_legend() -> None:
    for answer in ("yes", "in the median", "NO", "In one run"):
        assert answer in LEGEND


def test_a_line_of_the_picture_is_the_best_stack_on_each_count_of_gpus(tmp_path: Path) -> None:
    runs = {name: run(tmp_path / name, rate) for name, rate in (("one", 100.0), ("slow", 150.0), ("two", 180.0))}
    row = {"work": "a", "line": "a model", "one": [runs["one"]], "of": "commands_per_s"}
    two = [row | {"gpus": 2, "several": [runs[name]]} for name in ("slow", "two")]
    four = [row | {"gpus": 4, "several": [run(tmp_path / "four", 300.0)]}, {"work": "b", "gpus": 2}]
    (tmp_path / FILE).write_text(json.dumps({"rows": [*two, *four]}))
    ((name, factors),) = found = lines(tmp_path / FILE)
    assert name == "a model"
    assert factors == pytest.approx({2: 1.8, 4: 3.0}, rel=0.01)
    pytest.importorskip("altair")
    draw_scaling(found, tmp_path / "scaling.svg")
    text = (tmp_path / "scaling.svg").read_text()
    assert "a model" in text
    assert "factor over one GPU" in text
