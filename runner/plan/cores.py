"""Cores of its own for each job of a sweep whose jobs run side by side on one machine.

A job process locks a set of cores: a file for each core, below the folder for temporary files, of this user. Linux
releases the locks when the process ends. The process and its children are bound to its cores. A producer and a consumer
need LEAST cores. Where there are fewer, the processes share all of them, and `shares` says so: a rate measured then is
not compared with a ceiling. A process that has cores of its own, and is joined by one that shares them, says so, too.

Runs outside of such sweeps lock nothing. GPUs are not divided: jobs side by side share theirs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

LEAST = 2  # cores of a job
# Variables, which the children of a job inherit.
OWN, SHARED, AT_ONCE = "LAUNCHOPT_OWN_CORES", "LAUNCHOPT_SHARED_CORES", "LAUNCHOPT_JOBS_AT_ONCE"
_SHARING = "sharing"  # a file of the pool, touched by each process that shares, and locked until it ends
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_SIBLINGS = "/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
_held: list[int] = []  # descriptors with locks of this process


def take(at_once: int, pool: Path | None = None) -> list[int]:
    """Bind this process to cores of its own for its lifetime, or share all; return them. at_once: jobs on them."""
    os.environ[AT_ONCE] = str(at_once)
    cores = sorted(os.sched_getaffinity(0), key=_place)
    share = len(cores) // max(1, at_once)
    pool = pool or Path(tempfile.gettempdir(), f"launchopt-cores-{os.geteuid()}")
    is_usable = _made(pool)
    for own in _sets(cores, share) if is_usable and share >= LEAST else ():
        if _locked([pool / f"core-{core}" for core in own]):
            os.sched_setaffinity(0, own)
            os.environ[OWN] = str(pool)
            return own
    if is_usable:
        _share(pool / _SHARING)
    why = f"{at_once} jobs at once" if share < LEAST else "other sweeps"
    os.environ[SHARED] = f"{len(cores)} cores with {why}"
    return cores


def shares(device: str, since_s: float) -> str | None:
    """Return with whom this process has shared a device, or its cores since a time; None if they were its own.

    device: "cpu" or "cuda". since_s: of `time.time`.
    """
    if device == "cuda" and int(os.environ.get(AT_ONCE) or 1) > 1:
        return f"the GPUs with {os.environ[AT_ONCE]} jobs at once"
    if found := os.environ.get(SHARED):
        return found
    if pool := os.environ.get(OWN):
        with contextlib.suppress(OSError):
            path = Path(pool, _SHARING)
            if path.stat().st_mtime >= since_s or not _if_alone(path):
                return "its cores with other sweeps"
    return None


def _sets(cores: list[int], share: int) -> Iterator[list[int]]:
    """Yield the sets that cores are divided into."""
    for first in range(0, len(cores) - share + 1, share):
        yield cores[first : first + share]


def _place(core: int) -> tuple[int, int]:
    """Return a key that keeps the hardware threads of one core together."""
    try:
        first = Path(_SIBLINGS.format(core=core)).read_text().replace("-", ",").partition(",")[0]
        return int(first), core
    except (OSError, ValueError):
        return core, core


def _made(pool: Path) -> bool:
    """Make the pool; return whether it is a folder of this user, to which nobody else writes."""
    with contextlib.suppress(OSError):
        pool.mkdir(mode=0o700, exist_ok=True)
        about = pool.lstat()
        return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
    return False


def _locked(paths: list[Path]) -> bool:
    """Lock all files for the lifetime of this process, or none. Return whether they are locked."""
    descriptors = list[int]()
    try:
        for path in paths:
            descriptors.append(os.open(path, _OPEN, 0o600))
            fcntl.flock(descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        for each in descriptors:
            os.close(each)
        return False
    _held.extend(descriptors)
    return True


def _share(path: Path) -> None:
    """Tell processes with cores of their own that this one uses them, too."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, _OPEN, 0o600)
        _held.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(path)


def _if_alone(path: Path) -> bool:
    """Return whether no process shares at the moment."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
