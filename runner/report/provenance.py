"""Where, when and with which code the results below a folder were measured.

In: manifests, and files with an environment of their own (CARRIERS). `revisions.json`, in a folder above, lists the
revisions of the history: `{"REVISION": {"commit": N, "date": DAY, "code_sha1": HASH}}`, where N counts commits from the
first one. With it a clone without a history can be checked too; `scripts/revisions.py` writes it. `stale.json` beside
it lists code that has changed since: `{"REVISION": {"FOLDER": [PATH, ...]}}`; `scripts/stale.py` writes it. Out: a
sentence for a page (`line`, `short_line`), or the reasons why results cannot be relied on (`faults`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launchopt.analysis.tables.markdown import escaped
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json, read_text, reason
from launchopt.reading.shapes import ANY, fitted
from launchopt.recording.manifest import SCHEMA_VERSION

REVISIONS, STALE = "revisions.json", "stale.json"
NAMING = ("run", "runs", "over", "bench", "one", "two")  # keys of a file of a report whose values are folders or files
CARRIERS = ("manifest.json", "calibration.json", "soak.json", "fuzz.json", "limits.json")
RESULTS = ("*.parquet", "*.txt")  # files that hold what was measured
SHOWN_DIGITS = 7
MOST_SHOWN = 2  # revisions that a page lists; of more it names days and commits
NOTE = "environment.txt"  # of profiles that have no manifest
NOT_RECORDED = "GPU, date and revision were not recorded."
UNKNOWN = "not known to be clean"
MOST_CHANGED = 2  # paths that a page names beside a stale result
Revisions = Mapping[str, JsonObject]
Stale = Mapping[str, Mapping[str, Sequence[str]]]
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


def line(paths: Sequence[Path]) -> str:
    """Return a sentence about the results at or below folders, or those that a file of a report names."""
    revisions = read_revisions(_folder(paths[0]))
    sources = [each for path in paths for each in sorted(_sources(path))]
    origins = [origin(each) for each in sources]
    parts = []
    for machine in dict.fromkeys(found.machine for found in origins):
        own = [found for found in origins if found.machine == machine]
        shown = [*dict.fromkeys(_shown(found, revisions) for found in own)]
        about = "; ".join(shown) if len(shown) <= MOST_SHOWN else _summed(own, revisions)
        parts.append(escaped(f"{machine or 'an unknown machine'}: {about}"))
    if parts:
        return f"Measured on {'. '.join(parts)}.{_beside(origins)}{_stale(sources, origins, revisions)}\n"
    note = _folder(paths[0]) / NOTE
    try:
        return " ".join(read_text(note).split()) + "\n" if note.is_file() else f"{NOT_RECORDED}\n"
    except (OSError, ValueError) as error:
        raise DataError(note, None, f"cannot be read ({reason(error)})") from None


def short_line(path: Path) -> str:
    """Return the same without a list of revisions, about the results that a file of a report names."""
    revisions = read_revisions(_folder(path))
    sources = sorted(_sources(path))
    origins = [origin(each) for each in sources]
    machines = ", ".join(sorted({found.machine or "an unknown machine" for found in origins}))
    shown = [*dict.fromkeys(_shown(found, revisions) for found in origins)]
    is_proven = not any(origin_faults(found, revisions) for found in origins)
    about = shown[0] if len(shown) == 1 and is_proven else _summed(origins, revisions)
    return f"Measured on {machines}: {about}.{_beside(origins)}{_stale(sources, origins, revisions)}\n"


def _beside(origins: Sequence[Origin]) -> str:
    """Return a sentence on parts that ran beside others on the GPUs of one host; empty if none did."""
    most = max((found.at_once for found in origins if isinstance(found.at_once, int)), default=1)
    return f" Up to {most} parts ran at a time, each with GPUs and cores of its own." if most > 1 else ""


def _stale(sources: Sequence[Path], origins: Sequence[Origin], revisions: Revisions) -> str:
    """Return a sentence on the code that has changed since, for pages; empty if none has."""
    found = [changed for each in zip(sources, origins, strict=True) if (changed := _changed(*each, revisions))]
    if not found:
        return ""
    paths = list(dict.fromkeys(path for changed in found for path in changed))
    share = "" if len(found) == len(sources) else f" ({len(found)} of {len(sources)} results)"
    shown, have = listed([f"`{path}`" for path in paths], "path"), "has" if len(paths) == 1 else "have"
    return f" *Stale*{share}: {shown} {have} changed since."


def listed(names: Sequence[str], what: str) -> str:
    """Return the first names, and how many more there are."""
    left = len(names) - MOST_CHANGED
    more = f" and {left} more {what}{'s' * (left > 1)}" if left > 0 else ""
    shown = ", ".join(names[:MOST_CHANGED])
    return f"{shown}{more}" if more else " and ".join(names)


def _changed(source: Path, found: Origin, revisions: Revisions) -> Sequence[str]:
    """Return the paths that have changed since a result was measured, as the nearest list of stale results says."""
    for place in source.absolute().parents:
        if (path := place / STALE).is_file():
            named = found.revision or ""
            folder = source.absolute().parent.relative_to(place).as_posix()
            kinds = read_stale(path).get(whole(named, revisions) or named, {})
            kind = max((each for each in kinds if f"{folder}/".startswith(f"{each}/")), key=len, default=None)
            return [] if kind is None else kinds[kind]
    return []


def read_stale(path: Path) -> Stale:
    """Return the list of stale results; DataError for a file that is none."""
    lost = list[str]()
    try:
        kept: Stale | None = fitted(read_json(path), {ANY: {ANY: [str]}}, lost)
    except (OSError, ValueError) as error:
        raise DataError(path, None, f"cannot be read as JSON ({reason(error)})") from None
    if lost or kept is None:
        raise DataError(path, None, "not a list of stale results")
    return kept


def _summed(origins: Sequence[Origin], revisions: Revisions) -> str:
    """Return days, number of revisions, and number of unproven results, for a page with many of them."""
    days = sorted(filter(None, {_day(found, revisions) for found in origins})) or ["date not recorded"]
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    used = {found.revision and (whole(found.revision, revisions) or found.revision) for found in origins}
    places = sorted(int(revisions[each]["commit"]) for each in used if each and each in revisions)
    span = f" (commits {places[0]} to {places[-1]})" if len(places) > 1 else f" (commit {places[0]})" if places else ""
    code = f"{len(used)} revisions{span}" if len(used) > 1 else f"one revision{span}"
    unproven = sum(bool(origin_faults(found, revisions)) for found in origins)
    share = (
        f"{unproven} of {len(origins)} results cannot be traced to a clean revision"
        if unproven
        else "all of clean revisions"
    )
    return f"{when}, {code}; {share}"


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _day(found: Origin, revisions: Revisions) -> str | None:
    """Return the day of a result, or else that of its revision."""
    known = None if found.revision is None else whole(found.revision, revisions)
    return found.date or (str(revisions[known]["date"]) if known else None)


def _shown(found: Origin, revisions: Revisions) -> str:
    known = None if found.revision is None else whole(found.revision, revisions)
    date = found.date or (f"{revisions[known]['date']} or later" if known else "date not recorded")
    if found.revision is None:
        return f"{date}, unknown revision"
    place = f" (commit {revisions[known]['commit']})" if known else " (not in the history)" if revisions else ""
    is_unknown = revisions and UNKNOWN in origin_faults(found, revisions)
    state = " with uncommitted changes" if found.dirty else ", not known to be clean" if is_unknown else ""
    return f"{date}, revision {found.revision[:SHOWN_DIGITS]}{place}{state}"


def _sources(path: Path) -> Iterator[Path]:
    """Yield the carriers of a folder, or of the folders that a file of a report names."""
    if path.is_dir():
        yield from carriers(path)
    elif path.name in CARRIERS:
        yield path
    elif path.suffix == ".parquet":
        yield from (path.parent / name for name in CARRIERS if (path.parent / name).is_file())
    else:
        for folder in _named(read_json(path), path.parent):
            yield from _sources(folder)


def _named(content: object, folder: Path) -> set[Path]:
    """Return the folders and files that a file of a report names: values of NAMING, texts or lists of them."""
    if isinstance(content, list):
        return set().union(*(_named(each, folder) for each in content))
    if not isinstance(content, dict):
        return set()
    values = [content[key] for key in NAMING if key in content]
    texts = {
        folder / each
        for value in values
        for each in (value if isinstance(value, list) else [value])
        if isinstance(each, str)
    }
    return texts.union(*(_named(each, folder) for each in content.values()))


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
