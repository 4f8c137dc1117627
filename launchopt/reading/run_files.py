"""Find the files of runs below folders and in object stores.

    for group in run_files([Path("outputs"), "s3://bucket/runs"], "summary"):
        ...                                         # the files of a group can be read until the next one

A group has the files of up to MOST_FILES runs, all on this machine: those of an object store are copied into a folder
for temporary files, one group at a time. Stores need the extra `s3`. s3fs takes the credentials and the address of a
store from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...), and from the files that AWS's own tools use.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from launchopt.distribution import install_command
from launchopt.errors import ConfigError, DataError, PackageError
from launchopt.files import absent, as_utf8
from launchopt.reading.unusable import name_unusable

STORE = "s3://"
MOST_FILES = 64  # runs of a group
MOST_GROUP_BYTES = 256 << 20  # copied for a group, unless one table is larger
MOST_TABLE_BYTES = 4 << 30  # of a table in a store
_OTHERS = ("summary.parquet", "manifest.json")  # files of a run that are read beside the table

Place = Path | str  # a folder, or the address of one in an object store


class RunFiles(NamedTuple):
    """The files of one run on this machine; `summary` and `manifest` may be absent.

    folder: the run's own, as messages name it.
    """

    folder: str
    table: Path
    summary: Path
    manifest: Path


def place_of(text: str) -> Place:
    """Return the folder, or the address in a store, that a user typed; ConfigError for a store of another kind."""
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    if ("://" in text or "::" in text) and not text.startswith(STORE):
        raise ConfigError("DIR", text, f"must be a folder, file:///FOLDER or {STORE}BUCKET/FOLDER")
    return text if text.startswith(STORE) else Path(text)


def files(folders: Iterable[Path], table: str) -> list[Path]:
    """Return the files of a table at or below `folders`, each once, in path order.

    Raise DataError for a missing folder.
    """
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise DataError(folder, None, absent(folder))
        found |= dict.fromkeys(sorted(folder.rglob(f"{table}.parquet")))
    return list(found)


def run_files(places: Sequence[Place], table: str) -> Iterator[list[RunFiles]]:
    """Yield the runs that have a table, in the order of `places` and their paths.

    Raise DataError for a place that is missing or cannot be read.
    """
    known = set[Path]()
    for place in places:
        if isinstance(place, str):
            yield from _stored(place, table)
            continue
        paths = iter([path for path in files([place], table) if path not in known])
        while some := list(islice(paths, MOST_FILES)):
            known.update(some)
            yield [RunFiles(as_utf8(path.parent), path, *(path.with_name(name) for name in _OTHERS)) for path in some]


def _stored(address: str, table: str) -> Iterator[list[RunFiles]]:
    """Yield the runs below an address of a store, and copy the files of each group to this machine."""
    store, sizes = _listed(address)
    left = [path for path in sorted(sizes) if path.rpartition("/")[2] == f"{table}.parquet"]
    while left:
        some, size = list[str](), 0
        while left and len(some) < MOST_FILES and (not some or size + sizes[left[0]] <= MOST_GROUP_BYTES):
            path = left.pop(0)
            size += sizes[path]
            if sizes[path] <= MOST_TABLE_BYTES:
                some.append(path)
            else:
                name_unusable(DataError(f"s3://{path}", None, f"over {MOST_TABLE_BYTES >> 30} GiB: left out"))
        with tempfile.TemporaryDirectory(prefix="launchopt-") as folder:
            yield _copied(store, some, sizes, Path(folder))


def _listed(address: str) -> tuple[Any, dict[str, int]]:
    """Return the store of an address, and the size of every object below it by its path."""
    try:
        import fsspec
    except ImportError:
        raise PackageError(address, ["s3fs"], install_command("s3")) from None
    try:
        store, root = fsspec.core.url_to_fs(address)
        found = {path: int(about["size"]) for path, about in store.find(root, detail=True, refresh=True).items()}
    except ImportError:
        raise PackageError(address, ["s3fs"], install_command("s3")) from None
    except Exception as error:  # each version of the store's library has errors of its own
        raise _refused(address, error) from None
    if not found:
        raise DataError(address, None, "no such bucket or folder, or nothing in it")
    return store, found


def _copied(store: Any, paths: Sequence[str], sizes: dict[str, int], folder: Path) -> list[RunFiles]:
    """Copy the tables, and the files beside them, into `folder`. Return them by run."""
    remote, local, runs = list[str](), list[str](), list[RunFiles]()
    for number, path in enumerate(paths):
        beside, own = path.rpartition("/")[0], folder / str(number)
        own.mkdir()
        table, *others = (own / name for name in (path.rpartition("/")[2], *_OTHERS))
        for target in dict.fromkeys([table, *others]):  # the table may be the summary
            if (there := f"{beside}/{target.name}") == path or sizes.get(there, MOST_GROUP_BYTES) < MOST_GROUP_BYTES:
                remote.append(there)
                local.append(str(target))
        runs.append(RunFiles(f"{STORE}{beside}", table, *others))
    try:
        store.get(remote, local)
    except Exception as error:
        raise _refused(runs[0].folder, error) from None
    return runs


def _refused(address: str, error: Exception) -> DataError:
    text = (str(error).splitlines() or [""])[0][:200]
    return DataError(address, None, f"cannot be read ({type(error).__name__}{f': {text}' if text else ''})")
