"""Cells of two measurements are the same, or differ by more than processes do, or are not judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.results.summary_rows import H200, TOKENS, repeats, write

from launchopt.analysis.verdict.calibration import BETWEEN_PROCESSES, PERCENT, Calibration, as_json
from launchopt.devices.floors import Floor
from launchopt.recording import results
from runner.bench.figures import BENCH, FILE, Figure
from scripts import reproduced

WALLS = (10.0, 10.1, 9.9, 10.05, 9.95)


def described(folder: Path, name: str = H200, cores: int = 16, **more: Any) -> None:
    environment = {"cores": cores, "device": {"name": name}}
    about = {"schema_version": 1, "started_utc": str(folder), "environment": environment}
    (folder / "manifest.json").write_text(json.dumps(about | more))


def walls_of(walls: Sequence[float], factor: float, processes: int, drift: float = 0.001) -> list[float]:
    """Times of several processes, each slower than the one before by `drift`."""
    return [wall * factor * (1 + process * drift) for process in range(processes) for wall in walls]


def run(folder: Path, factor: float = 1.0, processes: int = 1, **machine: Any) -> None:
    """A run of one mode whose repeats take `factor` times as long."""
    rows = repeats(*walls_of(WALLS, factor, processes), mode="batched")
    write(folder, [row | {"process": index // len(WALLS)} for index, row in enumerate(rows)])
    described(folder, **machine)


def bench(
    folder: Path, factor: float = 1.0, processes: int = 3, repeats: int = len(WALLS), drift: float = 0.001
) -> None:
    folder.mkdir(parents=True)
    samples = walls_of(WALLS[:repeats], factor, processes, drift)
    figure = Figure("ring", "a command", "ns", samples, samples_of=processes * [repeats])
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


@pytest.mark.parametrize(("processes", "repeats"), [(1, len(WALLS)), (3, 1)])
def test_figures_of_few_processes_or_values_are_not_judged_by_the_noise_of_wall_times(
    processes: int, repeats: int, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("old", "new"):
        bench(place / side / "ring", processes=processes, repeats=repeats)
    code, _, err = judged(place, capsys)
    assert code == 2
    assert "fewer than 3 processes or 5 values a side" in err


def test_processes_that_agree_to_the_tick_show_no_spread(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(place / "new/a")
    bench(place / "old/ring", processes=5, repeats=1, drift=0.0)
    bench(place / "new/ring", 1.01, processes=5, repeats=1, drift=0.0)
    code, out, _ = judged(place, capsys)
    assert code == 0
    assert "not judged: ring: a command: the values of all processes of a side are the same" in out


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


@pytest.mark.parametrize(
    ("sides", "why"),
    [([{"part": {"before": {"processor": f"a CPU, {cores} cores"}}} for cores in (16, 32)],
      "another host: a CPU, 16 cores, a CPU, 32 cores"),
     ([{"environment": {"cores": 2, "device": {"name": "A"}, "processor": f"model {model}"}} for model in (1, 17)],
      "another processor: model 1; model 17")],
)  # fmt: skip
def test_a_share_of_a_larger_host_and_another_processor_of_that_name_are_other_machines(
    sides: list[dict[str, Any]], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, about in zip(("old", "new"), sides, strict=True):
        run(tmp_path / side / "a", processes=3, **about)
    assert why in judged(tmp_path, capsys)[2]


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
    (line,) = out.splitlines()
    assert (code, line[:46]) == (0, "1 of 1 judged cells (100.0%) are reproduced; h")
    assert line.endswith("half of them hide a change of 3.5% or more; wanted: 90%")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduced.main([str(tmp_path / "nwe")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_the_reference_results_can_be_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduced, "_is_same", lambda ours, theirs: False)
    assert reproduced.main([str(reproduced.REFERENCE)]) == 0
    assert "differs" not in capsys.readouterr().out


@pytest.mark.parametrize("has_start", [True, False])
def test_one_measurement_does_not_reproduce_itself(
    has_start: bool, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(place / "new/a")
    for side in ("old", "new"):
        described(place / side / "a", started_utc="2026-01-01T00:00:00+00:00", part={"seconds": len(side)})
        path = place / side / "a/manifest.json"
        about = json.loads(path.read_text())
        path.write_text(json.dumps(about if has_start else {key: about[key] for key in ("environment", "part")}))
    code, out, err = judged(place, capsys)
    assert (code, out) == (2, "")
    assert "nothing to judge: the same measurement on both sides" in err


def test_an_interval_that_would_hide_a_large_change_shows_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrated(place / "new/a_calibration", percent=20.0)
    run(place / "new/a", 1.3)
    code, _, err = judged(place, capsys)
    assert code == 2
    assert "nothing to judge: the interval, 0.67x to 2.54x, hides a change of 95%" in err


def test_a_wide_interval_shows_that_a_cell_differs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(place / "new/a_calibration", percent=20.0)
    run(place / "new/a", 3.0)
    code, out, _ = judged(place, capsys)
    assert (code, "differs: a: " in out) == (1, True)


def test_what_only_one_side_has_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(place / "new/a")
    run(place / "old/only_there")
    for side, mode in (("old", "graph"), ("new", "batched")):
        write(place / side / "modes", [row for each in ("engine", mode) for row in repeats(*WALLS, mode=each)])
        write(place / side / "works", repeats(*WALLS, mode=mode))
        described(place / side / "modes")
        described(place / side / "works")
        run(place / side / "empty")
    (place / "new/empty/summary.parquet").unlink()
    code, out, _ = judged(place, capsys)
    assert code == 0
    assert "2 of 2 judged cells" in out
    assert "not judged: modes: only in OLD: gemv_micro" in out
    assert "not judged: modes: only in NEW: gemv_micro" in out
    assert "not judged: works: only in OLD: graph" in out
    assert "not judged: empty: no summary.parquet in NEW" in out
    assert "not judged: 1 runs and benchmarks that only OLD has" in out


@pytest.mark.parametrize("bad", [0.0, -1.0, 5e-324])
def test_figures_without_a_factor_or_on_one_side_are_named(
    bad: float, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(place / "new/a")
    for side, first, second in (("old", [bad, *WALLS[1:]], "gone"), ("new", [*WALLS], "added")):
        folder = place / side / "ring"
        samples = {"zero": first, second: [*WALLS]}
        rows = [Figure("ring", case, "ns", each, samples_of=[1, 2, 2]).row() for case, each in samples.items()]
        folder.mkdir()
        results.write_rows(folder / FILE, BENCH, rows, {})
        described(folder)
    code, out, _ = judged(place, capsys)
    assert code == 0
    for said in ("zero: not all of its values are above 0", "gone: only in OLD", "added: only in NEW"):
        assert f"not judged: ring: {said}\n" in out


def test_a_loop_that_kept_up_on_one_side_alone_differs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, is_overloaded in (("old", False), ("new", True)):
        rows = repeats(*WALLS, mode="batched", **(TOKENS | {"overloaded": is_overloaded}))
        write(place / side / "a", rows)
        described(place / side / "a")
    code, out, _ = judged(place, capsys)
    assert code == 1
    assert ": kept up with its arrivals in OLD alone" in out


def test_a_latency_has_no_noise_of_wall_times(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in ("old", "new"):
        write(place / side / "a", repeats(*WALLS, mode="batched", **TOKENS))
        described(place / side / "a")
    assert judged(place, capsys)[0] == 2


def test_an_unknown_machine_is_not_judged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(place / "new/a")
    for side in ("old", "new"):
        (place / side / "a/manifest.json").write_text("{}")
    code, _, err = judged(place, capsys)
    assert code == 2
    assert "unknown machine: an unknown device with unknown cores" in err


@pytest.mark.parametrize("environment", ["x", {"device": "x"}, {"device": {"name": ["x"]}, "cores": [2]}])
def test_a_manifest_of_other_types_is_named(
    environment: object, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(place / "new/a")
    (place / "new/a/manifest.json").write_text(json.dumps({"environment": environment}))
    code, _, err = judged(place, capsys)
    assert code == 2
    assert "environment" in err
    assert "another machine" in err
