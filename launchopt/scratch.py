"""Temporary folders that the next start removes if their process was killed.

    with scratch() as folder:
        ...                         # the folder and its content are gone after this block

A folder is `launchopt-scratch-<random>`, of mode 0700, in the folder for temporary files. Its owner holds flock(2) on
the file MARK in it. `remove_abandoned` removes a folder of this user with a mark that no process locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from launchopt.files import open_regular

PREFIX = "launchopt-scratch-"
MARK = ".launchopt-scratch"
YOUNG_S = 60.0  # the owner of a younger folder may not have marked it yet


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Make a temporary folder for this block. Those of killed processes are removed first."""
    remove_abandoned()
    folder, owner = Path(tempfile.mkdtemp(prefix=PREFIX)), os.getpid()
    try:
        with (folder / MARK).open("x", encoding="utf-8") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX)
            mark.write(_text())
            mark.flush()
            yield folder
    finally:
        if os.getpid() == owner:  # and no fork of it that leaves the block
            shutil.rmtree(folder, ignore_errors=True)


def abandoned() -> list[Path]:
    """Return the temporary folders of killed processes of this user and machine."""
    places = Path(tempfile.gettempdir()).glob(f"{PREFIX}*")
    return sorted(each for each in places if _is_abandoned(each))


def remove_abandoned() -> list[Path]:
    """Remove what `abandoned` returns, and return what is gone."""
    found = abandoned()
    for folder in found:
        shutil.rmtree(folder, ignore_errors=True)  # it removes no file behind a symbolic link
    return [folder for folder in found if not folder.exists()]


def _is_abandoned(folder: Path) -> bool:
    try:
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            return False
        mark = folder / MARK
        if _is_old(about) and all(each == mark and _is_empty(each) for each in folder.iterdir()):
            return True  # its process was killed before it wrote the mark
        with open_regular(mark) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file.read(200) == _text().encode()
    except OSError:
        return False


def _is_old(about: os.stat_result) -> bool:
    return time.time() - about.st_mtime > YOUNG_S


def _is_empty(path: Path) -> bool:
    about = path.lstat()
    return stat.S_ISREG(about.st_mode) and about.st_size == 0


def _text() -> str:
    return f"a temporary folder of launchopt on {socket.gethostname()}\n"
