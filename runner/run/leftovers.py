"""Remains of killed processes: shared memory, runs and sweeps whose files say `running`, unfinished tables, and what
`launchopt.scratch` and `runner.worker.orphans` find.

Every start of a run removes them (`tidy`). An owner holds flock(2) on its segment `/dev/shm/launchopt_<pid>_<hex>`, or
on `.launchopt.lock` in its folder, until it ends. That works between containers, too, where process ids mean nothing. A
segment is a leftover if no process locks it, and its process is gone or does not map it (the system reuses ids). So is
a named semaphore, `/dev/shm/sem.launchopt_<pid>-<name>` (`runner.worker.lifeline`), which nobody locks. A temporary
file is removed if its name and its first bytes are those of this program.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from launchopt.errors import DataError
from launchopt.files import is_own_temporary, open_regular, read_json, write_atomically
from launchopt.reading.ownership import SWEEP, is_own
from launchopt.recording.manifest import read_manifest, write_manifest
from launchopt.scratch import remove_abandoned
from runner.run import folder_lock
from runner.worker.orphans import end_orphans

FOLDER = Path("/dev/shm")
LOCK = folder_lock.NAME
YOUNG_S = 60.0  # the owner of a younger segment may not have locked it yet
KILLED = "ended without a message: it was killed, or the machine went down"
_NAME = re.compile(r"launchopt_(\d{1,10})_[0-9a-f]+|sem\.launchopt_(\d{1,10})-\w+")
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
    """Lock `path` for this block, or until this process ends."""
    descriptor = os.open(path, _OPEN)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # another process may lock it briefly to test it
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _if_free(path: Path) -> Iterator[bool]:
    """Yield whether no other process locks `path`, and lock it during this block. An unreadable file counts as free."""
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


def is_free(path: Path) -> bool:
    """Return whether no process locks a file, or there is none."""
    with contextlib.suppress(FileNotFoundError), _if_free(path) as free:
        return free
    return True


def _is_owned(path: Path, pid: int) -> bool:
    """Return whether process `pid` may have made the segment and still use it."""
    if not psutil.pid_exists(pid):
        return False
    about = path.lstat()
    if time.time() - about.st_mtime < YOUNG_S:
        return True
    try:  # by its number: a semaphore is mapped before it gets its name
        return f" {about.st_ino} " in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True  # not known, so it counts as owned


def leftovers(folder: Path = FOLDER) -> list[Leftover]:
    """Return the segments and semaphores without an owner, sorted by name."""
    found = []
    for path in sorted([*folder.glob("launchopt_*"), *folder.glob("sem.launchopt_*")]):
        if name := _NAME.fullmatch(path.name):
            pid = int(name[1] or name[2])
            with contextlib.suppress(OSError), _if_free(path) as free:  # its owner may remove it meanwhile
                if free and not _is_owned(path, pid):
                    found.append(Leftover(path, pid, path.lstat().st_size))
    return found


def clean(segments: Iterable[Leftover]) -> list[Leftover]:
    """Remove the segments that still have no owner and return them; DataError if removing one is not permitted."""
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
    """Remove the remains of killed runs in `folder`, beside it and in shared memory. Return a notice for each."""
    remove_unfinished(folder)
    notices = [f"killed the stopped process {pid}, left by killed process {run}" for pid, run in end_orphans().items()]
    notices += [f"removed {place}, left by a killed process" for place in remove_abandoned()]
    for segment in leftovers(segments):
        with contextlib.suppress(DataError):  # a segment of another user stays
            notices += [f"removed {one.path}, left by killed process {one.pid}" for one in clean([segment])]
    for lock in _locks_of_killed(folder):
        with contextlib.suppress(OSError):  # a folder without write permission stays as it is
            if _says_running(lock.parent):
                write_manifest(lock.parent, read_manifest(lock.parent) | {"status": "killed", "error": KILLED})
                remove_unfinished(lock.parent)
                notices.append(f"{lock.parent}: was killed, its manifest says so now")
            _note_killed_sweep(lock.parent)
            lock.unlink(missing_ok=True)
    return notices


def remove_unfinished(folder: Path) -> None:
    """Complete tables from their finished repeats, and remove unfinished files. No process may write to the folder."""
    if any(map(is_own_temporary, folder.glob(".*.part.tmp"))):
        from runner.worker.tables import rescue  # late: few starts find halves, and it imports pyarrow

        rescue(folder)
    for half in filter(is_own_temporary, folder.glob(".launchopt-*.tmp")):
        half.unlink(missing_ok=True)


def killed_runs(parent: Path) -> list[Path]:
    """Return the folders below `parent` of runs and sweeps that were killed."""
    return [lock.parent for lock in _free_locks(parent)]


def _locks_of_killed(folder: Path) -> Iterator[Path]:
    """Yield locks beside `folder`, and beside the sweep if `folder` is that of a job."""
    yield from _free_locks(folder.parent)
    if (folder.parent / LOCK).exists():
        yield from _free_locks(folder.parent.parent)


def _free_locks(parent: Path) -> Iterator[Path]:
    """Yield the lock files of killed runs, sweeps and jobs. Each is locked while the caller handles it."""
    mine = f" on {socket.gethostname()}"
    for outer in sorted(parent.glob(f"*/{LOCK}")):
        for lock in (*sorted(outer.parent.glob(f"*/{LOCK}")), outer):
            with contextlib.suppress(OSError), _if_free(lock) as free:
                owner = _text(lock).rstrip() if free else ""
                if _LOCKED.fullmatch(owner) and owner.endswith(mine):
                    yield lock


def _text(lock: Path) -> str:
    """Return the beginning of a lock file; OSError for a pipe or a device, which belongs to another program."""
    with open_regular(lock) as file:
        return file.read(200).decode(errors="replace")


def _note_killed_sweep(folder: Path) -> None:
    """Let `sweep.json` say `killed` where it says `running`: of the sweep, and of the job that was under way."""
    path = folder / SWEEP
    about = read_json(path) if is_own(path) else {}
    jobs = about.get("jobs")
    if about.get("status") == "running" and isinstance(jobs, list):
        under_way = [job for job in jobs if isinstance(job, dict) and job.get("status") == "running"]
        for job in under_way:
            job |= {"status": "killed", "error": KILLED}
        text = json.dumps(about | {"status": "killed", "jobs": jobs}, indent=2) + "\n"
        write_atomically(path, lambda temporary: temporary.write_text(text))


def _says_running(folder: Path) -> bool:
    path = folder / "manifest.json"
    return is_own(path) and read_manifest(folder).get("status") == "running"
