"""Folders of a run or a sweep that are in use, or hold what is not ours: refused, and the other jobs run."""

import os
from pathlib import Path

import pytest
from support.results.sweeps import Run, content, statuses

from launchopt.recording import results
from runner.run import folder_lock
from runner.run.folder_lock import FolderLock

SMALL = "device=cpu workload.m=16 workload.k=64 workload.commands=200 workload.cache=hot"

pytestmark = pytest.mark.usefixtures("kept_children")


@pytest.mark.parametrize("words", ["hydra.run.dir=there", "-m hydra.sweep.dir=there seed=1,2"])
def test_a_folder_in_use_is_left_alone(words: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "PATIENCE_S", folder_lock._PAUSE_S)
    folder = tmp_path / "there"
    with FolderLock(folder, "hydra.run.dir"):
        (folder / "multirun.yaml").write_text("theirs: runner.app.Precheck")
        (folder / "manifest.json").write_text('{"schema_version": 1, "status": "running"}')
        before = content(folder)
        ran = run(f"{words} {SMALL}")
        assert (ran.exit_code, ran.stdout) == (2, "")
        key = words.removeprefix("-m ").partition("=")[0]
        assert ran.stderr.startswith(f"error: {key}=there: in use by process {os.getpid()} on ")
        assert ran.stderr.count("\n") == 1
        assert content(folder) == before


def test_a_job_whose_folder_is_in_use_is_refused_and_the_others_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "PATIENCE_S", folder_lock._PAUSE_S)
    with FolderLock(tmp_path / "s/0", "hydra.run.dir"):
        ran = run(f"-m {SMALL} seed=1,2 hydra.sweep.dir=s")
        assert ran.exit_code == 2
        assert statuses(tmp_path / "s") == ["refused", "ok"]
        assert list(content(tmp_path / "s/0")) == [".launchopt.lock"]


@pytest.mark.parametrize("subdir", ["${hydra.job.num}", "${hydra.job.num}/below"])
def test_a_job_whose_folder_is_a_file_is_refused_and_the_others_run(subdir: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/0").write_text("theirs")
    ran = run(f"-m {SMALL} seed=1,2 hydra.sweep.dir=s hydra.sweep.subdir={subdir}")
    folder = subdir.replace("${hydra.job.num}", "s/0")
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: hydra.sweep.dir={folder}: cannot be made as a folder (")
    assert ran.stderr.count("\n") == 1
    assert statuses(tmp_path / "s") == ["refused", "ok"]
    assert (tmp_path / "s/0").read_text() == "theirs"


@pytest.mark.parametrize("kind", ["pipe", "link", "link to nothing"])
def test_hydras_file_of_a_sweep_replaces_a_link_or_a_pipe_only_with_force(kind: str, run: Run, tmp_path: Path) -> None:
    path, outside = tmp_path / "s/multirun.yaml", tmp_path / "outside"
    words = f"-m {SMALL} seed=1,2 hydra.sweep.dir=s"
    assert run(words).exit_code == 0
    assert run(words).exit_code == 0, "our own file is no obstacle"
    path.unlink()
    if kind == "link":
        outside.write_text("runner.app.Precheck")
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(outside)
    ran = run(words)
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1)
    assert "multirun.yaml was not made by launchopt; force=true replaces it" in ran.stderr
    assert run(f"{words} force=true").exit_code == 0
    assert not path.is_symlink()
    assert path.is_file()
    assert not outside.exists() or outside.read_text() == "runner.app.Precheck"


def test_two_jobs_in_one_folder_are_refused_before_the_second(run: Run, tmp_path: Path) -> None:
    ran = run(f"-m {SMALL} seed=1,2 hydra.sweep.dir=s hydra.sweep.subdir=one")
    wanted = "holds another job of this sweep: give each its own, as ${hydra.job.num} does"
    assert (ran.exit_code, ran.stderr) == (2, f"error: hydra.sweep.subdir=one: {wanted}\n")
    assert statuses(tmp_path / "s") == ["ok", "refused"]
    assert results.read_manifest(tmp_path / "s/one")["status"] == "ok"
