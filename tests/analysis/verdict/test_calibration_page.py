"""A calibration as a page shows it."""

from __future__ import annotations

from dataclasses import replace

from support.paths import ROOT

from launchopt.analysis.calibration_markdown import calibration_markdown
from launchopt.analysis.verdict.calibration import Floor, read_calibration

COMMITTED = ROOT / "outputs/reference/h200/calibration.json"


def test_every_floor_and_stage_is_there() -> None:
    calibration = read_calibration(COMMITTED)
    text = calibration_markdown(calibration)
    assert text.startswith("NVIDIA H200, 2026-")
    for name, floor in calibration.floors.items():
        assert any(line.startswith(f"| {name} | ") and f"| {floor.unit} |" in line for line in text.splitlines()), name
    for kernel, stages in calibration.stages.items():
        own = text.split(f"**One launch by stage: {kernel}**")[1].split("**")[0]
        for name in stages:
            assert f"\n| {name} | " in own, (kernel, name)
        assert "| in all | 7-18 | " in own


def test_a_floor_without_an_interval_says_so() -> None:
    alone = {"x_us": Floor(1.5, "us", None, None, 1, "once | twice")}
    text = calibration_markdown(replace(read_calibration(COMMITTED), floors=alone, stages={}))
    assert text.endswith("| x_us | 1.500 | too few repeats | us | once \\| twice |\n")
