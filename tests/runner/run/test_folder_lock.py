"""One process at a time in a folder, and no lock that outlives its owner."""

import errno
import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.processes.own_process import environ_of

from runner.run import folder_lock
from runner.run.folder_lock import NAME, FolderError, FolderLock, check_writable

HOLD = """
import sys; from pathlib import Path; from runner.run.folder_lock import NAME, FolderLock
lock = FolderLock(Path(sys.argv[1]), "hydra.run.dir"); print("held", flush=True); sys.stdin.read()
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "PATIENCE_S", folder_lock._PAUSE_S)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.usefixtures("impatient")
def test_another_process_is_refused_until_the_owner_is_gone_however_it_went(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    call = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(call, env=environ_of(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        (folder / "summary.parquet").write_text("measured")
        before = content(folder)
        with pytest.raises(FolderError) as caught:
            FolderLock(folder, "hydra.run.dir")
        assert str(caught.value).startswith(f"hydra.run.dir={folder}: in use by process {owner.pid} on ")
        assert caught.value.exit_code == 2
        assert content(folder) == before
        owner.kill()
    assert (folder / ".launchopt.lock").exists(), "what was killed could not tidy up"
    with FolderLock(folder, "hydra.run.dir"):
        assert (folder / ".launchopt.lock").read_text().startswith(f"{os.getpid()} on ")
    assert set(content(folder)) == {"summary.parquet"}


def test_folders_made_for_nothing_are_removed(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "a/b/c", "hydra.run.dir") as lock:
        assert len(lock.made) == 3
    assert not list(tmp_path.iterdir())
    with FolderLock(tmp_path / "a/b/c", "hydra.run.dir"):
        (tmp_path / "a/b/kept").touch()
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["a", "a/b", "a/b/kept"]


def test_never_two_at_a_time_while_the_file_comes_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is removed at every release: who opened it before must not believe that it still holds something."""
    monkeypatch.setattr(folder_lock, "PATIENCE_S", 60.0)
    monkeypatch.setattr(folder_lock, "_PAUSE_S", 0.0005)
    inside: list[int] = []
    most: list[int] = []
    keep = tmp_path / "keep"
    keep.touch()

    def enter(number: int) -> None:
        for _ in range(50):
            with FolderLock(tmp_path, "hydra.run.dir"):
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(4)))
    assert most == [1] * 200
    assert list(tmp_path.iterdir()) == [keep]


def test_who_only_looks_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / ".launchopt.lock"
    path.touch()
    looking = path.open()
    fcntl.flock(looking, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(FolderLock, tmp_path, "hydra.run.dir")
        looking.close()
        found.result().release()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("content", ["", "not a process", "7 on \x1b[31m", "1 on " + "x" * 500])
def test_what_a_stranger_wrote_is_not_repeated(content: str, tmp_path: Path) -> None:
    (tmp_path / ".launchopt.lock").write_text(content)
    with (tmp_path / ".launchopt.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FolderError, match="in use by another process, which holds"):
            FolderLock(tmp_path, "hydra.run.dir")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_and_used(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with FolderLock(tmp_path, "hydra.run.dir") as lock:
        assert lock.notice == (
            f"{tmp_path}: this file system has no locks ({os.strerror(code)}): start nothing else in there"
        )
        assert not list(tmp_path.iterdir())


def test_a_lock_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".launchopt.lock").symlink_to(target)
    with pytest.raises(FolderError, match="symbolic links"):
        FolderLock(folder, "hydra.run.dir")
    assert target.read_text() == "precious"


def test_what_cannot_be_a_folder_is_refused_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_writable("hydra.run.dir", tmp_path / "a/b")
    for name, why in (("file", "is not a folder"), ("file/x", "is not a folder"), ("x" * 300, "File name too long")):
        with pytest.raises(FolderError, match=why):
            check_writable("hydra.run.dir", tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_lock_of_another_program_is_kept(tmp_path: Path) -> None:
    with FolderLock(tmp_path, "hydra.run.dir"):
        pass
    path = tmp_path / NAME
    path.write_text("precious")
    with pytest.raises(FolderError, match="was not made by launchopt"):
        FolderLock(tmp_path, "hydra.run.dir")
    assert path.read_text() == "precious"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FolderError, match="is not a regular file"):
        FolderLock(tmp_path, "hydra.run.dir")
