"""The runs below some folders as one table: every file of a kind, whatever version of the schema wrote it.

In: folders, at any depth. Out: record batches in today's schema, in path order; what a file's version did not have yet
is null, and `folder` says where a row comes from. A batch is in memory at a time, so that commands of many runs can be
read on any machine.

    for batch in batches([Path("outputs")], "summary"): ...
    table = pyarrow.Table.from_batches(batches([Path("outputs")], "summary"), schema_of("summary"))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.errors import ConfigError, DataError
from launchopt.recording.columns import COMMANDS, HISTOGRAMS, KERNELS, LAUNCHES, SUMMARY, TOKENS
from launchopt.recording.manifest import SCHEMA_VERSION
from launchopt.recording.results import missing_columns

TABLES = {
    "summary": SUMMARY,
    "histograms": HISTOGRAMS,
    "launches": LAUNCHES,
    "commands": COMMANDS,
    "kernels": KERNELS,
    "tokens": TOKENS,
}
FOLDER = pa.field("folder", pa.string(), metadata={"doc": "where the row comes from, as it was found"})


def schema_of(table: str) -> pa.Schema:
    """Columns of a table of a dataset: `folder`, then those of the files; ConfigError for a table there is not."""
    if table not in TABLES:
        raise ConfigError("--table", table, f"must be one of {', '.join(TABLES)}")
    fields = [FOLDER, *TABLES[table]]
    return pa.schema(fields, {"launchopt.schema_version": str(SCHEMA_VERSION)})


def files(folders: Iterable[Path], table: str) -> list[Path]:
    """Files of a table at or below `folders`, each once, in path order; DataError for a folder that is not there."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise DataError(folder, None, "no such folder")
        found |= dict.fromkeys(sorted(folder.rglob(f"{table}.parquet")))
    return list(found)


def batches(folders: Iterable[Path], table: str) -> Iterator[pa.RecordBatch]:
    """All rows of a table below `folders` in `schema_of(table)`.

    Raises DataError for a file that cannot be read, that lacks a column which its version had, or that is of a version
    of tomorrow.
    """
    schema = schema_of(table)
    for path in files(folders, table):
        try:
            with pq.ParquetFile(path) as file:
                _require_known(path, file.schema_arrow, table)
                for batch in file.iter_batches():
                    yield _migrated(batch, schema, str(path.parent))
        except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are no UTF-8
            raise DataError(path, None, f"cannot be read as Parquet ({error})") from None


def _require_known(path: Path, schema: pa.Schema, table: str) -> None:
    version = (schema.metadata or {}).get(b"launchopt.schema_version", b"")
    if version.isdigit() and (len(version) > 9 or int(version) > SCHEMA_VERSION):
        raise DataError(path, None, f"of schema version {version.decode()}; this program knows up to {SCHEMA_VERSION}")
    if len(set(schema.names)) < len(schema.names):
        raise DataError(path, None, "two of its columns have one name")
    if missing := missing_columns(schema.names, TABLES[table], version):
        raise DataError(path, None, f"not a table of this project: lacks {', '.join(missing)}")


def _migrated(batch: pa.RecordBatch, schema: pa.Schema, folder: str) -> pa.RecordBatch:
    """In `schema`, whatever is missing null and whatever is unknown left out."""
    count = len(batch)
    columns = [pa.repeat(pa.scalar(folder), count)]
    for field in list(schema)[1:]:
        known = field.name in batch.schema.names
        columns.append(batch.column(field.name).cast(field.type) if known else pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
