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

from launchopt.errors import ConfigError, DataError
from launchopt.files import absent, as_utf8
from launchopt.reading.parquet import Rules, checked
from launchopt.reading.unusable import name_unusable
from launchopt.recording.columns import (
    COMMAND_COLUMNS,
    HISTOGRAM_COLUMNS,
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    RENAMED,
    TOKEN_COLUMNS,
    Column,
    current_values,
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

    A file, or a value, that cannot be used is named on standard error, and left out. Raise DataError if no row is left.
    """
    wanted = schema_of(table)
    required = [each.name for each in COLUMNS[table] if each.is_required]
    rules = Rules(TABLES[table], required, is_signed=True, renamed=RENAMED, current=current_values, what="a table")
    unusable, has_rows = [], False
    for path in files(folders, table):
        try:
            for batch in checked(path, rules):
                has_rows = has_rows or len(batch) > 0
                yield _with_folder(batch, wanted, as_utf8(path.parent))
        except DataError as error:
            unusable.append(error)
    if unusable and not has_rows:
        raise unusable[0]
    for problem in unusable:
        name_unusable(problem)


def _with_folder(batch: pa.RecordBatch, schema: pa.Schema, folder: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(folder), len(batch)), *batch.columns], schema=schema)
