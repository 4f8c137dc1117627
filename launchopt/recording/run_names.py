"""Other names for runs that share a run_id: two folders may end in the same two parts.

Readers of several runs compare rows and manifests by run_id. So a run that shares its own is called by its folder:

    names_in([Path("monday"), Path("tuesday")])  # {(Path('monday/sweep/0'), 'sweep/0'): 'monday/sweep/0', ...}

All readers of the same folders get the same names, whatever they can use of a run. Folders whose rows are the same
file are copies of one run, and keep one name: files of one size with the same first and last END_BYTES. The end of a
Parquet file says where each column lies and how long it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from launchopt.errors import DataError
from launchopt.files import JsonObject, as_utf8, open_regular

ROWS = "summary.parquet"
HEAD_BYTES = 4096  # of a manifest, whose second key is run_id
END_BYTES = 1 << 20  # a damaged file can be larger than any disk
_RUN_ID = re.compile(rb'"run_id": ("(?:[^"\\]|\\.)*")')
Names = Mapping[tuple[Path, object], str]


def names_in(folders: Iterable[Path]) -> Names:
    """Return the names of runs that share a run_id with another run at or below `folders`, by folder and run_id."""
    by_id: dict[str, dict[Path, Path]] = {}
    for folder, rows in _runs(folders).items():
        if (run_id := _run_id(folder, rows)) is not None:
            by_id.setdefault(run_id, {})[folder] = rows
    names: dict[tuple[Path, object], str] = {}
    for run_id, runs in by_id.items():
        contents = {folder: _content(runs[folder]) or str(folder) for folder in sorted(runs)} if len(runs) > 1 else {}
        first = {content: folder for folder, content in reversed(contents.items())}
        if len(first) > 1:
            for folder, content in contents.items():
                name = as_utf8(first[content].as_posix())
                names[folder, run_id] = f"./{name}" if name in by_id else name
    return names


def named_apart(found: Iterable[tuple[Path, JsonObject]], names: Names) -> list[JsonObject]:
    """Return rows, or manifests, with those names. found: with the folders of their runs."""
    return [
        each | {"run_id": names[key]} if (key := (folder, each.get("run_id"))) in names else each
        for folder, each in found
    ]


def name_of_run(folder: Path, names: Names) -> str:
    """Return the name of the run in a folder; the folder's own name if neither manifest nor rows have a run_id.

    names: what `names_in` returns.
    """
    run_id = _run_id(folder, folder / ROWS) or folder.name
    return names.get((folder, run_id), run_id)


def _runs(folders: Iterable[Path]) -> dict[Path, Path]:
    """Return the folders of runs, each with the file of its rows, which need not be there."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if folder.is_file():
            found[folder.parent] = folder
        else:
            for name in ("manifest.json", ROWS):
                found |= {path.parent: path.parent / ROWS for path in folder.rglob(name)}
    return found


def _run_id(folder: Path, rows: Path) -> str | None:
    """Return the run_id in a manifest, or else in the first row; None if neither has one."""
    with contextlib.suppress(OSError, ValueError), open_regular(folder / "manifest.json") as file:
        if named := _RUN_ID.search(file.read(HEAD_BYTES)):
            return str(json.loads(named[1]))
    if not rows.is_file():
        return None
    from launchopt.reading.parquet import read_all  # here: a run imports this module, and may end without pyarrow

    with contextlib.suppress(DataError):
        column = read_all(rows, ["run_id"]).column(0)
        return str(column[0].as_py()) if len(column) else None
    return None


def _content(rows: Path) -> str | None:
    """Return the size of the file of a run's rows, and a hash of its two ends; None if it cannot be read."""
    try:
        with open_regular(rows) as file:
            ends = hashlib.blake2b(file.read(END_BYTES))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - END_BYTES))
            ends.update(file.read(END_BYTES))
            return f"{size} {ends.hexdigest()}"
    except OSError:
        return None
