"""The states of the parts of the reference results: `parts.json` of an output folder, which one process writes.

A part has a state from before its first command on. So a start knows what an earlier one left, even one that was
killed, and removes it: a part is measured as a whole. What no state names belongs to somebody else, and stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from launchopt.errors import ConfigError, DataError
from launchopt.files import JsonObject, read_json, reason, save_json
from runner.provenance.origins import carriers
from scripts.reference_part import Part

FILE, LOCK = "parts.json", "parts.lock"
DONE, NOT_TRIED, BEGUN = "done", "not tried", "begun"
SAVING = threading.Lock()


@contextlib.contextmanager
def held(output: Path) -> Iterator[None]:
    """Make an output folder, and hold it until the end; ConfigError if it cannot be made, or another start holds it."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        lock = os.open(output / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError("--output", str(output), f"cannot be written to: {reason(error)}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        why = "another start measures into it; wait for its end, or give another folder"
        raise ConfigError("--output", str(output), why) from None
    try:
        yield
    finally:
        os.close(lock)  # the file stays: a start that has opened it could lock it


def read_states(output: Path) -> JsonObject:
    """Return the state of every part that was tried; DataError if the file has others."""
    path = output / FILE
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise DataError(path, None, f"cannot be read ({reason(error)}): give another --output") from None
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(path, None, f"cannot be read as JSON ({reason(error)}): give another --output") from None
    is_fit = isinstance(found, dict) and all(
        isinstance(each, dict) and isinstance(each.get("state"), str) for each in found.values()
    )
    if not is_fit:
        raise DataError(path, None, "not the states of parts: give another --output")
    return dict(found)


def save_state(part: Part, output: Path, found: JsonObject) -> None:
    """Save the state of a part beside those of the others."""
    with SAVING:
        save_json(output / FILE, read_states(output) | {part.folder: found})


def state_of(part: Part, output: Path, revision: object) -> JsonObject:
    """Return the saved state of a part. Done: by these commands and this revision, and its results are there."""
    found: JsonObject = read_states(output).get(part.folder, {"state": NOT_TRIED})
    is_same = (found.get("commands"), found.get("revision")) == ([*part.commands], revision)
    is_kept = is_same and not found.get("dirty") and bool(carriers(output / part.folder))
    return {"state": NOT_TRIED} if found["state"] == DONE and not is_kept else found


def check_folders(parts: Sequence[Part], output: Path) -> None:
    """Raise ConfigError if the folder of a part holds what no start of reference.py has left there."""
    known = read_states(output)
    for part in parts:
        if part.folder not in known and not _is_free(output / part.folder):
            why = f"{part.folder} there is of no earlier start ({FILE} does not name it); give another folder"
            raise ConfigError("--output", str(output), why)


def _is_free(folder: Path) -> bool:
    """Return whether there is nothing, or an empty folder."""
    try:
        return not os.path.lexists(folder) or not any(folder.iterdir())
    except OSError:
        return False


def begin(part: Part, output: Path, revision: object) -> None:
    """Remove what an earlier try left, and save that the part has begun; DataError if it cannot be removed."""
    folder = output / part.folder
    if part.folder in read_states(output) and os.path.lexists(folder):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise DataError(folder, None, f"an earlier try cannot be removed: {reason(error)}") from None
    save_state(part, output, {"state": BEGUN, "commands": [*part.commands], "revision": revision})
