"""Read one kind of table from many runs, below folders and in object stores, as one table in today's schema.

`runs` yields one run after the other, `batches` the rows of all of them, in path order. A column that a file lacks is
null. A column that this version does not know is left out. An old name of a column or a model becomes today's. Column
`folder` names the folder of the row's file, `machine` the machine that ran it. Files are read side by side, a few runs
at a time, and of a large table only one batch is in memory.

    for batch in batches([Path("outputs")], "summary"): ...
    table = pyarrow.Table.from_batches(batches([Path("outputs")], "summary"), schema_of("summary"))
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from launchopt.errors import ConfigError, DataError
from launchopt.reading.parquet import SMALL_BYTES, Rules, checked
from launchopt.reading.run_files import Place, RunFiles, files, run_files
from launchopt.reading.unusable import name_unusable
from launchopt.recording.columns import (
    COMMAND_COLUMNS,
    GPU_COLUMNS,
    HISTOGRAM_COLUMNS,
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    RENAMED,
    TOKEN_COLUMNS,
    Column,
    Row,
    current_values,
    schema,
)
from launchopt.recording.manifest import SCHEMA_VERSION, Manifest, facts_in, machine_of
from launchopt.recording.summary_columns import SUMMARY_COLUMNS

__all__ = ["COLUMNS", "TABLES", "ReadRun", "batches", "files", "runs", "schema_of"]

COLUMNS: dict[str, tuple[Column, ...]] = {
    "summary": SUMMARY_COLUMNS,
    "histograms": HISTOGRAM_COLUMNS,
    "gpus": GPU_COLUMNS,
    "launches": LAUNCH_COLUMNS,
    "commands": COMMAND_COLUMNS,
    "kernels": KERNEL_COLUMNS,
    "tokens": TOKEN_COLUMNS,
}
TABLES = {table: schema(*columns) for table, columns in COLUMNS.items()}
# Columns that say where a row comes from, and stand before the others.
ORIGIN = schema(
    ("folder", pa.string(), "folder of the file that has the row"),
    ("machine", pa.string(), "device, cores, GPU driver and CUDA libraries of the run; null without its manifest"),
)
FACTS = ("run_id", "started_utc", "config", "environment", "device_versions")  # keys of manifests that are read
MOST_THREADS = 8


class ReadRun(NamedTuple):
    """One run of a dataset."""

    folder: str
    rows: list[Row]  # of its summary; none if there is no summary that can be used
    manifest: Manifest | None
    batches: Iterable[pa.RecordBatch]  # its rows of the table, in `schema_of(table)`; to be read before the next run
    is_usable: bool = True  # False: its manifest is broken, and `batches` raise the DataError that says how


def schema_of(table: str) -> pa.Schema:
    """Return the schema of a table: `ORIGIN`, then the columns of its files; raise ConfigError for an unknown table."""
    if table not in TABLES:
        raise ConfigError("--table", table, f"must be one of {', '.join(TABLES)}")
    return pa.schema([*ORIGIN, *TABLES[table]], {"launchopt.schema_version": str(SCHEMA_VERSION)})


def batches(places: Sequence[Place], table: str) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a table below `places` in `schema_of(table)`. As `runs`."""
    for run in runs(places, table):
        yield from run.batches


def runs(places: Sequence[Place], table: str, columns: Sequence[str] = ()) -> Iterator[ReadRun]:
    """Yield every run below `places` that has a table. columns: those of `ReadRun.rows`; none: there are no rows.

    A file, or a value, that cannot be used is named on standard error, and left out. Raise DataError if no row is left.
    """
    schema_of(table)  # refuses an unknown table at once
    found, reader = _Found(), _Reader(table, columns)
    with ThreadPoolExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0)))) as pool:
        for group in run_files(places, table):
            for run in pool.map(reader.read, group):
                yield run._replace(batches=found.rows(run.batches))
    if found.unusable and not found.has_rows:
        raise found.unusable[0]
    for problem in found.unusable:
        name_unusable(problem)


class _Found:
    """Whether there were rows, and the files that cannot be used."""

    def __init__(self) -> None:
        self.unusable, self.has_rows = list[DataError](), False

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a run until one cannot be read."""
        try:
            for batch in batches:
                self.has_rows = self.has_rows or len(batch) > 0
                yield batch
        except DataError as error:
            self.unusable.append(error)


class _Reader:
    """Reads runs, in several threads at once."""

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        self._table, self._columns, self._schema = table, columns, schema_of(table)

    def read(self, of: RunFiles) -> ReadRun:
        """Read one run. Its table is read now if it is small. An error of the table comes with the batches."""
        manifest, rows = None, list[Row]()
        if os.path.lexists(of.manifest):
            try:
                manifest = facts_in(of.manifest, FACTS, f"{of.folder}/manifest.json")
            except DataError as error:
                return ReadRun(of.folder, [], None, _failing(error), is_usable=False)
        machine = machine_of(manifest)
        batches: Iterable[pa.RecordBatch] = self._batches(of, machine)  # a large table is read when its turn comes
        with contextlib.suppress(OSError, DataError):
            if of.table.stat().st_size <= SMALL_BYTES:
                batches = list(self._batches(of, machine))
        if self._columns:
            with contextlib.suppress(OSError, DataError):  # a run without a summary, or with one of no use
                is_read = self._table == "summary" and isinstance(batches, list)
                summary = batches if is_read else _checked(of, "summary", self._columns)
                rows = [row for batch in summary for row in batch.select(self._columns).to_pylist()]
        return ReadRun(of.folder, rows, manifest, batches)

    def _batches(self, of: RunFiles, machine: str | None) -> Iterator[pa.RecordBatch]:
        for batch in _checked(of, self._table):
            origin = [pa.repeat(pa.scalar(value, pa.string()), len(batch)) for value in (of.folder, machine)]
            yield pa.RecordBatch.from_arrays([*origin, *batch.columns], schema=self._schema)


def _failing(error: DataError) -> Iterator[pa.RecordBatch]:
    """Raise `error` when the first batch is read."""
    raise error
    yield


def _checked(of: RunFiles, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table of a run that can be used. columns: only these."""
    required = [each.name for each in COLUMNS[table] if each.is_required]
    whole = TABLES[table]
    if columns is not None:
        whole, required = pa.schema([whole.field(name) for name in columns]), []
    rules = Rules(whole, required, is_signed=True, renamed=RENAMED, current=current_values, what="a table")
    path = of.table if of.table.stem == table else of.summary
    return checked(path, rules, name=f"{of.folder}/{table}.parquet")
