"""A lock that keeps a folder of results to one process at a time: flock(2) on `.launchopt.lock`
in the folder.

Linux releases the lock whenever its process ends, so a lock is never stale. The file holds the owner's process id and
host, for error messages, and is removed at the end. A killed process leaves the file, unlocked; the next process takes
it over.

On NFS the lock works between hosts if the server runs a lock daemon. With the mount options `nolock` or `local_lock` it
works on one host only. If the file system has no locks, the user gets a notice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import time
from pathlib import Path
from types import TracebackType

from launchopt.errors import ConfigError, RunError, explained
from launchopt.files import Reserve

NAME = ".launchopt.lock"
PATIENCE_S, _PAUSE_S = 0.5, 0.05
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_OWNER = re.compile(r"\d{1,10} on [\w.-]{1,64}")


class FolderError(RunError):
    """The chosen folder cannot take the results. Nothing in it was changed."""

    exit_code = 2

    def __init__(self, key: str, folder: Path, why: str) -> None:
        super().__init__(f"{key}={folder}: {why}; choose another output folder")


class FolderLock:
    """Makes the folder if necessary and keeps other processes out of it until `release`. A context manager.

    `key` is the setting that named the folder. Raises FolderError if another process holds it.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.notice: str | None = None  # set if this file system has no locks
        self.made = _missing(folder)  # folders that this process makes, the innermost first
        self._path = folder / NAME
        self._descriptor: int | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            while self._descriptor is None and self.notice is None:
                self._take(folder, key)
        except FolderError:
            raise
        except OSError as error:
            self.release()
            raise FolderError(key, folder, f"{error.filename or folder}: {error.strerror}") from None

    def _take(self, folder: Path, key: str) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FolderError(key, folder, f"{self._path} is not a regular file")
            if not _flock(descriptor):
                raise FolderError(key, folder, f"in use by {_owner(descriptor)}, which holds {self._path}")
            if not _is_own(descriptor):
                raise FolderError(key, folder, f"{self._path} was not made by launchopt")
        except FolderError:
            os.close(descriptor)
            raise
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _NO_LOCKS:
                raise
            self._path.unlink(missing_ok=True)
            self.notice = f"{folder}: this file system has no locks ({error.strerror}): start nothing else in there"
            return
        if not _is_at(descriptor, self._path):  # its last owner removed it after this process opened it
            os.close(descriptor)
            return
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Unlock the folder, and remove folders that this process made and left empty."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                if _is_at(self._descriptor, self._path):
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None
        for folder in self.made:
            with contextlib.suppress(OSError):  # usually: it is not empty
                folder.rmdir()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def chosen_folder(key: str, value: object) -> Path:
    """Return the folder that a setting names; ConfigError for one that Hydra cannot have.

    An empty one would be the current folder.
    """
    if value is None or not str(value).strip():
        raise ConfigError(key, "", explained("names no folder", "", [f"{key}=outputs/run/NAME"]))
    if "${" in str(value):
        raise ConfigError(key, value, "has ${ in its name, which Hydra reads: name another folder")
    return Path(str(value))


def check_writable(key: str, folder: Path) -> None:
    """Raise FolderError if `folder` cannot be made or written to. Leaves nothing behind."""
    existing = folder
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
    except OSError as error:
        raise FolderError(key, folder, str(error.strerror)) from None
    if not existing.is_dir():
        raise FolderError(key, folder, f"{existing} is not a folder")
    try:
        Reserve(existing).release()
    except RunError as error:
        raise FolderError(key, folder, str(error)) from None


def _missing(folder: Path) -> list[Path]:
    missing = []
    while not folder.exists() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    return missing


def _flock(descriptor: int) -> bool:
    """Return whether this process has the lock, after up to PATIENCE_S: `leftovers` locks a file briefly to test it."""
    for _ in range(int(PATIENCE_S / _PAUSE_S)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def _owner(descriptor: int) -> str:
    """Return the owner that the file names, if its text has the expected form."""
    owner = os.pread(descriptor, 100, 0).decode(errors="replace").strip()
    return f"process {owner}" if _OWNER.fullmatch(owner) else "another process"


def _is_own(descriptor: int) -> bool:
    """Return whether the file is empty, or names a process of this program."""
    text = os.pread(descriptor, 100, 0).decode(errors="replace").strip()
    return not text or _OWNER.fullmatch(text) is not None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
