"""Files that a reader sees whole or not at all: written under a temporary name and renamed.

In: a path, and what writes a file. Out: the file, or the one that was there before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from launchopt.errors import RunError
from launchopt.files import reason


def written(path: Path, write: Callable[[Path], object]) -> None:
    """`atomically`, with a RunError where the disk does not take the file: names folder, file and reason."""
    try:
        atomically(path, write)
    except OSError as error:
        raise RunError(f"{path.parent}: {path.name} cannot be written: {reason(error)}") from None


def atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file under a temporary name beside `path`, then give it its name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
