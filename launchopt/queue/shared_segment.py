"""A segment of shared memory, which its creator removes.

One process creates it under a unique name and unlinks it when it ends; other processes attach by name. This module
compiles nothing, so that the parent of a run can load it without Numba.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import TracebackType
from typing import Self

from launchopt.files import allocate

FOLDER = Path("/dev/shm")  # Linux has a file here for each segment of shared memory


def new_memory(size: int) -> SharedMemory:
    """Return a new segment, all of whose memory is allocated; raise OSError if there is not enough.

    Otherwise a write without free memory would raise SIGBUS.
    """
    name = f"launchopt_{os.getpid()}_{secrets.token_hex(6)}"
    memory = SharedMemory(name, create=True, size=size)
    if FOLDER.is_dir():
        try:
            file = os.open(FOLDER / name, os.O_RDWR)
            try:
                allocate(file, size)
            finally:
                os.close(file)
        except OSError:
            memory.close()
            memory.unlink()
            raise
    return memory


def _is_tracked() -> bool:
    """Return whether Python's tracker of shared memory is alive. A new one would print a traceback at each `unlink`."""
    tracker = resource_tracker._resource_tracker
    return tracker._fd is not None and bool(tracker._check_alive())  # type: ignore[attr-defined]


class SharedSegment:
    """A context manager: its exit closes the mapping, and unlinks the segment if this process created it."""

    def __init__(self, memory: SharedMemory, owner: bool) -> None:
        self._memory, self._owner = memory, owner
        self.name = memory.name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def stop(self) -> None:
        """Ask all processes that use the memory to stop."""

    def drop_views(self) -> None:
        """Drop the NumPy views of the memory: SharedMemory.close() raises BufferError while one is alive."""

    def release(self) -> None:
        """Close the mapping; the creator also removes the segment. It is safe to call this twice."""
        self.drop_views()
        with contextlib.suppress(BufferError):
            self._memory.close()
        if self._owner:
            self._owner = False
            with contextlib.suppress(FileNotFoundError):
                if FOLDER.is_dir() and not _is_tracked():
                    (FOLDER / self.name).unlink()
                else:
                    self._memory.unlink()
