"""Shared memory that dead processes left behind: /dev/shm/launchopt_<pid>_<hex>.

In: a folder of segments. Out: those whose process is gone. A process of another container that shares the folder
cannot be seen from here and would look dead, so nothing is removed unless asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from launchopt.errors import DataError

FOLDER = Path("/dev/shm")
_NAME = re.compile(r"launchopt_(\d{1,10})_[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A segment whose process, `pid`, is gone."""

    path: Path
    pid: int
    size_bytes: int


def leftovers(folder: Path = FOLDER) -> list[Leftover]:
    """Of dead processes, by name; an id that is in use again counts as alive."""
    found = []
    for path in sorted(folder.glob("launchopt_*")):
        name = _NAME.fullmatch(path.name)
        if name is None or psutil.pid_exists(int(name[1])):
            continue
        try:
            found.append(Leftover(path, int(name[1]), path.lstat().st_size))
        except FileNotFoundError:
            continue  # whoever owned it has just tidied up
    return found


def clean(segments: Iterable[Leftover]) -> list[Leftover]:
    """Remove each whose process id has not come to life since; those removed. DataError where one may not be."""
    removed = []
    for segment in segments:
        if psutil.pid_exists(segment.pid):
            continue
        try:
            segment.path.unlink(missing_ok=True)
        except OSError as error:
            raise DataError(segment.path, None, f"cannot be removed ({error.strerror})") from None
        removed.append(segment)
    return removed
