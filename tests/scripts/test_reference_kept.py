"""scripts/reference_kept.py: results become smaller, and whatever reads them finds the same."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest
from support.paths import ROOT
from support.results.summary_rows import repeats, write

from launchopt.recording import results
from launchopt.report.environment import environment
from launchopt.report.source import read_source
from runner.report.tables import FRONTIER_FILE
from scripts import goal_pages, readme_figures, reference_kept, reproduced

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


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "new/closed"
    closed.mkdir(parents=True)
    reference_kept.require_readable(tmp_path)
    scandir = os.scandir

    def refused(path: str) -> object:
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, "no", path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", refused)  # root may read all
    for script in (goal_pages, readme_figures, reproduced):
        assert script.main([str(tmp_path / "new")]) == 2
        assert "new/closed: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"PAR1PAR1PAR1", b"\x00" * 99])
def test_a_table_that_is_none_is_named(content: bytes, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "summary.parquet").write_bytes(content)
    assert reference_kept.main([str(run)]) == 2
    assert "summary.parquet: cannot be read as Parquet" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", '{"runs": 3}', '{"runs": [3]}', '{"runs": [{"state": 3}]}'])
def test_a_manifest_that_is_none_is_named(content: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "manifest.json").write_text(content)
    assert reference_kept.main([str(run)]) == 2
    assert "manifest.json: " in capsys.readouterr().err


def test_committed_results_are_small() -> None:
    sizes = [path.stat().st_size for path in REFERENCE.rglob("*") if path.is_file()]
    assert sum(sizes) <= MOST_BYTES
    whole = [path for path in REFERENCE.rglob("manifest.json") if '\n  "runs": [\n' in path.read_text()]
    whole += [path for path in REFERENCE.rglob("summary.parquet") if reference_kept.original(path) is None]
    assert not whole, "run: python scripts/reference_kept.py"
