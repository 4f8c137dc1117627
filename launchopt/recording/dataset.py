"""Read one kind of table from all runs below given folders, as one table, from files of any version of this program.

`batches` yields record batches in the current schema, in path order. A column that a file lacks is null. A column that
this version does not know is left out. An old name of a column or a model becomes today's. Column `folder` names the
folder of the row's file. Only one batch is in memory at a time, so that commands of many runs can be read on any
machine.

    for batch in batches([Path("outputs")], "summary"): ...
    table = pyarrow.Table.from_batches(batches([Path("outputs")], "summary"), schema_of("summary"))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.errors import ConfigError, DataError
from launchopt.files import absent
from launchopt.recording.columns import (
    COMMAND_COLUMNS,
    HISTOGRAM_COLUMNS,
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    TOKEN_COLUMNS,
    Column,
    current_names,
    current_values,
    missing_columns,
    schema,
)
from launchopt.recording.manifest import SCHEMA_VERSION
from launchopt.recording.summary_columns import SUMMARY_COLUMNS

COLUMNS: dict[str, tuple[Column, ...]] = {
    "summary": SUMMARY_COLUMNS,
    "histograms": HISTOGRAM_COLUMNS,
    "launches": LAUNCH_COLUMNS,
    "commands": COMMAND_COLUMNS,
    "kernels": KERNEL_COLUMNS,
    "tokens": TOKEN_COLUMNS,
}
TABLES = {table: schema(*columns) for table, columns in COLUMNS.items()}
FOLDER = pa.field("folder", pa.string(), metadata={"doc": "folder of the file that has the row"})


def schema_of(table: str) -> pa.Schema:
    """Return the schema of a table: `folder`, then the columns of its files; raise ConfigError for an unknown table."""
    if table not in TABLES:
        raise ConfigError("--table", table, f"must be one of {', '.join(TABLES)}")
    fields = [FOLDER, *TABLES[table]]
    return pa.schema(fields, {"launchopt.schema_version": str(SCHEMA_VERSION)})


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


def batches(folders: Iterable[Path], table: str) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a table below `folders` in `schema_of(table)`.

    Raise DataError for a file that cannot be read, or that is no table of this project.
    """
    wanted = schema_of(table)
    for path in files(folders, table):
        try:
            with pq.ParquetFile(path) as file:
                _require_ours(path, names := current_names(file.schema_arrow.names), table)
                for batch in file.iter_batches():
                    yield _migrated(batch.rename_columns(names), wanted, str(path.parent))
        except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are not UTF-8
            raise DataError(path, None, f"cannot be read as Parquet ({error})") from None


def _require_ours(path: Path, names: list[str], table: str) -> None:
    """Raise DataError for a file that lacks a required column of the table, or has a column twice."""
    if len(set(names)) < len(names):
        raise DataError(path, None, "two of its columns have one name")
    if missing := missing_columns(names, COLUMNS[table]):
        raise DataError(path, None, f"not a table of this project: lacks {', '.join(missing)}")


def _migrated(batch: pa.RecordBatch, schema: pa.Schema, folder: str) -> pa.RecordBatch:
    """Return the batch in `schema`, with nulls for missing columns and without unknown columns."""
    count = len(batch)
    columns = [pa.repeat(pa.scalar(folder), count)]
    for field in list(schema)[1:]:
        if field.name in batch.schema.names:
            columns.append(current_values(field.name, batch.column(field.name).cast(field.type)))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
