"""Files that a program leaves beside its tables: complete, or not there at all."""

from __future__ import annotations

import json
from pathlib import Path

from launchopt.errors import DataError
from launchopt.whole_file import atomically


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name, then rename; DataError where that fails."""
    try:
        atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror})") from None


def write_json(path: Path, content: object) -> None:
    """The same, of `content` as JSON."""
    write_text(path, json.dumps(content, indent=2) + "\n")
