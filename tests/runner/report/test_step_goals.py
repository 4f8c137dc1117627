"""Goals for the time of a step: a multiple of the read floor, an interval, and PyTorch alone beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.summary_rows import repeats, write

from launchopt.errors import DataError
from launchopt.recording.results import write_manifest
from runner.report import step_goals
from runner.report.blocks import sync_readme

MODE = "engine+graph"
GOAL: dict[str, Any] = {
    **{"run": "run", "mode": MODE, "goal_us": 760, "floor_us": 500, "gpu": "NVIDIA H200"},
    **{"beside": ["engine", "torch_compile", "megakernel"], "peers": ["before", "behind"]},
}
WORK: dict[str, Any] = {"workload": "layer", "model": "llama", "requests": 2, "tokens": 200, "ordering": "per_request"}
CPU: dict[str, Any] = {"launch_calls": 100, "host_submit_ns_per_launch": 5000.0}
READ = {"ceilings": {"read_gb_per_s": 4000.0}, "ceilings_after": {"read_gb_per_s": 3900.0}}


def page(
    folder: Path, goal: dict[str, Any] = GOAL, walls_ms: tuple[float, ...] = (75, 76, 74, 75, 75), **more: Any
) -> Path:
    """Write a run of 100 steps whose weights take 600 us at 4,000 GB/s, PyTorch alone beside it, and a goal."""
    work = {**WORK, **CPU, "weight_bytes": 200 * 2_400_000_000, **more}
    rows = [
        *repeats(*walls_ms, mode=MODE, **work),
        *repeats(*(2 * wall for wall in walls_ms), mode="engine", **work),
        *repeats(*(1.2 * wall for wall in walls_ms), mode="torch_compile", tpot_p50_ms=0.884, **work),
    ]
    write_manifest(write(folder / "run", rows), READ)
    for name, ways in (("before", [{"us": 900.0}, {"us": 850.0}]), ("behind", [{"failed": "no memory"}])):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / step_goals.PEER_FILE).write_text(json.dumps({"results": ways}))
    path = folder / step_goals.FILE
    path.write_text(json.dumps({"goals": [goal]}))
    return path


def cells(path: Path) -> list[str]:
    (line,) = [line for line in step_goals.markdown(path).splitlines() if line.startswith("| llama")]
    return line.strip("| ").split(" | ")


def test_a_goal_stands_beside_time_floor_rivals_and_pytorch_alone(tmp_path: Path) -> None:
    assert cells(page(tmp_path)) == [
        "llama, 2 requests, NVIDIA H200",
        "600.0",
        "760.0 (1.27x)",
        "750.0 [740.0, 760.0]",
        "yes",
        "1.25x",
        "engine 1,500.0 (CPU 5.000)<br>torch_compile 900.0 (CPU 5.000)<br>megakernel did not run",
        "850.0 / failed<br>torch_compile: TPOT 1.040x, wall time 1.059x: yes",
    ]


def test_on_another_gpu_the_goal_is_the_same_multiple_of_its_floor(tmp_path: Path) -> None:
    assert cells(page(tmp_path, gpu="NVIDIA H100"))[2] == "912.0 (1.52x)"


@pytest.mark.parametrize(
    ("walls_ms", "met"),
    [
        ((75,) * 5, "yes"),
        ((75, 75, 75, 75, 77), "in the median"),
        ((77,) * 5, "NO"),
        ((74, 75.8, 79), "in the median"),  # three repeats have no interval
        ((75,), "in the median"),
        ((77,), "NO"),
    ],
)
def test_a_goal_is_met_by_the_whole_interval_or_in_the_median(
    walls_ms: tuple[float, ...], met: str, tmp_path: Path
) -> None:
    assert cells(page(tmp_path, walls_ms=walls_ms))[4] == met


@pytest.mark.parametrize(
    ("walls_ms", "found", "met"),
    [
        (((74, 75), (75, 75), (75, 75)), "750.0 (740.0 to 750.0)", "in the median"),
        (((70, 79), (74, 76), (75, 75), (75, 75), (74, 75)), "750.0 [745.0, 750.0]", "yes"),
    ],
)
def test_an_interval_of_several_processes_is_that_of_their_medians(
    walls_ms: tuple[tuple[float, ...], ...], found: str, met: str
) -> None:
    processes = [process for process, walls in enumerate(walls_ms) for _ in walls]
    walls = [wall for each in walls_ms for wall in each]
    rows = [each | {"process": process} for each, process in zip(repeats(*walls, **WORK), processes, strict=True)]
    assert step_goals.shown(step_goals.step_us(rows)) == found
    assert step_goals.met(step_goals.step_us(rows), 760) == met


def test_a_page_has_the_table_between_its_marks(tmp_path: Path) -> None:
    path, readme = page(tmp_path), tmp_path / "PAGE.md"
    readme.write_text(f"<!-- report:{path.name} -->\n<!-- /report:{path.name} -->\n")
    assert sync_readme(readme)
    assert "| llama, 2 requests" in readme.read_text()


@pytest.mark.parametrize(
    ("goal", "why"),
    [
        ({**GOAL, "mode": "graph"}, "no mode 'graph'"),
        ({**GOAL, "run": "none"}, "no such folder"),
        ({**GOAL, "peers": ["none"]}, "FileNotFoundError"),
        ({**GOAL, "goal_us": "few"}, "could not convert"),
        ({key: value for key, value in GOAL.items() if key != "gpu"}, "KeyError: 'gpu'"),
        ([], "TypeError"),
    ],
)
def test_what_is_no_goal_is_refused(goal: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=why):
        step_goals.markdown(page(tmp_path, goal))


def test_a_run_with_a_wrong_output_meets_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not verified"):
        step_goals.markdown(page(tmp_path, verified=False))
