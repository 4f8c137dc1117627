"""`python -m runner.verdict`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.results.diagnosed_rows import BANDWIDTH, calibration, few, repeats

from launchopt.analysis.verdict.calibration import write_calibration
from launchopt.recording import results
from launchopt.recording.results import Row
from runner import verdict


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No calibration of this machine may get into a test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCHOPT_CALIBRATION", raising=False)


def write(folder: Path, rows: list[Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    results.write_rows(folder / "summary.parquet", results.SUMMARY, rows, {})
    results.write_manifest(folder, {"run_id": "run", "refused": {"graph": "takes whole steps"}})
    return folder


def sound(**columns: Any) -> list[Row]:
    return [*repeats("baseline", 100.0, 101.0, 99.0), *few("batched", 5.1, 5.2, 5.05, **columns)]


def test_words_first_then_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict.main([str(write(tmp_path / "run", sound()))]) == 0
    shown = capsys.readouterr().out
    words, table = shown.index("**baseline is launch-bound"), shown.index("| mode | measured ms | predicted ms |")
    assert shown.index("## gemv_256 fp32, 10,000 commands") < words < table
    assert (
        "| baseline | 100.0 | 85.00 | 85% | 5.000 | 0.500 | 80.00 | 20x | — | launch-bound (launching thread) |"
        in shown
    )
    assert "- baseline: cost of a launch from the run's own first calls, 8.00 us each" in shown


def test_json_has_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "verdict.json"
    assert verdict.main([str(write(tmp_path / "run", sound())), "--json", str(target)]) == 0
    content = json.loads(target.read_text())
    (one,) = content["diagnoses"]
    assert (content["calibration"], one["first_to_try"], one["errors"]) == (None, "batched", [])
    assert [line["bound"] for line in one["lines"]] == ["launch-bound", "memory-bound"]
    assert one["lines"][1]["speedup"]["repeats"] == 5
    assert one["sentence"] in capsys.readouterr().out.replace("\\|", "|")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "verdict.json"], "no temporary file is left"


def test_an_impossible_number_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    above = {"achieved_gb_per_s": 1.5 * BANDWIDTH}
    assert verdict.main([str(write(tmp_path / "run", sound(**above)))]) == 1
    shown = capsys.readouterr()
    assert "**Impossible: batched: 6,000 GB/s is above the measured 4,000 GB/s, and nothing explains it." in shown.out
    assert shown.err == (
        "error: gemv_256 fp32, 10,000 commands: batched: 6,000 GB/s is above the measured 4,000 GB/s,"
        " and nothing explains it\n"
    )
    residency = {**above, "above_ceiling": "6000 GB/s is above the measured 4000 GB/s: inputs stay in the cache"}
    assert verdict.main([str(write(tmp_path / "run", sound(**residency)))]) == 0


def test_a_terminal_gets_no_column_that_is_empty_in_every_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu: dict[str, Any] = {"device": "cpu", "gpu": None, "gpu_span_ms": None}
    rows = [*repeats("baseline", 100.0, 101.0, 99.0, **on_cpu), *few("batched", 50.1, 51.2, 50.5, **on_cpu)]
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert verdict.main([str(write(tmp_path / "run", rows))]) == 0
    shown = capsys.readouterr().out
    assert "measured ms" in shown
    assert "predicted" not in shown
    assert "launches ms" not in shown


def test_unverified_is_no_verdict_and_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict.main([str(write(tmp_path / "run", repeats("baseline", 100.0, verified=False)))]) == 0
    assert "**No verdict: baseline was not verified.**" in capsys.readouterr().out


def test_a_calibration_that_is_given_or_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, known = write(tmp_path / "run", sound()), calibration(lt_launch_host_us=4.0)
    write_calibration(tmp_path / "mine.json", known)
    assert verdict.main([str(run), "--calibration", str(tmp_path / "mine.json")]) == 0
    assert "lt_launch_host_us 4.00" in capsys.readouterr().out
    write_calibration(tmp_path / "outputs" / "calibration" / "nvidia_h200.json", known)
    assert verdict.main([str(run)]) == 0
    assert "lt_launch_host_us 4.00" in capsys.readouterr().out


def test_a_calibration_of_another_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run", repeats("baseline", 100.0, gpu="NVIDIA A100"))
    write_calibration(tmp_path / "mine.json", calibration(lt_launch_host_us=4.0))
    assert verdict.main([str(run), "--calibration", str(tmp_path / "mine.json")]) == 2
    assert capsys.readouterr() == (
        "",
        f"error: {tmp_path}/mine.json: of NVIDIA H200, but the runs are of NVIDIA A100\n",
    )


@pytest.mark.parametrize("more", [["--calibration", "none.json"], ["--json", "missing/verdict.json"]])
def test_files_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    assert verdict.main([str(write(tmp_path / "run", sound())), *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {more[1]}: ")
    assert "Traceback" not in error


def test_a_folder_without_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: no summary.parquet here or below\n"


def test_names_with_markup_stay_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "run", sound(model="[red]<script>"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert verdict.main([str(run)]) == 0
    assert "[red]<script>" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert verdict.main([str(run)]) == 0
    assert "&lt;script>" in capsys.readouterr().out
