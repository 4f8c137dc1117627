"""Print messages as single lines of at most MOST_CHARACTERS, without control characters.

A longer message is cut, and the line names a file that has all of it. The newest MOST_FILES files are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import tempfile
from pathlib import Path

from launchopt.caches import OWN, folder_of
from launchopt.errors import one_line

MOST_CHARACTERS = 400  # maximum of a line, with its first word
MOST_KEPT = 1 << 20  # maximum characters of a message in a file
MOST_FILES = 20


def say(text: object) -> None:
    """Print a text with names in it as one line."""
    print(one_line(text))


_collected: list[object] | None = None  # takes errors instead of standard error


def collect_errors() -> list[object]:
    """Return a list to which `print_error` adds errors from now on, instead of printing them. Warnings are printed."""
    global _collected
    _collected = []
    return _collected


def print_error(error: object, kind: str = "error") -> None:
    """Print what is wrong as one line on standard error. kind: its first word."""
    if _collected is not None and kind == "error":
        _collected.append(error)
        return
    print(shortened(f"{kind}: {one_line(error)}"), file=sys.stderr)


def shortened(line: str) -> str:
    """Return a line for the user. A long one is cut: it keeps what to type, and names a file with all of it."""
    if len(line) <= MOST_CHARACTERS:
        return line
    file = _kept(line[:MOST_KEPT])
    end = "..." if file is None else f"... (all of it: {one_line(file, MOST_CHARACTERS // 2)})"
    meant = "".join(line.rpartition("; did you mean ")[1:]) if "; did you mean " in line else ""
    if len(meant) < MOST_CHARACTERS // 4:
        end += meant
    return line[: MOST_CHARACTERS - len(end)] + end


def _kept(text: str) -> Path | None:
    """Write a message to a file, and return its path; None if no folder takes it."""
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.txt"
    cache = folder_of(OWN)
    with contextlib.suppress(OSError):
        if cache is not None:
            folder = cache / "launchopt" / "messages"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text}\n", encoding="utf-8")
            for old in sorted(folder.glob("*.txt"), key=lambda each: each.stat().st_mtime)[:-MOST_FILES]:
                old.unlink(missing_ok=True)
            return folder / name
    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile(
            "w", prefix="launchopt-message-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file,
    ):
        file.write(f"{text}\n")
        return Path(file.name)
    return None
