"""The program: folders in, a verdict out; exit codes, files, and every refusal's text.

The golden files are what these tests print; after an intended change write them anew from the difference shown.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paths import ROOT, TESTS
from support.results.summary_rows import repeats, write

from launchopt.analysis.verdict.calibration import BETWEEN_PROCESSES, Calibration, write_calibration
from launchopt.devices.launch_breakdown import Floor
from launchopt.recording import results
from runner import compare
from runner.ending import outcome

GOLDEN = TESTS / "golden"
MANIFEST: dict[str, Any] = {
    "status": "ok",
    "started_utc": "2025-01-01T00:00:00+00:00",
    "config": {"workload": {"name": "gemv_micro"}, "seed": 0},
    "environment": {"cores": 16, "git_revision": "a" * 40, "packages": {"numpy": "2.5.2"}},
    "device_versions": {"driver": "580.1", "cublaslt": "130100"},
}
NOISE = np.exp(np.random.default_rng(0).normal(0, 0.002, (3, 9)))


def run_of(folder: Path, *scales: float, started: str = "1", processes: int = 1, **columns: Any) -> Path:
    """A run of baseline, batched and graph, as many as there are scales of their times."""
    rows = [
        one
        for scale, noise, mode in zip(scales, NOISE, ("baseline", "batched", "graph"), strict=False)
        for one in repeats(*(100 * scale * noise), mode=mode, throttled=False, **columns)
    ]
    for each in rows:
        each["process"] = each["repeat"] * processes // len(NOISE[0])
    write(folder, rows)
    results.write_manifest(folder, MANIFEST | {"started_utc": started})
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = compare.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_two_modes_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(Path("run"), 1.0, 0.5)
    code, out, err = run(capsys, "run:baseline", "run:batched", "--json", "out.json", "--markdown", "out.md")
    assert (code, err) == (0, "")
    assert out == (GOLDEN / "compare_modes.txt").read_text()
    assert Path("out.md").read_text() == (GOLDEN / "compare_modes_markdown.txt").read_text()
    fields = json.loads(Path("out.json").read_text())
    assert (fields["forced"], fields["warning"], fields["refused"]) == (False, None, [])
    (one,) = fields["comparisons"]
    assert (one["verdict"], one["paired"], one["pairs"]) == ("FASTER", True, 9)
    assert one["factor"]["low"] < one["factor"]["value"] < one["factor"]["high"]
    assert one["factor"]["value"] == pytest.approx(2, rel=0.01)
    assert sorted(path.name for path in Path().iterdir()) == ["out.json", "out.md", "run"]


def test_two_folders(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(Path("old"), 1.0, 0.5, 0.2, processes=3)
    run_of(Path("new"), 1.0, 0.6, started="2", processes=3)
    code, out, err = run(capsys, "old", "new")
    assert (code, err) == (0, "")
    assert out == (GOLDEN / "compare_folders.txt").read_text()
    assert max(map(len, out.splitlines())) <= 100
    assert out.count("100.03 ms") == 2, "each median is printed once"


def test_force_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(Path("old"), 1.0)
    run_of(Path("new"), 1.0, started="2", commands=10)
    code, out, err = run(capsys, "old", "new", "--force", "--markdown", "out.md")
    assert (code, err) == (0, "")
    assert out == (GOLDEN / "compare_forced.txt").read_text()
    assert Path("out.md").read_text().startswith("**FORCED")


def test_a_file_names_its_run_and_a_copy_of_a_run_is_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(Path("run"), 1.0, 0.5)
    shutil.copytree("run", "copy")
    code, out, _ = run(capsys, "run/summary.parquet:baseline", "copy:batched")
    assert code == 0
    assert "paired, 9 repeats taken in turn" in out
    assert "unpaired" not in out


def test_two_runs_of_one_name_that_began_in_one_second_are_two_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(Path("a/run"), 1.0, 0.5)
    run_of(Path("b/run"), 1.1, 0.5)
    code, out, err = run(capsys, "a/run:baseline", "b/run:baseline")
    assert (code, err) == (0, "")
    assert out.startswith("B = b/run:baseline against A = a/run:baseline")


def test_a_folder_whose_name_has_a_colon(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(Path("at 10:30"), 1.0, 0.5)
    code, out, _ = run(capsys, "at 10:30:baseline", "at 10:30:batched")
    assert code == 0
    assert "FASTER" in out


@pytest.mark.parametrize(("scale", "code"), [(1.1, 1), (1.0, 0), (0.9, 0)])
def test_fail_on_slower(scale: float, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    run_of(Path("old"), 1.0, processes=3)
    run_of(Path("new"), scale, started="2", processes=3)
    assert run(capsys, "old", "new", "--fail-on", "slower")[0] == code
    assert run(capsys, "old", "new", "--fail-on", "undecided", "--fail-on", "slower")[0] == code
    assert run(capsys, "old", "new")[0] == 0


def test_fail_on_undecided_ends_with_3_and_names_the_missing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(Path("old"), 1.0, 0.5)
    run_of(Path("new"), 1.1, started="2", processes=3)
    code, _, err = run(capsys, "old", "new", "--fail-on", "undecided", "--fail-on", "slower")
    assert code == 3
    missing, alone = err.splitlines()
    lacks = "more processes: 4 of A (now 1), 2 of B (now 3); run each with processes=5"
    assert missing == f"undecided: run: baseline, max_batch 512, timeout 150 us: {lacks}"
    assert alone.startswith("undecided: only in A: ")
    assert run(capsys, "old", "new", "--fail-on", "slower")[0] == 0


def test_the_calibration_of_this_machine_decides_for_one_process_a_side(capsys: pytest.CaptureFixture[str]) -> None:
    machine = {"cores": 16, "device": {"name": "NVIDIA H200"}}
    for name, scale in (("old", 1.0), ("new", 0.8)):
        run_of(Path(name), scale, started=name)
        results.write_manifest(Path(name), MANIFEST | {"started_utc": name, "environment": machine})
    noise = Floor(0.5, "%", None, None, 8, "of 8 processes")
    calibration = Calibration("2026", {"name": "NVIDIA H200"}, {"cores": 16}, {BETWEEN_PROCESSES: noise})
    write_calibration(Path("outputs/calibration/h200.json"), calibration)
    _, out, _ = run(capsys, "old", "new")
    assert "verdict   FASTER" in out
    assert "noise between processes that the doctor measured: 0.50%" in out
    write_calibration(Path("outputs/calibration/h200.json"), replace(calibration, environment={"cores": 8}))
    assert "verdict   UNDECIDED" in run(capsys, "old", "new")[1]


def test_what_holds_is_shown_beside_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(Path("old"), 1.0, 0.5, processes=3)
    run_of(Path("new"), 1.0, 0.5, started="2", processes=3)
    rows = results.read_summaries([Path("new")])
    write(Path("new"), [row | {"verified": row["mode"] != "batched"} for row in rows])
    code, out, err = run(capsys, "old", "new", "--json", "out.json", "--force")
    assert code == 2
    assert "verdict   SAME" in out
    assert "cannot be compared: B: not verified" in err
    assert "not verified" in json.loads(Path("out.json").read_text())["refused"][0]


def test_every_refusal_has_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(Path("old"), 1.0, 0.5)
    run_of(Path("fewer"), 1.0, started="2", commands=10)
    run_of(Path("traced"), 1.0, started="3", traced=True)
    run_of(Path("hot"), 1.0, started="4")
    rows = results.read_summaries([Path("hot")])
    write(Path("hot"), [row | {"throttled": row["repeat"] < 2, "throttle_reasons": "sw_thermal"} for row in rows])
    run_of(Path("unverified"), 1.0, started="5", verified=False)
    run_of(Path("moved"), 1.0)
    results.write_manifest(Path("moved"), MANIFEST | {"started_utc": "6", "device_versions": {"driver": "595.2"}})
    write(Path("bare"), results.read_summaries([Path("old")]))
    Path("empty").mkdir()
    run_of(Path("broken"), 1.0)
    (Path("broken") / "manifest.json").write_text("no")
    calls = [
        *(("old", other) for other in ("fewer", "traced", "hot", "unverified", "moved", "bare", "old")),
        *(("old", other) for other in ("empty", "broken", "nowhere", "old:pdl")),
        *(("old:batched", "fewer"), ("old", "fewer", "--force", "--effect", "0")),
        ("old", "fewer", "--effect", "two"),
        *(("old", "hot", "--metric", "tokens_per_s"), ("old", "hot", "--force", "--json", "nowhere/out.json")),
    ]
    found = []
    for arguments in calls:
        code, _, err = run(capsys, *arguments)
        assert code == 2
        assert err.startswith("error: ")
        found.append(f"$ python -m runner.compare {' '.join(arguments)}\n{err}")
    assert "\n".join(found) == (GOLDEN / "compare_refusals.txt").read_text()
    assert not list(Path().glob("*.json"))


@pytest.mark.parametrize("arguments", [[], ["one"], ["a", "b", "--fail-on", "faster"]])
def test_misuse_is_the_parsers(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        compare.main(arguments)
    assert "usage:" in capsys.readouterr().err


def test_interruption_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "_compare", interrupted)
    assert outcome(lambda: compare.main(["a", "b"])) == 130


def test_committed_runs() -> None:
    reference = ROOT / "outputs" / "reference" / "gpu" / "qkv" / "decode_16_folovllm"
    assert compare.main([f"{reference}:baseline", f"{reference}:coalesced", "--fail-on", "slower"]) == 0
    assert compare.main([f"{reference}:coalesced", f"{reference}:baseline", "--fail-on", "slower"]) == 1


def test_an_old_name_of_a_column_is_todays_metric_and_a_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_of(tmp_path / "run", 1, 0.5, setup_ms=3.0)
    code, out, err = run(capsys, f"{folder}:baseline", f"{folder}:batched", "--metric", "one_time_ms")
    assert code == 0
    assert "setup_ms" in out
    assert err == "notice: --metric one_time_ms is now --metric setup_ms; version 0.3.0 drops the old name\n"


def test_a_job_whose_work_another_did_is_answered_with_that_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(tmp_path / "s/0", 1)
    jobs = [
        {"job": 0, "folder": "0", "status": "ok", "same_as": None},
        {"job": 1, "folder": "1", "status": "same", "same_as": 0},
    ]
    (tmp_path / "s/sweep.json").write_text(json.dumps({"jobs": jobs}))
    code, _, err = run(capsys, "s/0", "s/1:baseline")
    assert code == 2
    why = "this job of the sweep has no results: its work is that of job 0"
    assert err == f"error: B=s/1:baseline: {why}; did you mean s/0:baseline?\n"
