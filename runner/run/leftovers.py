"""What killed processes left: shared memory /dev/shm/launchopt_<pid>_<hex>, runs that still say `running`, half tables.

In: a folder of segments, or of runs. Out: what nobody owns any more; every start of a run removes that (`tidy`). An
owner holds flock(2) on its segment, or on `.lock` in its folder, until it ends, however it ends: that holds between
containers, too, where a process id says nothing. A segment is left over when nobody holds it, and its process is gone
or does not map it (ids are used again).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from launchopt.errors import DataError
from launchopt.recording.manifest import read_manifest, write_manifest
from runner.run import folder_lock

FOLDER = Path("/dev/shm")
LOCK = folder_lock.NAME
YOUNG_S = 60.0  # a segment may be younger than its owner's hold on it
KILLED = "ended without a word: it was killed, or the machine went down"
_NAME = re.compile(r"launchopt_(\d{1,10})_[0-9a-f]+")
_LOCKED = re.compile(r"\d{1,10} on \S{1,64}")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Leftover:
    """A segment whose process, `pid`, is gone."""

    path: Path
    pid: int
    size_bytes: int


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Say that `path` is in use for as long as this lasts, or this process lives."""
    descriptor = os.open(path, _OPEN)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits for one who is just looking
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _if_free(path: Path) -> Iterator[bool]:
    """Whether nobody holds `path`; nobody can while this lasts. What may not be opened tells nothing: free."""
    descriptor = None
    with contextlib.suppress(PermissionError):
        descriptor = os.open(path, _OPEN)
    if descriptor is None:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def _is_owned(path: Path, pid: int) -> bool:
    """Whether process `pid` may be who made the segment and uses it."""
    if not psutil.pid_exists(pid):
        return False
    if time.time() - path.lstat().st_mtime < YOUNG_S:
        return True
    try:
        return str(path) in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True  # not told


def leftovers(folder: Path = FOLDER) -> list[Leftover]:
    """Segments that nobody owns, by name."""
    found = []
    for path in sorted(folder.glob("launchopt_*")):
        if name := _NAME.fullmatch(path.name):
            pid = int(name[1])
            with contextlib.suppress(OSError), _if_free(path) as free:  # whoever owned it may just tidy up
                if free and not _is_owned(path, pid):
                    found.append(Leftover(path, pid, path.lstat().st_size))
    return found


def clean(segments: Iterable[Leftover]) -> list[Leftover]:
    """Remove each that nobody has taken since; those removed. DataError where one may not be."""
    removed = []
    for segment in segments:
        try:
            with _if_free(segment.path) as free:
                if not free or _is_owned(segment.path, segment.pid):
                    continue
                segment.path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise DataError(segment.path, None, f"cannot be removed ({error.strerror})") from None
        removed.append(segment)
    return removed


def tidy(folder: Path, segments: Path = FOLDER) -> list[str]:
    """Before a run in `folder`: remove what killed ones left there, beside it, and in shared memory; says what."""
    remove_halves(folder)
    said = []
    for segment in leftovers(segments):
        with contextlib.suppress(DataError):  # somebody else's: theirs to remove
            said += [f"removed {one.path}, left by killed process {one.pid}" for one in clean([segment])]
    for lock in _locks_of_killed(folder):
        with contextlib.suppress(OSError):  # what may not be written to stays as it is
            if _says_running(lock.parent):
                write_manifest(lock.parent, read_manifest(lock.parent) | {"status": "killed", "error": KILLED})
                remove_halves(lock.parent)
                said.append(f"{lock.parent}: was killed, its manifest says so now")
            lock.unlink(missing_ok=True)
    return said


def remove_halves(folder: Path) -> None:
    """Finish tables with the repeats that were, remove what is half of one; only where nobody writes."""
    if any(folder.glob(".*.part.tmp")):
        from runner.worker.tables import rescue  # late: compilers come with it

        rescue(folder)
    for half in folder.glob(".*.tmp"):
        half.unlink(missing_ok=True)


def killed_runs(parent: Path) -> list[Path]:
    """Folders below `parent` of runs and sweeps whose process is gone while they were on."""
    return [lock.parent for lock in _free_locks(parent)]


def _locks_of_killed(folder: Path) -> Iterator[Path]:
    """Beside `folder`, and where that is a job's in a sweep, beside the sweep."""
    yield from _free_locks(folder.parent)
    if (folder.parent / LOCK).exists():
        yield from _free_locks(folder.parent.parent)


def _free_locks(parent: Path) -> Iterator[Path]:
    """Locks of runs, and of sweeps and their jobs, that a killed process left; nobody can take one meanwhile."""
    mine = f" on {socket.gethostname()}"
    for outer in sorted(parent.glob(f"*/{LOCK}")):
        for lock in (*sorted(outer.parent.glob(f"*/{LOCK}")), outer):
            with contextlib.suppress(OSError), _if_free(lock) as free:
                owner = lock.read_text(errors="replace").rstrip() if free else ""
                if _LOCKED.fullmatch(owner) and owner.endswith(mine):
                    yield lock


def _says_running(folder: Path) -> bool:
    try:
        return read_manifest(folder).get("status") == "running"
    except DataError:
        return False
