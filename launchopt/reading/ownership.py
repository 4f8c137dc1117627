"""Which files in a folder this program made: only these are replaced or removed.

A file is of this program if it has its mark inside: the metadata of a table, the keys of a JSON file, the first line of
a report, the name in the header of a trace. A table that is damaged, and a traceback, need an own manifest beside them.
A symbolic link is of another program.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from launchopt.errors import DataError
from launchopt.files import open_regular, read_json

MANIFEST, SWEEP, MULTIRUN = "manifest.json", "sweep.json", "multirun.yaml"
_REPORT = re.compile(
    rb"# (Report|Frontier|Strategies|Remedies)\n\nMedians? over repeats|# Waterfall\n\nEach row adds one choice"
)
_PAGE = (b'<meta name="generator" content="launchopt">', b'<p class="told" id="told" role="status">')
_HOOK = b"runner.app.Precheck"  # in Hydra's record of a sweep of this program
_TRACE = re.compile(rb"\x1f\x8b\x08\x08.{6}\.launchopt-", re.DOTALL)  # gzip keeps the name of its file, a temporary one
_MARK_BYTES = 1 << 20  # a mark lies within these


def is_own(path: Path) -> bool:
    """Return whether this program made the file at `path`. See the module."""
    if path.is_symlink():
        return False
    if path.suffix == ".parquet":
        return _is_own_table(path)
    if path.name in (MANIFEST, SWEEP):
        return _is_own_json(path)
    if path.suffix in (".md", ".html", ".gz") or path.name == MULTIRUN:
        return _has_mark(path)
    return path.is_file() and _is_own_json(path.with_name(MANIFEST))


def foreign(folder: Path, names: tuple[str, ...]) -> Path | None:
    """Return the first of the files `names` in `folder` that this program did not make; None if there is none."""
    paths = (folder / name for name in names)
    return next((path for path in paths if os.path.lexists(path) and not is_own(path)), None)


def _is_own_table(path: Path) -> bool:
    from launchopt.reading.parquet import opened  # late: most folders hold no table yet

    try:
        with opened(path) as file:
            return b"launchopt.schema_version" in (file.metadata.metadata or {})
    except DataError:
        return path.is_file() and _is_own_json(path.with_name(MANIFEST))


def _is_own_json(path: Path) -> bool:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return False
    is_sound = isinstance(content, dict) and isinstance(content.get("status"), str)
    return is_sound and isinstance(content.get("schema_version"), int)


def _has_mark(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            head = file.read(_MARK_BYTES)
    except OSError:
        return False
    if path.suffix in (".md", ".gz"):
        return (_REPORT if path.suffix == ".md" else _TRACE).match(head) is not None
    return any(mark in head for mark in (_PAGE if path.suffix == ".html" else (_HOOK,)))
