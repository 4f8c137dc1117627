"""Runs of one run_id in several folders: all readers call each by the same name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support.paths import ROOT
from support.processes.limits import limited

from launchopt.recording.results import read_histograms, read_manifests, read_summaries
from launchopt.recording.run_names import name_of_run, names_in
from launchopt.report.source import read_source

RUN = ROOT / "outputs/reference/gpu/timeout_bucket/1800000"
MONDAY, TUESDAY = Path("monday/1800000/3"), Path("tuesday/1800000/3")
EVERYWHERE = [Path()]
BOTH = ["monday/1800000/3", "tuesday/1800000/3"]


@pytest.fixture(autouse=True)
def two_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of one name, which began in the same second."""
    monkeypatch.chdir(tmp_path)
    for folder, job in ((MONDAY, "3"), (TUESDAY, "5")):
        shutil.copytree(RUN / job, folder)
        told = json.loads((RUN / job / "manifest.json").read_text())
        told |= {"run_id": "1800000/3", "started_utc": "2026-11-28T20:41:34+00:00", "status": folder.parts[0]}
        (folder / "manifest.json").write_text(json.dumps(told, indent=2))
    rename_rows(TUESDAY)


def rename_rows(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("summary", "histograms"):
        table = pq.read_table(folder / f"{name}.parquet")
        own = pa.array(["1800000/3"] * len(table))
        at = table.schema.get_field_index("run_id")
        pq.write_table(table.set_column(at, table.schema.field(at), own), folder / f"{name}.parquet")


def names_of_rows(folders: list[Path]) -> list[str]:
    return sorted({row["run_id"] for row in read_summaries(folders)})


def names_of_manifests(folders: list[Path]) -> dict[str, str]:
    return {each["status"]: each["run_id"] for each in read_manifests(folders) if "status" in each}


def test_runs_of_one_id_are_called_by_their_folders_by_every_reader() -> None:
    for folders in (EVERYWHERE, [Path("tuesday"), Path("monday")], [MONDAY / "summary.parquet", TUESDAY]):
        assert names_of_rows(folders) == BOTH
        assert names_of_manifests(folders) == dict(zip(("monday", "tuesday"), BOTH, strict=True))
        assert sorted({row["run_id"] for row in read_histograms(folders)}) == BOTH
    assert names_of_rows([Path("monday")]) == ["1800000/3"]
    source = read_source(EVERYWHERE)
    assert [run.folder for name in BOTH if (run := source.run(name))] == [MONDAY, TUESDAY]


def test_a_folder_says_the_name_of_its_run(tmp_path: Path) -> None:
    names = names_in(EVERYWHERE)
    assert [name_of_run(folder, names) for folder in (MONDAY, TUESDAY)] == BOTH
    assert name_of_run(MONDAY, {}) == "1800000/3"
    (tmp_path / "bare").mkdir()
    assert name_of_run(tmp_path / "bare", names) == "bare", "neither manifest nor rows"


def test_copies_of_a_run_keep_one_name() -> None:
    shutil.copytree("monday", "copy")
    shutil.copytree("monday", "a copy")
    assert names_of_rows([Path("monday"), Path("copy")]) == ["1800000/3"]
    names = ["a copy/1800000/3", "tuesday/1800000/3"]
    assert names_of_rows(EVERYWHERE) == sorted({run.name for run in read_source(EVERYWHERE).runs}) == names


def test_rows_beyond_any_disk_are_told_apart_at_once() -> None:
    """A damaged file claims a size that no reader could read to its end."""
    os.truncate(TUESDAY / "summary.parquet", 1 << 40)
    with limited(5.0, 256 << 20):
        assert sorted(names_in(EVERYWHERE).values()) == BOTH


@pytest.mark.parametrize("manifest", [None, "", "[1]", "{", '{"run_id": ["1800000/3"], "started_utc": {}}'])
def test_a_run_without_a_manifest_of_use_is_told_apart_by_its_rows(manifest: str | None) -> None:
    (TUESDAY / "manifest.json").unlink()
    if manifest is not None:
        (TUESDAY / "manifest.json").write_text(manifest)
    assert names_of_rows(EVERYWHERE) == BOTH
    assert names_of_manifests([Path("monday"), Path("tuesday")])["monday"] == BOTH[0]
    assert sorted({row["run_id"] for row in read_histograms(EVERYWHERE)}) == BOTH


@pytest.mark.parametrize("rows", [None, b"junk"])
def test_a_run_without_rows_of_use_is_told_apart_by_its_manifest(rows: bytes | None) -> None:
    (TUESDAY / "summary.parquet").unlink()
    if rows is not None:
        (TUESDAY / "summary.parquet").write_bytes(rows)
    assert names_of_rows(EVERYWHERE) == BOTH[:1]
    assert names_of_manifests(EVERYWHERE) == dict(zip(("monday", "tuesday"), BOTH, strict=True))


def test_a_run_whose_twin_lacks_a_file_keeps_its_own() -> None:
    (TUESDAY / "histograms.parquet").unlink()
    assert {row["run_id"] for row in read_histograms(EVERYWHERE)} == {BOTH[0]}


def test_a_new_name_is_no_other_runs_name() -> None:
    told = json.loads((MONDAY / "manifest.json").read_text()) | {"run_id": "monday/1800000/3"}
    shutil.copytree(MONDAY, "third")
    Path("third/manifest.json").write_text(json.dumps(told, indent=2))
    names = names_in(EVERYWHERE)
    assert names[MONDAY, "1800000/3"] == "./monday/1800000/3"


def test_a_name_is_text_that_a_file_can_hold() -> None:
    shutil.copytree("tuesday", os.fsdecode(b"u\xff"))
    shutil.rmtree("tuesday")
    assert all(name.encode() for name in names_of_rows(EVERYWHERE))
