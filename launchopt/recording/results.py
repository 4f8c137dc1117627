"""Write and read the files in the folder of a run.

    summary.parquet            one row per repeat of a mode
    histograms.parquet         one row per histogram bucket of the times and batch sizes of a repeat
    gpus.parquet               one row per GPU of a repeat                  (several device.gpus)
    launches.parquet           one row per launch call                      (record.launches=all)
    commands.parquet           one row per command, in order of execution   (record.commands=all)
    kernels.parquet            one row per kernel, recorded by CUPTI        (timing=cupti)
    tokens.parquet             one row per token of a request               (record.tokens=all)
    torch-MODE-REPEAT.json.gz  trace of torch.profiler                      (timing=torch)
    manifest.json              status, composed config, environment, versions, ceilings, errors

`columns` documents the columns. The Parquet metadata has the composed config under `launchopt.config`. Files are
written atomically. Files of an earlier schema version are readable: a column that they lack is null, and an old
name of a column or a model becomes today's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from launchopt.errors import DataError
from launchopt.files import absent, is_there, save_result
from launchopt.reading.parquet import Rules, Window, checked
from launchopt.reading.unusable import name_unusable
from launchopt.recording.columns import (
    COMMAND_COLUMNS,
    COMMANDS,
    GPU_COLUMNS,
    GPUS,
    HISTOGRAMS,
    KERNEL_COLUMNS,
    KERNELS,
    LAUNCH_COLUMNS,
    LAUNCHES,
    RENAMED,
    TOKENS,
    Column,
    Row,
    current_values,
    schema,
)
from launchopt.recording.manifest import SCHEMA_VERSION, read_manifest, read_manifests, write_manifest
from launchopt.recording.run_names import named_apart, names_in
from launchopt.recording.summary_columns import KNOWN, SUMMARY, SUMMARY_COLUMNS

__all__ = [
    "COMMANDS",
    "GPUS",
    "HISTOGRAMS",
    "KERNELS",
    "LAUNCHES",
    "SCHEMA_VERSION",
    "SUMMARY",
    "TOKENS",
    "Row",
    "metadata",
    "read_gpus",
    "read_histograms",
    "read_manifest",
    "read_manifests",
    "read_recording",
    "read_summaries",
    "write_manifest",
    "write_rows",
    "write_table",
]

MOST_SUMMARY_ROWS, MOST_HISTOGRAM_ROWS = 20_000, 2_000_000  # of one file: they are kept as Python objects
FEW_ROWS = 1000  # of a table that zstd makes hardly smaller, but takes five times as long to read
UNBOUNDED = ("max_rel_error",)  # wrong outputs can be infinite


def _required(columns: Iterable[Column]) -> list[str]:
    """Return the columns that every file has."""
    return [each.name for each in columns if each.is_required]


_SUMMARY_RULES = Rules(
    SUMMARY,
    _required(SUMMARY_COLUMNS),
    KNOWN,
    UNBOUNDED,
    renamed=RENAMED,
    current=current_values,
    choices={"device": ("cpu", "cuda")},
    most_rows=MOST_SUMMARY_ROWS,
    what="a summary",
)
_HISTOGRAM_RULES = Rules(
    HISTOGRAMS,
    HISTOGRAMS.names,
    HISTOGRAMS.names,
    current=current_values,
    most_rows=MOST_HISTOGRAM_ROWS,
    what="a table of histograms",
)


def metadata(config: Mapping[str, object]) -> dict[str, str]:
    """Return the metadata that every Parquet file has: the version of the schema, and the composed config."""
    return {"launchopt.schema_version": str(SCHEMA_VERSION), "launchopt.config": json.dumps(config)}


def write_table(path: Path, schema: pa.Schema, columns: Mapping[str, object], config: Mapping[str, object]) -> None:
    """Write one Parquet file atomically; `columns` maps every name of `schema` to values of one length.

    Raise RunError if the disk is full or refuses the file.
    """
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema.with_metadata(metadata(config)))

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # pyarrow itself opens no path that is not UTF-8
            pq.write_table(table, file, compression="zstd" if len(table) > FEW_ROWS else "snappy")

    save_result(path, write)


def write_rows(path: Path, schema: pa.Schema, rows: Sequence[Row], config: Mapping[str, object]) -> None:
    """Write a few rows as `write_table` does."""
    write_table(path, schema, {name: [row[name] for row in rows] for name in schema.names}, config)


_NEEDED = {  # values without which a row of a recording cannot be drawn
    "launches": ("mode", "repeat", "launch", "batch_size", "strategy", "submit_start_ns", "submit_end_ns"),
    "commands": ("mode", "repeat", "seq", "launch", "enqueue_ns", "flush_ns", "submit_start_ns"),
    "kernels": ("mode", "repeat", "name", "correlation", "start_ns", "end_ns"),
}
_RECORDINGS = {"launches": LAUNCH_COLUMNS, "commands": COMMAND_COLUMNS, "kernels": KERNEL_COLUMNS}


def read_recording(
    path: Path, columns: Sequence[str] | None = None, window: Window | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the usable rows of launches.parquet, commands.parquet or kernels.parquet; DataError if it cannot be read.

    columns: only these. window: only rows with values within these bounds.
    """
    kept = [each for each in _RECORDINGS[path.stem] if columns is None or each.name in columns]
    required, known = _required(kept), [each.name for each in kept if each.name in _NEEDED[path.stem]]
    yield from checked(path, Rules(schema(*kept), required, known, is_signed=True, what="a recording"), window)


