"""Other names for runs that share a run_id: two folders may end in the same two parts.

Readers of several runs compare rows and manifests by run_id. So a run that shares its own is called by its folder:

    found = [(Path("monday/sweep/0"), "sweep/0"), (Path("tuesday/sweep/0"), "sweep/0")]
    other_names(found)  # {(Path('monday/sweep/0'), 'sweep/0'): 'monday/sweep/0', ...}

Folders with one run_id that began at the same moment are copies of one run, and keep one name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from launchopt.files import JsonObject, read_json

Names = Mapping[tuple[Path, object], str]


def other_names(found: Iterable[tuple[Path, object]]) -> Names:
    """Return the names of runs that share a run_id with another run, by folder and run_id. found: both of each run."""
    by_id: dict[object, dict[Path, None]] = {}
    for folder, run_id in found:
        by_id.setdefault(run_id, {})[folder] = None
    names: dict[tuple[Path, object], str] = {}
    for run_id, folders in by_id.items():
        began = {folder: _began(folder) for folder in folders} if len(folders) > 1 else {}
        first = {moment: folder for folder, moment in reversed(began.items())}
        if len(first) > 1:
            names |= {(folder, run_id): first[moment].as_posix() for folder, moment in began.items()}
    return names


def named_apart(found: Sequence[tuple[Path, JsonObject]]) -> list[JsonObject]:
    """Return manifests with the names that the rows of their runs have. found: with their folders.

    A run without rows that shares its run_id with one that has some is called by its folder, too.
    """
    runs = [(folder, manifest.get("run_id")) for folder, manifest in found]
    with_rows = [run for run in runs if (run[0] / "summary.parquet").is_file()]
    names, taken = other_names(with_rows), {run_id for _, run_id in with_rows}
    lone = {run: run[0].as_posix() for run in runs if run[1] in taken and run not in with_rows}
    names = {**names, **lone}
    return [
        manifest | {"run_id": names[run]} if run in names else manifest
        for run, (_, manifest) in zip(runs, found, strict=True)
    ]


def _began(folder: Path) -> object:
    """Return when a run began; None if its manifest does not say. All such runs count as copies of one."""
    try:
        return read_json(folder / "manifest.json").get("started_utc")
    except (OSError, ValueError, AttributeError):
        return None
