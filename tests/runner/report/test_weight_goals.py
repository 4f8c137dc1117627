"""Goals over the time to read the weights of a command, a step, or a layer with experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.summary_rows import repeats, write

from launchopt.errors import DataError
from launchopt.recording.results import read_summaries, write_manifest
from runner.report import weight_goals
from runner.report.blocks import sync_readme

GEMV = {"shapes": "6144x1x4096", "commands": 100, "dtype": "bf16", "weights": "fp8 per channel", "tokens": None}
LAYER = {"model": "llama", "requests": 2, "tokens": 200, "dtype": "bf16", "weights": "fp8 per channel"}
LAYER |= {"weight_bytes": 200 * 15_000_000}  # a row counts the weights of a step once for each of its requests
EXPERTS = {"model": "qwen", "steps": 100, "step_tokens": 4, "active_experts": 23.5, "dtype": "bf16", "tokens": None}
READ = {"ceilings": {"read_gb_per_s": 3000.0}, "ceilings_after": {"read_gb_per_s": 2200.0}}


def page(folder: Path, work: dict[str, Any], goal: dict[str, Any]) -> Path:
    """Write a run of 100 units of 10 us, whose weights take 5 us at 3,000 GB/s, and a goal."""
    more = {"weight_bytes": 100 * 15_000_000, "ordering": "none", "independent": True, **work}
    rows = [
        *repeats(*[1.0, 1.01, 0.99, 1.0, 1.0], mode="pdl", **more),
        *repeats(*[2.0] * 5, mode="kernel", **more),
    ]
    write_manifest(write(folder / "run", rows), READ)
    path = folder / weight_goals.FILE
    path.write_text(json.dumps({"goals": [{"run": "run", "mode": "pdl"} | goal]}))
    return path


def cells(path: Path) -> list[str]:
    line = weight_goals.markdown(path).splitlines()[-1]
    return line.strip("| ").split(" | ")


def test_a_goal_for_another_gpu_is_the_same_multiple_of_the_floor_here(tmp_path: Path) -> None:
    assert cells(page(tmp_path, GEMV, {"goal_us": 7.5})) == [
        "6144x1x4096, bf16, fp8 weights per channel, NVIDIA H200",
        "`pdl`",
        "5.000",
        "11.00 (2.20x)",
        "10.00 [9.900, 10.10]",
        "yes",
        "2.00x",
        "kernel 20.00",
    ]


def test_repeats_of_three_processes_have_a_range_and_no_interval(tmp_path: Path) -> None:
    path = page(tmp_path, GEMV, {"goal_us": 7.5})
    rows = [each for each in read_summaries([tmp_path / "run"]) if each["mode"] == "pdl"]
    rows += repeats(2.0, mode="kernel", weight_bytes=1, ordering="none", independent=True, **GEMV)
    write(tmp_path / "run", [each | {"process": each["repeat"] // 2} for each in rows])
    assert cells(path)[4:6] == ["10.00 (9.900 to 10.10)", "in the median"]


def test_a_step_of_requests_is_a_unit(tmp_path: Path) -> None:
    found = cells(page(tmp_path, LAYER, {"of_floor": 1.25}))
    assert found[0] == "llama, 2 requests, bf16, fp8 weights per channel, NVIDIA H200"
    assert found[2:6] == ["5.000", "6.250 (1.25x)", "10.00 [9.900, 10.10]", "NO"]


def test_a_step_of_a_layer_with_experts_is_a_unit_and_needs_no_goal(tmp_path: Path) -> None:
    found = cells(page(tmp_path, EXPERTS, {}))
    assert found[0] == "experts of qwen, 4 tokens, 23.5 experts busy, bf16, NVIDIA H200"
    assert found[2:7] == ["5.000", "-", "10.00 [9.900, 10.10]", "-", "2.00x"]


def test_a_page_has_the_table_between_its_marks(tmp_path: Path) -> None:
    path, readme = page(tmp_path, GEMV, {}), tmp_path / "PAGE.md"
    readme.write_text(f"<!-- report:{path.name} -->\n<!-- /report:{path.name} -->\n")
    sync_readme(readme)
    assert "| 6144x1x4096, bf16, fp8 weights per channel, NVIDIA H200 | `pdl` |" in readme.read_text()


@pytest.mark.parametrize(("goal", "why"), [({"mode": "none"}, "no mode 'none'"), ({"run": 1}, "not a list of goals")])
def test_a_goal_without_results_is_said(goal: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=why):
        weight_goals.markdown(page(tmp_path, GEMV, goal))