def read_summaries(folders: Iterable[Path]) -> list[Row]:
    """Return the rows of every summary.parquet at or below `folders`, in path order.

    Runs that share a run_id have others here: see run_names.py. A file, a row or a value that cannot be used is named
    on standard error, and left out. Raise DataError for a folder without such a file, and if no row is left.
    """
    places, found = list(folders), list[tuple[Path, Row]]()
    paths: list[Path] = []
    for folder in places:
        if not is_there(folder):
            raise DataError(folder, None, absent(folder))
        own = [folder] if folder.is_file() else sorted(folder.rglob("summary.parquet"))
        if not own:
            raise DataError(folder, None, "no summary.parquet here or below")
        paths += own
    unusable: list[DataError] = []
    for path in paths:
        try:
            found += [(path.parent, row) for row in read_summary(path)]
        except DataError as error:
            unusable.append(error)
    rows = named_apart(found, names_in(places))
    if paths and not rows:
        raise next(iter(unusable), DataError(paths[0], None, "has no rows: the run ended before its first repeat"))
    for problem in unusable:
        name_unusable(problem)
    return rows


def read_summary(path: Path) -> list[Row]:
    """Return the usable rows of one summary.parquet; DataError if the file cannot be read, or no row can be used."""
    return [row for batch in checked(path, _SUMMARY_RULES) for row in batch.to_pylist()]


def read_gpus(folders: Iterable[Path]) -> list[Row]:
    """Return the rows of every gpus.parquet at or below `folders`. A file that cannot be used is named and left out.

    Names are as in `read_summaries`.
    """
    rules = Rules(GPUS, _required(GPU_COLUMNS), GPUS.names[:6], current=current_values, most_rows=MOST_SUMMARY_ROWS)
    return _read_all(folders, "gpus.parquet", lambda path: checked(path, rules))


def read_histograms(folders: Iterable[Path], what: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of every histograms.parquet at or below `folders`. For a path of a file, take the one beside it.

    what: the quantities to return; None: all. The returned list may be empty: runs of schema version 1 have no
    histograms. A file that cannot be used is named on standard error, and left out. Names are as in `read_summaries`.
    """

    def batches(path: Path) -> Iterator[pa.RecordBatch]:
        for batch in checked(path, _HISTOGRAM_RULES):
            yield batch if what is None else batch.filter(pc.is_in(batch["what"], pa.array(what)))

    return _read_all(folders, "histograms.parquet", batches)


def _read_all(folders: Iterable[Path], name: str, batches: Callable[[Path], Iterable[pa.RecordBatch]]) -> list[Row]:
    """Return the rows of all files of a name at or below `folders`, or beside them if they are files."""
    places, found = list(folders), list[tuple[Path, Row]]()
    for folder in places:
        within = folder.parent.glob if folder.is_file() else folder.rglob
        for path in sorted(within(name)):
            try:
                for batch in batches(path):
                    found += [(path.parent, row) for row in batch.to_pylist()]
            except DataError as error:
                name_unusable(error)
    return named_apart(found, names_in(places))
