"""scripts/reference.py: parts are measured once, by a clean revision; a part that failed is named and tried again."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.config.composing import configured

from runner.bench.__main__ import SUITES
from runner.report.provenance import origin

REVISION = "f" * 40
SMALL = ("runner", "workload=gemv_micro", "workload.m=16", "workload.k=64", "workload.cache=hot", "device=cpu")
FEW = ("workload.commands=500", "mode=baseline", "against=[]", "repeats=1")


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", REVISION)
    return importlib.import_module("scripts.reference")


def test_parts_are_measured_once_and_failures_are_said(
    reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = (
        reference.Part("cpu/small", "cpu", 2, (*SMALL, *FEW)),
        reference.Part("cpu/wrong", "cpu", 1, (*SMALL, "mode=bacthed")),
        reference.Part("cpu/late", "cpu", 0.001, (*SMALL, "workload.commands=100000", "repeats=50")),
        reference.Part("gpu/other", "cuda", 1, ("runner",)),
    )
    assert reference.main(["--output", str(tmp_path)], parts) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "cpu/small: done after" in lines[1]
    assert "cpu/wrong: failed after" in lines[3]
    assert "mode=bacthed" in lines[3]
    assert lines[5].endswith("longer than 0.001 minutes")
    assert lines[6] == "gpu/other: skipped, needs a GPU"

    manifest = json.loads((tmp_path / "cpu/small/manifest.json").read_text())
    assert manifest["part"]["command"] == parts[0].command
    assert manifest["part"]["before"]["processor"]
    assert origin(tmp_path / "cpu/small/manifest.json").revision == REVISION

    assert reference.main(["--list", "--output", str(tmp_path)], parts) == 0
    states = [line[:12].strip() for line in capsys.readouterr().out.splitlines()]
    assert states == ["done", "failed", "out of time", "not tried"]

    assert reference.main(["--only", "cpu/small", "--output", str(tmp_path)], parts) == 0
    assert capsys.readouterr().out == "cpu/small: done before\n"


def test_a_part_of_another_revision_or_command_is_not_done(reference: Any, tmp_path: Path) -> None:
    part = reference.Part("cpu/small", "cpu", 2, SMALL)
    folder = tmp_path / "cpu/small"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    saved = {"state": "done", "command": part.command, "revision": REVISION}
    (tmp_path / reference.STATES).write_text(json.dumps({part.folder: saved}))
    assert reference._state(part, tmp_path, REVISION)["state"] == "done"
    assert reference._state(part, tmp_path, "e" * 40)["state"] == "not tried"
    assert reference._state(part._replace(words=FEW), tmp_path, REVISION)["state"] == "not tried"
    (folder / "manifest.json").unlink()
    assert reference._state(part, tmp_path, REVISION)["state"] == "not tried"


def test_uncommitted_changes_are_refused(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "environment", lambda: {"git_revision": REVISION, "git_dirty": True})
    assert reference.main(["--output", str(tmp_path / "new")]) == 2
    assert "has uncommitted changes" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_only_takes_groups_and_names_the_nearest(
    reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [part.folder for part in reference.chosen(reference.PARTS, ["gpu/resident", "cpu/quick"])]
    assert folders == [*(f"gpu/resident/{i}" for i in range(7)), "cpu/quick"]
    assert reference.main(["--only", "cpu/qick", "--output", str(tmp_path)]) == 2
    assert "did you mean cpu/quick?" in capsys.readouterr().err


@pytest.mark.parametrize("group", ["strategies", "gpu_kernel_batcher", "decode_in_order", "resident", "qkv"])
def test_the_settings_of_parts_are_those_of_a_run(reference: Any, group: str) -> None:
    for part in reference.chosen(reference.PARTS, [f"gpu/{group}"]):
        assert configured(*part.words[1:])


def test_every_part_has_a_folder_of_its_own_and_fits_ten_minutes(reference: Any) -> None:
    folders = [part.folder for part in reference.PARTS]
    assert len(set(folders)) == len(folders)
    assert all(part.minutes <= 10 for part in reference.PARTS)


def test_benchmarks_of_parts_exist(reference: Any) -> None:
    assert {*reference.GPU_BENCHES, *reference.CPU_BENCHES} == {*SUITES}
