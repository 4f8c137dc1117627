"""Room on a file system, had for certain: nothing here trusts that what was promised can be written later.

A file that was only made longer is a promise. On a full tmpfs the first write to a mapping of it is SIGBUS, which no
program can answer. So `claim` has the blocks allocated, and says so where there are none.

    with Reserve(folder):           # RunError: the folder's name, and why it takes nothing
        ...                         # whatever fills the disk, these bytes are there
    # released: room for the last word

The file of a `Reserve` has no name from the start, so that nothing is left behind however the process ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from types import TracebackType

from launchopt.errors import RunError

RESERVE_BYTES = 4 << 20  # a manifest and a summary of hundreds of repeats, twice: their old ones are replaced, not cut
_NOT_KNOWN = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}  # a file system that cannot allocate ahead


def reason(error: OSError) -> str:
    """What the system says, in its own few words; libraries put them into long ones."""
    return os.strerror(error.errno) if error.errno else str(error)


def claim(file: int, size: int) -> None:
    """Have `size` bytes of the open file allocated; OSError where there is no room for them."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in _NOT_KNOWN:
            raise


class Reserve:
    """Some room in `folder`, kept until it is released. A context manager; RunError where there is none."""

    def __init__(self, folder: Path, size: int = RESERVE_BYTES) -> None:
        try:
            with contextlib.ExitStack() as files:
                file = files.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
                claim(file.fileno(), size)
                self._files = files.pop_all()
        except OSError as error:
            raise RunError(f"{folder} cannot be written to: {reason(error)}") from None

    def release(self) -> None:
        """Give the room back. Safe to call twice."""
        self._files.close()

    def __enter__(self) -> Reserve:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
