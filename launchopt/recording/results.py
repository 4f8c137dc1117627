"""Write and read the files in the folder of a run.

    summary.parquet            one row per repeat of a mode
    histograms.parquet         one row per histogram bucket of the times and batch sizes of a repeat
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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.errors import DataError
from launchopt.files import absent, save_result
from launchopt.recording.columns import (
    COMMANDS,
    HISTOGRAM_COLUMNS,
    HISTOGRAMS,
    KERNELS,
    LAUNCHES,
    TOKENS,
    Columns,
    Row,
    current_names,
    current_values,
    missing_columns,
)
from launchopt.recording.manifest import SCHEMA_VERSION, read_manifest, read_manifests, write_manifest
from launchopt.recording.summary_columns import SUMMARY, SUMMARY_COLUMNS

__all__ = [
    "COMMANDS",
    "HISTOGRAMS",
    "KERNELS",
    "LAUNCHES",
    "SCHEMA_VERSION",
    "SUMMARY",
    "TOKENS",
    "Row",
    "metadata",
    "read_histograms",
    "read_manifest",
    "read_manifests",
    "read_summaries",
    "write_manifest",
    "write_rows",
    "write_table",
]

MOST_ROWS, MOST_TABLE_BYTES = 10_000_000, 1 << 30  # limits on tables that are read as a whole


def metadata(config: Mapping[str, object]) -> dict[str, str]:
    """Return the metadata that every Parquet file has: the version of the schema, and the composed config."""
    return {"launchopt.schema_version": str(SCHEMA_VERSION), "launchopt.config": json.dumps(config)}


def write_table(path: Path, schema: pa.Schema, columns: Mapping[str, object], config: Mapping[str, object]) -> None:
    """Write one Parquet file atomically; `columns` maps every name of `schema` to values of one length.

    Raise RunError if the disk is full or refuses the file.
    """
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema.with_metadata(metadata(config)))
    save_result(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def write_rows(path: Path, schema: pa.Schema, rows: Sequence[Row], config: Mapping[str, object]) -> None:
    """Write a few rows as `write_table` does."""
    write_table(path, schema, {name: [row[name] for row in rows] for name in schema.names}, config)


def read_summaries(folders: Iterable[Path]) -> list[Row]:
    """Return the rows of every summary.parquet at or below `folders`, in path order.

    Raise DataError for a folder without such a file, for a file that is not of this project, and if none has a row.
    """
    rows: list[Row] = []
    paths: list[Path] = []
    for folder in folders:
        if not folder.exists():
            raise DataError(folder, None, absent(folder))
        found = [folder] if folder.is_file() else sorted(folder.rglob("summary.parquet"))
        if not found:
            raise DataError(folder, None, "no summary.parquet here or below")
        for path in found:
            rows += _read_rows(path)
        paths += found
    if paths and not rows:
        raise DataError(paths[0], None, "has no rows: the run ended before its first repeat")
    return rows


def read_histograms(folders: Iterable[Path], what: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of every histograms.parquet at or below `folders`. For a path of a file, take the one beside it.

    what: the quantities to return; None: all. The returned list may be empty: runs of schema version 1 have no
    histograms. Raise DataError for a file that is not of this project.
    """
    rows: list[Row] = []
    for folder in folders:
        within = folder.parent.glob if folder.is_file() else folder.rglob
        for path in sorted(within("histograms.parquet")):
            try:
                _require_small(path)
                table = pq.read_table(path, filters=None if what is None else [("what", "in", list(what))])
            except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are not UTF-8
                raise DataError(path, None, f"cannot be read as a table of histograms ({error})") from None
            if missing := missing_columns(table.column_names, HISTOGRAM_COLUMNS):
                raise DataError(path, None, f"not histograms of this project: lacks {', '.join(missing)}")
            rows += _typed(path, table, HISTOGRAMS).to_pylist()
    return rows


def _require_small(path: Path) -> None:
    """Raise DataError for more rows than any run writes: a few kilobytes of Parquet can hold billions of rows."""
    about = pq.read_metadata(path)
    size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    if about.num_rows > MOST_ROWS or size > MOST_TABLE_BYTES:
        raise DataError(path, None, f"{about.num_rows:,} rows of {size:,} bytes: more than any run writes")


def _typed(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema` that the table has, in the types of `schema`.

    Raise DataError for a column of a wrong type, and for a name that occurs twice.
    """
    columns: Columns = {}
    for field in schema:
        found = table.schema.get_all_field_indices(field.name)
        if len(found) > 1:
            raise DataError(path, None, f"two columns are named {field.name}")
        try:
            if found:
                columns[field.name] = current_values(field.name, table.column(found[0]).cast(field.type))
        except pa.ArrowException as error:
            raise DataError(path, None, f"{field.name} holds no {field.type} ({error})") from None
    return pa.table(columns)


def _read_rows(path: Path) -> list[Row]:
    try:
        _require_small(path)
        table = pq.read_table(path)
        table = table.rename_columns(current_names(table.column_names))
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are not UTF-8
        raise DataError(path, None, f"cannot be read as Parquet ({error})") from None
    if missing := missing_columns(table.column_names, SUMMARY_COLUMNS):
        raise DataError(path, None, f"not a summary of this project: lacks {', '.join(missing)}")
    rows: list[Row] = _typed(path, table, SUMMARY).to_pylist()
    return [dict.fromkeys(SUMMARY.names) | row for row in rows]
