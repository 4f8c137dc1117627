"""Recordings of a run as one JSON file for ui.perfetto.dev or chrome://tracing.

    launchopt report RUN --timeline FILE.json[.gz]

In: the folder of one run with launches.parquet, commands.parquet or kernels.parquet. Out: the file. It is written while
the recordings are read, and has a temporary name until it is complete.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from launchopt.analysis.collectives.all_reduces import NEEDED, NEEDED_OF_KERNELS, all_reduce_kernels, all_reduces
from launchopt.analysis.profiles.timeline import Event, Group, Size, Timeline, kept_launches
from launchopt.errors import DataError
from launchopt.files import temporary_for
from launchopt.recording.results import Row, read_recording
from launchopt.report.source import RECORDINGS

DEFAULT_LIMIT = 300_000
_BATCH = 20_000  # rows in memory at a time


@dataclass(frozen=True, slots=True)
class Written:
    """Number of recorded rows, and of those that the timeline shows."""

    path: Path
    shown: int
    recorded: int
    repeats: int


def write_timeline(folders: Sequence[Path], path: Path, limit: int = DEFAULT_LIMIT) -> Written:
    """Write the timeline of the one recorded run at or below `folders`; gzipped if the name ends in .gz.

    Raises DataError if there is no recorded run or more than one, if a recording cannot be read, or if `path` cannot be
    written.
    """
    run = _run(folders)
    files = {what: run / f"{what}.parquet" for what in RECORDINGS if (run / f"{what}.parquet").is_file()}
    sizes = _sizes(files)
    kept = kept_launches(sizes, limit)
    cut = {group for group, size in sizes.items() if kept[group] < size.launches}
    reduced = all_reduces(read_recording(files["launches"], NEEDED)) if "launches" in files else {}
    of_kernels = all_reduce_kernels(read_recording(files["kernels"], NEEDED_OF_KERNELS)) if "kernels" in files else {}
    timeline = Timeline(kept, cut, has_kernels="kernels" in files, reduced=reduced, reduced_kernels=of_kernels)
    temporary = temporary_for(path)
    try:
        with closing(_opened(temporary, path.suffix == ".gz")) as out:
            _write(out, _events(timeline, files, max(kept.values(), default=0)))
        temporary.replace(path)
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)
    return Written(path, timeline.rows, sum(size.rows for size in sizes.values()), len(sizes))


def _opened(path: Path, is_gzipped: bool) -> IO[str]:
    return gzip.open(path, "wt", compresslevel=6, encoding="utf-8") if is_gzipped else path.open("w", encoding="utf-8")


def _write(out: IO[str], events: Iterator[Event]) -> None:
    out.write('{"displayTimeUnit":"ns","traceEvents":[')
    for index, event in enumerate(events):
        out.write(f"{',' if index else ''}\n{json.dumps(event, separators=(',', ':'))}")
    out.write("\n]}\n")


def _run(folders: Sequence[Path]) -> Path:
    found = {path.parent for folder in folders for what in RECORDINGS for path in folder.rglob(f"{what}.parquet")}
    if not found:
        why = "no launches.parquet, commands.parquet or kernels.parquet here or below: record with record.launches=all"
        raise DataError(folders[0], None, f"{why} record.commands=all, on a GPU also timing=cupti")
    if len(found) > 1:
        names = ", ".join(str(path) for path in sorted(found)[:3])
        raise DataError(folders[0], None, f"{len(found)} recorded runs: name one ({names}{', ...' * (len(found) > 3)})")
    return found.pop()


def _sizes(files: dict[str, Path]) -> dict[Group, Size]:
    """Return the rows and launches of every repeat of every mode, over all recordings."""
    sizes: dict[Group, Size] = {}
    for path in files.values():
        for batch in read_recording(path, ("mode", "repeat", "launch")):
            counted = pa.table(batch).group_by(["mode", "repeat"]).aggregate([([], "count_all"), ("launch", "max")])
            for row in counted.to_pylist():
                group = (row["mode"], row["repeat"])
                known = sizes.get(group, Size(0, 0))
                last = -1 if row["launch_max"] is None else row["launch_max"]
                sizes[group] = Size(known.rows + row["count_all"], max(known.launches, last + 1))
    return sizes


def _events(timeline: Timeline, files: dict[str, Path], launches: int) -> Iterator[Event]:
    """Yield all events. Rows beyond the first `launches` launches of a group are dropped before they become objects."""
    yield from timeline.processes()
    makers = {
        "launches": timeline.launches,
        "commands": timeline.commands,
        "kernels": timeline.kernels,
    }
    for what, path in files.items():
        for batch in read_recording(path):
            early = batch.filter(pc.fill_null(pc.less(batch["launch"], launches), True))
            for first in range(0, len(early), _BATCH):
                rows: list[Row] = early.slice(first, _BATCH).to_pylist()
                yield from makers[what](rows)
