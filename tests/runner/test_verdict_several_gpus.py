"""`launchopt verdict` on runs whose GPUs split a model: each line names its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.diagnosed_rows import decode

from launchopt.analysis.skew import NO_TIMES
from launchopt.recording import results
from launchopt.recording.results import Row
from runner import verdict

SPLIT: dict[str, Any] = {"gpus": 2, "tensor": 2, "collectives": 1, "all_reduce_us": 7.0, "all_reduce_wait_us": 2.0}


def all_reduce(run_id: str, gpu: int, start_ns: int) -> Row:
    times = {"device_start_ns": start_ns, "device_end_ns": 190, "submit_start_ns": 0, "submit_end_ns": 1, "flush_ns": 0}
    own = {"run_id": run_id, "mode": "engine", "repeat": 0, "gpu": gpu, "launch": 0, "op": "all_reduce", "batch": 0}
    shape = {"m": 1, "n": 1, "k": 1, "dtype": "fp16", "batch_size": 1, "packed_bytes": 0}
    words = {"strategy": "single", "flush_reason": "full"}
    return {**dict.fromkeys(results.LAUNCHES.names), **times, **own, **shape, **words}


def write(folder: Path, run_id: str, *, wall_ms: float = 100.0, is_timed: bool = True) -> Path:
    """Write a run of engine on two GPUs with one all-reduce, for which GPU 0 waits 60 ns. is_timed: as recorded."""
    folder.mkdir(parents=True)
    rows = decode("engine", wall_ms, run_id=run_id, **SPLIT)
    results.write_rows(folder / "summary.parquet", results.SUMMARY, rows, {})
    plain = dict.fromkeys(results.GPUS.names) | {"run_id": run_id, "mode": "engine", "repeat": 0}
    gpus = [plain | {"gpu": gpu, "requests": 16, "commands": 8000, "wall_ms": wall_ms} for gpu in (0, 1)]
    results.write_rows(folder / "gpus.parquet", results.GPUS, gpus, {})
    if is_timed:
        launches = [all_reduce(run_id, 0, 100), all_reduce(run_id, 1, 160)]
        results.write_rows(folder / "launches.parquet", results.LAUNCHES, launches, {})
    results.write_manifest(folder, {"run_id": run_id})
    return folder


def said(capsys: pytest.CaptureFixture[str], *folders: Path) -> str:
    assert verdict.main(list(map(str, folders))) == 0
    return capsys.readouterr().out


def runs_of(capsys: pytest.CaptureFixture[str], folder: Path) -> list[str]:
    assert verdict.main([str(folder), "--json"]) == 0
    return [each["run"] for each in json.loads(capsys.readouterr().out)["all_reduces"] if each["gpu"] is None]


def test_one_run_needs_no_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, write(tmp_path / "sweep/0", "sweep/0"))
    assert "engine split over 2 GPUs: 1 all-reduces of 7.0 us" in shown
    assert "\nengine, skew " in shown
    assert NO_TIMES not in shown


def test_jobs_of_a_sweep_are_named_as_their_rows_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one/0", "two/0"):
        write(tmp_path / name, name)
    shown = said(capsys, tmp_path)
    for name in ("one/0", "two/0"):
        assert f"engine (run {name}) split over 2 GPUs" in shown
        assert f"engine (run {name}), skew " in shown
    assert runs_of(capsys, tmp_path) == ["one/0", "two/0"]


def test_runs_that_share_a_name_have_the_names_of_their_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("all/monday/sweep/0"), "sweep/0")
    write(Path("all/tuesday/sweep/0"), "sweep/0", wall_ms=110.0, is_timed=False)
    timed, untimed = "all/monday/sweep/0", "all/tuesday/sweep/0"
    shown = said(capsys, Path("all"))
    assert f"engine (run {untimed}) split over 2 GPUs" in shown
    assert f"engine (run {timed}), skew " in shown
    assert f"engine (run {untimed}): {NO_TIMES}" in shown, "the times of the other run are not its own"
    assert runs_of(capsys, Path("all")) == [timed]
