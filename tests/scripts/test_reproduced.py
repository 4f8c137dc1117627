"""Cells of two measurements are the same, or differ by more than processes do, or are not judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.summary_rows import H200, repeats, write

from launchopt.analysis.verdict.calibration import BETWEEN_PROCESSES, PERCENT, Calibration, as_json
from launchopt.devices.floors import Floor
from launchopt.recording import results
from runner.bench.figures import BENCH, FILE, Figure
from scripts import reproduced

WALLS = (10.0, 10.1, 9.9, 10.05, 9.95)


def described(folder: Path, name: str = H200, cores: int = 16, **more: Any) -> None:
    environment = {"cores": cores, "device": {"name": name}}
    (folder / "manifest.json").write_text(json.dumps({"schema_version": 1, "environment": environment, **more}))


def run(folder: Path, factor: float = 1.0, processes: int = 1, **machine: Any) -> None:
    """A run of one mode whose repeats take `factor` times as long."""
    rows = repeats(*(wall * factor for wall in WALLS * processes), mode="batched")
    write(folder, [row | {"process": index // len(WALLS)} for index, row in enumerate(rows)])
    described(folder, **machine)


def bench(folder: Path, factor: float = 1.0) -> None:
    folder.mkdir(parents=True)
    figure = Figure("ring", "a command", "ns", [wall * factor for wall in WALLS])
    results.write_rows(folder / FILE, BENCH, [figure.row()], {})
    described(folder)


def calibrated(folder: Path, percent: float = 1.0, cores: int = 16) -> None:
    folder.mkdir(parents=True)
    noise = Floor(percent, PERCENT, None, None, 8, "made")
    content = as_json(Calibration("2026-01-01", {"name": H200}, {"cores": cores}, {BETWEEN_PROCESSES: noise}))
    (folder / "calibration.json").write_text(json.dumps(content))


def judged(place: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = reproduced.main([str(place / "new"), str(place / "old")])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A calibration, whose noise between processes is 1%, and an older run."""
    calibrated(tmp_path / "new/calibration")
    run(tmp_path / "old/a")
    return tmp_path


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.03, 0), (0.97, 0), (1.06, 1), (0.94, 1)])
def test_a_run_is_reproduced_if_it_differs_by_no_more_than_processes_do(
    factor: float, code: int, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(place / "new/a", factor)
    found, out, _ = judged(place, capsys)
    assert found == code
    assert f"{1 - code} of 1 judged cells" in out
    assert ("differs: a: gemv_micro fp32" in out) == bool(code)


def test_figures_of_benchmarks_are_cells(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(place / "new/a")
    bench(place / "old/ring")
    bench(place / "new/ring", 2.0)
    code, out, _ = judged(place, capsys)
    assert code == 1
    assert "differs: ring: a command: 2.00x" in out
    assert "1 of 2 judged cells (50.0%)" in out


def test_three_processes_a_side_need_no_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in ("old", "new"):
        run(tmp_path / side / "a", processes=3)
    assert judged(tmp_path, capsys)[0] == 0


@pytest.mark.parametrize(
    ("machine", "why"),
    [({"name": "NVIDIA H100"}, "another machine: NVIDIA H200 with 16 cores, NVIDIA H100 with 16 cores"),
     ({"cores": 8}, "NVIDIA H200 with 8 cores")],
)  # fmt: skip
def test_another_machine_is_not_judged(
    machine: dict[str, Any], why: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(place / "new/a", **machine)
    code, out, err = judged(place, capsys)
    assert (code, out) == (2, "")
    assert "nothing to judge: another machine" in err
    assert why in err


def test_without_an_interval_nothing_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(tmp_path / "new/calibration", cores=4)  # of another machine
    for side in ("old", "new"):
        run(tmp_path / side / "a")
    code, _, err = judged(tmp_path, capsys)
    assert code == 2
    assert "no calibration.json" in err


def test_a_run_with_wrong_outputs_is_not_judged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(place / "new/a")
    run(place / "old/b")
    rows = repeats(*WALLS, mode="batched")
    write(place / "new/b", [row | {"verified": False, "status": "1 output wrong"} for row in rows])
    described(place / "new/b")
    code, out, _ = judged(place, capsys)
    assert code == 0
    assert "not judged: b: " in out
    assert "1 output wrong" in out


def test_traced_runs_and_runs_of_one_side_alone_are_no_cells(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(place / "new/a")
    run(place / "new/only_here", 9.0)
    for side, factor in (("old", 1.0), ("new", 9.0)):
        rows = [row | {"traced": True} for row in repeats(*(wall * factor for wall in WALLS), mode="batched")]
        write(place / side / "traced", rows)
        described(place / side / "traced")
    code, out, _ = judged(place, capsys)
    assert (code, out) == (0, "1 of 1 judged cells (100.0%) are reproduced; wanted: 90%\n")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduced.main([str(tmp_path / "nwe")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_the_reference_results_reproduce_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduced.main([str(reproduced.REFERENCE)]) == 0
    assert "differs" not in capsys.readouterr().out
