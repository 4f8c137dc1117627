"""Which machine, day and code made the results below a folder, and why they cannot be relied on.

In: manifests, and files with an environment of their own (CARRIERS). `revisions.json`, in a folder above, lists the
revisions of the history: `{"REVISION": {"commit": N, "date": DAY, "code_sha1": HASH}}`, where N counts commits from the
first one. With it a clone without a history can be checked too; `scripts/revisions.py` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json, reason
from launchopt.recording.manifest import SCHEMA_VERSION

REVISIONS = "revisions.json"
CARRIERS = ("manifest.json", "calibration.json", "soak.json", "fuzz.json", "limits.json")
RESULTS = ("*.parquet", "*.txt")  # files that hold what was measured
UNKNOWN = "not known to be clean"
Revisions = Mapping[str, JsonObject]
_REVISION = {"commit": int, "date": str, "code_sha1": str}


class Origin(NamedTuple):
    """What one manifest says about its origin. None: it does not say."""

    machine: str | None
    date: str | None
    revision: str | None
    dirty: bool | None
    code_sha1: str | None
    schema: object
    at_once: object  # parts of the reference results that ran at the same time


def origin(path: Path) -> Origin:
    """Return what a manifest, a calibration or a soak says; DataError if it is no JSON object."""
    try:
        content = read_json(path)
        environment = content.get("environment") or {}
        device = content.get("device") or environment.get("device") or {}
        measured = (content.get("part") or {}).get("before") or {}
        return Origin(
            _text(device.get("name") or content.get("processor")),
            _text((content.get("started_utc") or content.get("made_utc") or "")[:10]),
            _text(environment.get("git_revision")),
            environment.get("git_dirty"),
            _text(environment.get("code_sha1")),
            content.get("schema_version"),
            measured.get("at_once"),
        )
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(path, None, f"not a manifest ({type(error).__name__}: {error})") from None


def part_of(path: Path) -> JsonObject:
    """Return the entry of scripts/reference.py in a manifest, empty without one; DataError if it is no JSON object."""
    try:
        found = read_json(path).get("part")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(path, None, f"not a manifest ({type(error).__name__}: {error})") from None
    return found if isinstance(found, dict) else {}


def read_revisions(folder: Path) -> Revisions:
    """Return the revisions of the history, from the nearest file in the folder or above; empty without one.

    DataError for a file that is none, or has a revision without its parts.
    """
    for place in (folder, *folder.absolute().parents):
        if (path := place / REVISIONS).is_file():
            try:
                listed = read_json(path)
            except (OSError, ValueError) as error:
                raise DataError(path, None, f"cannot be read as JSON ({reason(error)})") from None
            if not isinstance(listed, dict):
                raise DataError(path, None, "not a list of revisions")
            for name, parts in listed.items():
                if not _is_revision(parts):
                    raise DataError(path, None, f"{name}: must be an object with {', '.join(_REVISION)}")
            return listed
    return {}


def _is_revision(parts: object) -> bool:
    return isinstance(parts, dict) and all(type(parts.get(key)) is kind for key, kind in _REVISION.items())


def whole(revision: str, revisions: Revisions) -> str | None:
    """Return the listed revision that begins like this one, or None."""
    return next((each for each in revisions if each.startswith(revision)), None)


def carriers(folder: Path) -> list[Path]:
    """Return the files at and below a folder that say which code and machine made results."""
    return sorted(path for name in CARRIERS for path in folder.rglob(name))


def faults(folder: Path) -> dict[str, str]:
    """Return why results at or below a folder cannot be relied on: their place, relative to it, and the reasons."""
    revisions = read_revisions(folder)
    listed = carriers(folder)
    found = {path: reasons for path in listed if (reasons := origin_faults(origin(path), revisions))}
    homes = {path.parent for path in listed if path.name == "manifest.json"}
    for path in (each for pattern in RESULTS for each in folder.rglob(pattern)):
        if path.parent not in homes:
            found[path] = ["no manifest"]
    for sweep in {home.parent for home in homes if home.name.isdigit()}:
        jobs = [
            origin(each / "manifest.json").revision for each in homes if each.parent == sweep and each.name.isdigit()
        ]
        if len(set(jobs)) > 1:
            found[sweep] = [f"jobs of {len(set(jobs))} revisions"]
    return {_place(path, folder): "; ".join(reasons) for path, reasons in sorted(found.items())}


def _place(path: Path, folder: Path) -> str:
    return (path.parent if path.name == "manifest.json" else path).relative_to(folder).as_posix()


def origin_faults(found: Origin, revisions: Revisions) -> list[str]:
    """Return the reasons why a result of this origin cannot be relied on; empty if there is none.

    A copy without a history cannot tell whether it was clean. The hash of its code must be that of the revision.
    """
    reasons = []
    known = None if found.revision is None else whole(found.revision, revisions)
    if known is None:
        reasons.append(f"revision {found.revision} is not in the history" if found.revision else "no revision")
    if found.dirty:
        reasons.append("uncommitted changes")
    elif found.dirty is None and (known is None or found.code_sha1 != revisions[known]["code_sha1"]):
        reasons.append(UNKNOWN)
    if not isinstance(found.schema, int) or not 1 <= found.schema <= SCHEMA_VERSION:
        reasons.append(f"unknown schema {found.schema!r}")
    return reasons


def _text(value: object) -> str | None:
    return str(value) if value else None
