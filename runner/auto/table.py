"""The table of mode=auto: entries of measured works as JSON, outputs/tuning/<device>.json.

{"schema_version": 1, "entries": [{"run": "decode_16", "work": {"device": "NVIDIA H200", ...}, "wall_ms": {...}}]}
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launchopt.analysis.choice import MOST, Entry, Work, entries_of
from launchopt.analysis.verdict import calibration
from launchopt.errors import DataError
from launchopt.files import read_json, reason, save_json
from launchopt.messages import print_error
from launchopt.reading.shapes import ANY, fitted
from launchopt.recording import results

SCHEMA_VERSION = 1
VARIABLE = "LAUNCHOPT_TUNING"  # environment variable with the path of a table outside of FOLDER
FOLDER = Path("outputs/tuning")
MOST_ENTRIES = 2_000  # of a table: the newest stay
_WORK = {**dict.fromkeys(("device", "workload"), str), "has_steps": bool, "item_bytes": int}
_WORK |= dict.fromkeys(("columns", "weight_bytes"), float)
_ENTRY = {"run": str, "work": _WORK, "wall_ms": {ANY: float}}


def default_path(device: str) -> Path:
    """Return the path of a device's table."""
    return FOLDER / calibration.default_path(device).name


def named_path() -> Path | None:
    """Return the path of the table that $LAUNCHOPT_TUNING names."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def entries_in(folders: Sequence[Path]) -> list[Entry]:
    """Return the entries of the results in some folders."""
    return entries_of(results.read_summaries(folders), results.read_manifests(folders))


def read_table(path: Path) -> list[Entry]:
    """Return the entries of a file; DataError if it is missing, broken, or of another schema version."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise DataError(path, None, f"no such file; to make it type launchopt tune DIR --save {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(path, None, f"cannot be read as JSON ({reason(error)})") from None
    if not isinstance(content, Mapping) or not isinstance(content.get("entries"), list):
        raise DataError(path, None, "not a table of mode=auto: no entries (launchopt tune makes one)")
    if content.get("schema_version") != SCHEMA_VERSION:
        version = content.get("schema_version")
        raise DataError(path, None, f"schema_version={version!r}: this version reads {SCHEMA_VERSION}")
    return [_entry(each, at, path) for at, each in enumerate(content["entries"][-MOST_ENTRIES:])]


def add(path: Path, entries: Sequence[Entry]) -> int:
    """Add entries to a table, and make it if it is not there. Return the number of its entries."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({reason(error)})") from None
    with _alone(path.parent):
        known = read_table(path) if path.exists() else []
        kept = {(each.run, each.work): each for each in [*known, *entries]}
        found = _once(kept.values())[-MOST_ENTRIES:]
        listed = [{"run": each.run, "work": each.work._asdict(), "wall_ms": dict(each.wall_ms)} for each in found]
        save_json(path, {"schema_version": SCHEMA_VERSION, "entries": listed})
    return len(found)


def _once(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries without doubles: the same times of the same work are one measurement.

    Their names can differ, since a name can depend on the folder that was typed.
    """
    return list({(each.work, *sorted(each.wall_ms.items())): each for each in entries}.values())


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from adding to the tables of a folder in this block. A system without locks passes."""
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def find_entries(device: str) -> list[Entry]:
    """Return all entries of a device: of the file that $LAUNCHOPT_TUNING names, and of those in FOLDER.

    A measurement that stands in several files counts once. A broken file in FOLDER is skipped, with a warning. Raises
    DataError if the named file cannot be read.
    """
    found = read_table(named) if (named := named_path()) else []
    for path in sorted(FOLDER.glob("*.json")):
        try:
            found += read_table(path)
        except DataError as error:
            print_error(f"{error}: mode=auto does without it", "warning")
    return _once(entry for entry in found if entry.work.device == device)


def _entry(content: object, at: int, path: Path) -> Entry:
    lost: list[str] = []
    parts: Any = fitted(content, _ENTRY, lost) or {}
    work, walls = parts.get("work") or {}, parts.get("wall_ms") or {}
    if lost or not {*_WORK} <= {*work} or not walls or None in (*work.values(), *walls.values()):
        raise DataError(path, None, f"entries[{at}]: not a measured work (launchopt tune makes them)")
    numbers = [work["columns"], work["weight_bytes"], *walls.values()]
    if not all(0 < number < MOST for number in numbers):
        raise DataError(path, None, f"entries[{at}]: its numbers must be above 0, and below {MOST:g}")
    named = Work(**{name: work[name] for name in Work._fields})
    return Entry(named, str(parts.get("run")), {str(mode): float(wall) for mode, wall in walls.items()})
