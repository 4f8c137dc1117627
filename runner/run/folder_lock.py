"""A folder of results belongs to one process at a time: `.lock` in it, held with flock(2).

The kernel lets go of it when the process ends, however that happens, so a lock is never stale: what a killed process
leaves is an empty promise that the next one takes over. It holds the owner's process id and host, for the message, and
is removed at the end. On NFS flock works between hosts where the server's lock daemon runs; with the mount options
`nolock` or `local_lock` it holds on one host only. Where the file system has no locks at all, that is said.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from pathlib import Path
from types import TracebackType

from launchopt.errors import RunError
from launchopt.files import Reserve

NAME = ".lock"
PATIENCE_S, _PAUSE_S = 0.5, 0.05
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_OWNER = re.compile(r"\d{1,10} on [\w.-]{1,64}")


class FolderError(RunError):
    """Results cannot go into the folder that was asked for; nothing in it was touched."""

    exit_code = 2

    def __init__(self, key: str, folder: Path, why: str) -> None:
        super().__init__(f"{key}={folder}: {why}; choose another output folder")


class FolderLock:
    """Makes the folder where it is missing, and keeps other processes out of it until `release`.

    `key` is the setting that named the folder. Raises FolderError where another process is in there.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.notice: str | None = None  # where this file system has no locks
        self.made = _missing(folder)  # folders that were not there before, the lowest first
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
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            if not _flock(descriptor):
                owner = _owner(descriptor)
                os.close(descriptor)
                raise FolderError(key, folder, f"in use by {owner}, which holds {self._path}")
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _NO_LOCKS:
                raise
            self._path.unlink(missing_ok=True)
            self.notice = f"{folder}: this file system has no locks ({error.strerror}): start nothing else in there"
            return
        if not _is_at(descriptor, self._path):  # its last owner removed it since it was opened
            os.close(descriptor)
            return
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let others in; folders made for nothing are removed."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                if _is_at(self._descriptor, self._path):
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None
        for folder in self.made:
            with contextlib.suppress(OSError):  # mostly: it is not empty
                folder.rmdir()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def check_writable(key: str, folder: Path) -> None:
    """FolderError where `folder` cannot be made or written to; leaves nothing."""
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
    """Whether it is ours now; who only looks whether it is free (runner.run.leftovers) has it for a moment."""
    for _ in range(int(PATIENCE_S / _PAUSE_S)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def _owner(descriptor: int) -> str:
    """Who says in the file that it is theirs: read as text from a stranger."""
    said = os.pread(descriptor, 100, 0).decode(errors="replace").strip()
    return f"process {said}" if _OWNER.fullmatch(said) else "another process"


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
