"""Runs of one run_id in several folders: their rows and manifests get the same names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.paths import ROOT

from launchopt.recording.results import read_histograms, read_manifests, read_summaries
from launchopt.recording.run_names import named_apart, other_names

DAYS = ("monday", "tuesday")
RUN = ROOT / "outputs/reference/gpu/timeout_bucket/1800000/3"


@pytest.fixture
def two_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of each day, of one name."""
    monkeypatch.chdir(tmp_path)
    for day in DAYS:
        shutil.copytree(RUN, tmp_path / day / "1800000/3")
        told = json.loads((RUN / "manifest.json").read_text()) | {"started_utc": f"a {day}", "status": day}
        (tmp_path / day / "1800000/3/manifest.json").write_text(json.dumps(told))
    return tmp_path


def test_runs_of_one_id_are_called_by_their_folders_in_rows_and_manifests(two_days: Path) -> None:
    both = [Path("monday"), Path("tuesday")]
    names = ["monday/1800000/3", "tuesday/1800000/3"]
    assert list(dict.fromkeys(row["run_id"] for row in read_summaries(both))) == names
    assert [(each["run_id"], each["status"]) for each in read_manifests(both)] == [*zip(names, DAYS, strict=True)]
    assert list(dict.fromkeys(row["run_id"] for row in read_histograms(both))) == names
    assert {row["run_id"] for row in read_summaries(both[:1])} == {"1800000/3"}


def test_copies_of_a_run_keep_one_name(two_days: Path) -> None:
    shutil.copytree("monday", "copy")
    assert {row["run_id"] for row in read_summaries([Path("monday"), Path("copy")])} == {"1800000/3"}
    of_three = [row["run_id"] for row in read_summaries([Path("monday"), Path("copy"), Path("tuesday")])]
    assert list(dict.fromkeys(of_three)) == ["monday/1800000/3", "tuesday/1800000/3"]
    assert of_three.count("monday/1800000/3") == 2 * of_three.count("tuesday/1800000/3")


def test_a_run_that_ended_without_rows_does_not_speak_for_another_one(two_days: Path) -> None:
    Path("tuesday/1800000/3/summary.parquet").unlink()
    found = {each["status"]: each["run_id"] for each in read_manifests([two_days])}
    assert found["monday"] == "1800000/3" == read_summaries([two_days])[0]["run_id"]
    assert found["tuesday"].endswith("/tuesday/1800000/3")


def test_a_run_that_does_not_say_when_it_began_is_no_other_run(tmp_path: Path) -> None:
    assert other_names([(tmp_path / "a", "x"), (tmp_path / "b", "x")]) == {}
    assert named_apart([(tmp_path / "a", {}), (tmp_path / "b", {})]) == [{}, {}]
