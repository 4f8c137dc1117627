"""Cores and GPUs of a machine that jobs side by side take: a file of locks for each, in a folder of this user.

The folder lies below that for temporary files. Linux releases the locks of a process when it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_held: list[int] = []  # descriptors with locks of this process


class Pool:
    """The files. folder: instead of that of this user."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.gettempdir(), f"launchopt-cores-{os.geteuid()}")

    def is_usable(self) -> bool:
        """Make the folder; return whether it is a folder of this user, to which nobody else writes."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, exist_ok=True)
            about = self.folder.lstat()
            return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
        return False

    def take(self, names: Sequence[str]) -> bool:
        """Lock all of these for the lifetime of this process, or none. Return whether they are locked."""
        descriptors = list[int]()
        try:
            for name in names:
                descriptors.append(os.open(self.folder / name, _OPEN, 0o600))
                fcntl.flock(descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            for each in descriptors:
                os.close(each)
            return False
        _held.extend(descriptors)
        return True

    def share(self, name: str) -> None:
        """Tell the processes that look at `name` that this one uses what is theirs, too, until it ends."""
        with contextlib.suppress(OSError):
            path = self.folder / name
            descriptor = os.open(path, _OPEN, 0o600)
            _held.append(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.utime(path)

    def is_shared(self, name: str, since_s: float) -> bool:
        """Return whether a process has called `share` since a time, of `time.time`, or before and still runs."""
        with contextlib.suppress(OSError):
            path = self.folder / name
            return path.stat().st_mtime >= since_s or not _if_alone(path)
        return False


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
