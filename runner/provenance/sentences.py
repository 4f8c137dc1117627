"""A sentence for a page: where, when and with which code its results were measured, and which code has changed since.

In: the manifests of the results, and `stale.json` in a folder above, which lists code that has changed since:
`{"REVISION": {"FOLDER": [PATH, ...]}}`; `scripts/stale.py` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launchopt.analysis.tables.markdown import escaped
from launchopt.errors import DataError
from launchopt.files import read_json, read_text, reason
from launchopt.reading.shapes import ANY, fitted
from runner.provenance.origins import (
    CARRIERS,
    UNKNOWN,
    Origin,
    Revisions,
    carriers,
    origin,
    origin_faults,
    read_revisions,
    whole,
)

STALE = "stale.json"
# keys of a file of a report whose values are folders or files
NAMING = ("run", "runs", "over", "bench", "one", "several", "peers")
SHOWN_DIGITS = 7
MOST_SHOWN = 2  # revisions that a page lists; of more it names days and commits
NOTE = "environment.txt"  # of profiles that have no manifest
NOT_RECORDED = "GPU, date and revision were not recorded."
MOST_CHANGED = 2  # paths that a page names beside a stale result
Stale = Mapping[str, Mapping[str, Sequence[str]]]


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
