"""scripts/reference_kept.py: results become smaller, and whatever reads them finds the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support.paths import ROOT
from support.results.summary_rows import repeats, write

from launchopt.recording import results
from launchopt.report.environment import environment
from launchopt.report.source import read_source
from runner.report.tables import FRONTIER_FILE
from scripts import reference_kept

REFERENCE = ROOT / "outputs/reference"
MOST_BYTES = 12_000_000  # of all that is committed
CLOCKS = ({"sm_clock_mhz": 1980}, {"sm_clock_mhz": 1755}, None, {"sm_clock_mhz": None})


def bucket(what: str) -> results.Row:
    values = {"run_id": "a", "mode": "batched", "repeat": 0, "what": what, "low": 1.0, "high": 2.0, "count": 3}
    return {field.name: values.get(field.name, 0) for field in results.HISTOGRAMS}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write(tmp_path / "sweep/0", repeats(1.0, 2.0, 3.0, mode="batched", tpot_p50_ms=None))
    runs = [{"mode": "batched", "repeat": at, "state": {"before": state}} for at, state in enumerate(CLOCKS)]
    results.write_manifest(folder, {"run_id": "a", "overrides": ["repeats=3"], "runs": runs})
    rows = [bucket(what) for what in ("latency", "queue_wait")]
    results.write_rows(folder / "histograms.parquet", results.HISTOGRAMS, rows, {})
    return folder


def test_rows_and_facts_are_those_of_before(run: Path) -> None:
    rows, facts = results.read_summaries([run]), environment(read_source([run]))
    measured = [hashlib.sha256((run / name).read_bytes()).hexdigest() for name in ("manifest.json", "summary.parquet")]
    assert reference_kept.shrink(run) > 0
    assert results.read_summaries([run]) == rows
    assert environment(read_source([run])) == facts
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["left_out"] == {"runs": 4, "sha256": measured[0], "sm_clock_mhz": [1755, 1980]}
    assert "runs" not in manifest
    assert reference_kept.original(run / "summary.parquet") == measured[1]


def test_a_second_start_changes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference_kept.shrink(run)
    once = {path: path.read_bytes() for path in run.iterdir()}
    assert reference_kept.main([str(run)]) == 0
    assert capsys.readouterr().out.endswith(" bytes, 0 left out\n")
    assert {path: path.read_bytes() for path in run.iterdir()} == once


def test_only_a_frontier_keeps_histograms_of_what_it_reads(run: Path) -> None:
    (run.parent / FRONTIER_FILE).write_text("{}")
    reference_kept.shrink(run)
    assert [row["what"] for row in results.read_histograms([run])] == ["latency"]
    (run.parent / FRONTIER_FILE).unlink()
    reference_kept.shrink(run)
    assert not (run / "histograms.parquet").exists()


def test_a_copy_has_no_files_and_folders_that_nothing_reads(run: Path, tmp_path: Path) -> None:
    for name in ("launches.parquet", "agree_graph.parquet", "advise/manifest.json"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(b"{}")
    before = (run / "manifest.json").read_bytes()
    reference_kept.copy(run, tmp_path / "kept", ["advise"])
    names = sorted(path.name for path in (tmp_path / "kept").rglob("*"))
    assert names == ["agree_graph.parquet", "manifest.json", "summary.parquet"]
    assert (run / "manifest.json").read_bytes() == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reference_kept.main([str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_committed_results_are_small() -> None:
    sizes = [path.stat().st_size for path in REFERENCE.rglob("*") if path.is_file()]
    assert sum(sizes) <= MOST_BYTES
    whole = [path for path in REFERENCE.rglob("manifest.json") if '\n  "runs": [\n' in path.read_text()]
    whole += [path for path in REFERENCE.rglob("summary.parquet") if reference_kept.original(path) is None]
    assert not whole, "run: python scripts/reference_kept.py"
