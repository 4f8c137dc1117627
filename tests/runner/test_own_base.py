"""Every reader of a run compares its modes with the base that the run was asked for: the first mode of `against`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.results.diagnosed_rows import decode

import launchopt
from launchopt.analysis.tables.rows import Table
from launchopt.analysis.verdict.markdown import diagnosis_markdown
from launchopt.recording import results
from launchopt.report.source import read_source
from runner import budget, verdict
from runner.report.blocks import _block
from scripts import reference_pictures

MODES = ("kernel", "batched", "pdl")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of mode=pdl against=[kernel,batched]; `batched` is the first by name."""
    monkeypatch.chdir(tmp_path)  # no calibration of this machine
    monkeypatch.delenv("LAUNCHOPT_CALIBRATION", raising=False)
    folder = tmp_path / "run"
    folder.mkdir()
    rows = [each for at, mode in enumerate(MODES) for each in decode(mode, *[100.0 - 30 * at] * 5, requests=1)]
    results.write_rows(folder / "summary.parquet", results.SUMMARY, rows, {})
    asked = {"mode": {"name": "pdl"}, "against": ["kernel", "batched"]}
    results.write_manifest(folder, {"run_id": "run", "config": asked})
    return folder


def test_the_verdict_is_on_the_base_of_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict.main([str(run), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["diagnoses"]
    assert found["sentence"].startswith("kernel is launch-bound")
    assert [(line["mode"], (line["speedup"] or {}).get("value")) for line in found["lines"]] == [
        ("kernel", None),
        ("pdl", pytest.approx(2.5)),
        ("batched", pytest.approx(10 / 7)),
    ]


def test_the_page_and_the_result_have_the_same_verdict(run: Path) -> None:
    assert "**kernel is launch-bound" in diagnosis_markdown(read_source([run]).diagnoses)
    (bounds,) = launchopt.load(run).verdict.bounds
    assert ": kernel is launch-bound" in bounds


def test_the_budget_begins_with_the_base_of_the_run(run: Path) -> None:
    assert budget.budget([f"from={run}", "tokens_per_day=1e6"]).lines[0].mode == "kernel"


def test_the_table_of_several_runs_has_the_base_of_the_runs(run: Path) -> None:
    other = run.parent / "other"
    other.mkdir()
    rows = [row | {"run_id": "other", "max_batch": 8} for row in results.read_summaries([run])]
    results.write_rows(other / "summary.parquet", results.SUMMARY, rows, {})
    results.write_manifest(other, {**results.read_manifests([run])[0], "run_id": "other"})
    assert "speed-up over kernel" in str(launchopt.load(run.parent))
    assert "speed-up over batched" not in str(launchopt.load(run.parent))


def test_pages_and_pictures_have_the_base_of_the_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "speed-up over kernel" in _block(run)
    drawn: list[Table] = []

    def draw(tables: Sequence[Table], _: Path) -> None:
        drawn.extend(tables)

    monkeypatch.setattr(reference_pictures, "draw_speedups", draw)
    reference_pictures.GROUPS["gpu/gpu_kernel_batcher"][1](run, run / "picture.svg")
    assert [table.lines[0]["mode"] for table in drawn] == ["kernel"]
