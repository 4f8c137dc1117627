"""Temporary folders: gone after their block; those of killed processes are gone after the next start, others stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.processes.own_process import environ_of

from launchopt.scratch import MARK, PREFIX, YOUNG_S, abandoned, remove_abandoned, scratch

PROGRAM = """
import sys
from launchopt.scratch import scratch
with scratch() as folder:
    (folder / "large").mkdir()
    (folder / "large/file").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files, in which there is nothing yet."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def test_a_folder_is_there_during_its_block_and_only_then(place: Path) -> None:
    with scratch() as folder:
        (folder / "file").write_bytes(b"x")
        assert folder.parent == place
        assert abandoned() == []
    assert list(place.iterdir()) == []


def test_a_fork_that_leaves_the_block_does_not_remove_the_folder(place: Path) -> None:
    parent = os.getpid()
    with scratch() as folder:
        if child := os.fork():
            os.waitpid(child, 0)
            assert folder.exists()
    if os.getpid() != parent:
        os._exit(0)
    assert list(place.iterdir()) == []


def test_that_of_a_killed_process_is_removed_by_the_next(place: Path) -> None:
    environ = environ_of() | {"TMPDIR": str(place)}
    call = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(call, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        assert abandoned() == [], "its process lives"
        process.kill()
    assert (folder / "large/file").exists()
    assert abandoned() == [folder]
    with scratch() as own:
        assert list(place.iterdir()) == [own]


def left_folder(place: Path, text: bytes | None, age_s: float = 2 * YOUNG_S) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    if text is not None:
        (folder / MARK).write_bytes(text)
    return aged(folder, age_s)


def aged(folder: Path, age_s: float = 2 * YOUNG_S) -> Path:
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


def test_one_whose_process_was_killed_before_the_mark_is_removed_if_old_and_empty(place: Path) -> None:
    old = [left_folder(place, text) for text in (None, b"")]
    young = [left_folder(place, text, age_s=0) for text in (None, b"")]
    assert remove_abandoned() == sorted(old)
    assert sorted(place.iterdir()) == sorted(young)


def test_folders_of_others_stay(place: Path, tmp_path: Path) -> None:
    with scratch() as own:
        text = (own / MARK).read_bytes()
    removable = left_folder(place, text)
    other_host = left_folder(place, text[:-1] + b"x\n")
    no_mark = left_folder(place, None)
    (no_mark / "file").write_bytes(b"x")
    aged(no_mark)
    open_to_all = left_folder(place, text)
    open_to_all.chmod(0o755)
    pipe = left_folder(place, None)
    os.mkfifo(pipe / MARK)
    aged(pipe)
    other_name = left_folder(place, text).rename(place / "launchopt-other")
    elsewhere = left_folder(tmp_path, text)
    link = place / f"{PREFIX}link"
    link.symlink_to(elsewhere)
    assert remove_abandoned() == [removable]
    assert sorted(place.iterdir()) == sorted([other_host, no_mark, open_to_all, pipe, other_name, link])
    assert (elsewhere / MARK).exists()


def test_a_link_in_a_folder_is_removed_and_not_followed(place: Path, tmp_path: Path) -> None:
    with scratch() as own:
        text = (own / MARK).read_bytes()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_bytes(b"x")
    (left_folder(place, text) / "link").symlink_to(tmp_path / "precious")
    remove_abandoned()
    assert list(place.iterdir()) == []
    assert (tmp_path / "precious/file").exists()
