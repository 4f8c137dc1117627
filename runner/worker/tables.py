"""launches.parquet, commands.parquet and kernels.parquet. The consumer adds rows to them after each run.

A row group is a chunk of the recording, or the kernels of one run. Each repeat of each consumer is a part: a complete
Parquet file with a hidden temporary name beside the table. At the end of the job `gather` joins the parts, in the first
consumer. If SIGKILL ends it, `rescue` joins the parts that were finished.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.errors import RunError
from launchopt.files import is_own_temporary, save_result
from launchopt.recording import results, summary
from launchopt.recording.columns import Columns
from launchopt.recording.kernels import kernel_columns
from launchopt.recording.summary import Timing
from runner.plan.job import Job

if TYPE_CHECKING:  # the parent of a run imports this module, and must not load Numba
    from launchopt.recording.recorder import Recorder

_PART = "part.tmp"  # suffix of parts; .tmp lets a cleanup of temporary files remove them, too


class GrowingTable:
    """A Parquet file that is written in parts. It gets its name at `close`. Raises RunError if the disk is full.

    first: number of its first part. step: from one of its parts to the next: `step` writers add parts in turn. The
    writer of part 0 removes what an earlier run left in the folder. Make it before another writer adds a part.
    """

    def __init__(
        self, path: Path, schema: pa.Schema, config: Mapping[str, object], first: int = 0, step: int = 1
    ) -> None:
        self._path, self._next, self._step = path, first, step
        self._schema = schema.with_metadata(results.metadata(config))
        if first == 0:
            for old in (path, *_parts(path)):
                old.unlink(missing_ok=True)

    def add(self, columns: Columns) -> None:
        """Append a part of one row group."""
        self.add_all([columns])

    def add_all(self, row_groups: Iterable[Columns]) -> None:
        """Append one part with these row groups: the whole part, or nothing after an error."""
        part = self._path.with_name(f".launchopt-{self._path.stem}.{self._next:05}.{_PART}")
        tables = (self._table(columns) for columns in row_groups)
        save_result(part, lambda temporary: _write(temporary, self._schema, tables))
        self._next += self._step

    def _table(self, columns: Columns) -> pa.Table:
        arrays = [pa.array(columns[field.name], field.type, safe=False) for field in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def close(self) -> None:
        """Join the parts to the file, under its final name."""
        gather(self._path)


def _parts(path: Path) -> list[Path]:
    """Return the parts of a table, in order."""
    return sorted(filter(is_own_temporary, path.parent.glob(f".launchopt-{path.stem}.[0-9]*.{_PART}")))


def _write(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    # Times hardly repeat: encoding them with a dictionary would take twice the time and more bytes.
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    # An open file, since pyarrow itself opens no path that is not UTF-8.
    with path.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=texts) as writer:
        for table in tables:
            writer.write_table(table)


def _row_groups(parts: Iterable[Path]) -> Iterator[pa.Table]:
    for part in parts:
        with part.open("rb") as opened, pq.ParquetFile(opened) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)


def gather(path: Path) -> None:
    """Join the parts to the table and remove them. If the disk is full, raise RunError and keep the parts."""
    parts = _parts(path)
    if len(parts) == 1 and not path.exists():
        parts[0].rename(path)
    elif parts:
        if not path.exists():  # if it exists, a killed process joined the parts and did not remove them
            with parts[0].open("rb") as first:
                schema = pq.read_schema(first)
            save_result(path, lambda temporary: _write(temporary, schema, _row_groups(parts)))
        for part in parts:
            part.unlink(missing_ok=True)


def rescue(folder: Path) -> None:
    """Join the parts of every table in `folder` whose writer was killed.

    If the disk is full, the parts stay as NAME.00000.parquet and so on.
    """
    parts = (part.name.split(".") for part in folder.glob(f".launchopt-*.{_PART}") if is_own_temporary(part))
    for name in sorted({words[1].removeprefix("launchopt-") for words in parts}):
        path = folder / f"{name}.parquet"
        try:
            gather(path)
        except (RunError, OSError, pa.ArrowException):
            for part in _parts(path):
                _keep(part, folder / f"{name}.{part.name.split('.')[2]}.parquet")


def _keep(part: Path, path: Path) -> None:
    """Rename a part to `path`. Remove it if it cannot be read: after a power failure it may be incomplete."""
    try:
        with part.open("rb") as file:
            pq.read_metadata(file)
    except (OSError, pa.ArrowException):
        part.unlink(missing_ok=True)
    else:
        with contextlib.suppress(OSError):  # a folder without write permission
            part.rename(path)


class TableWriter:
    """The detailed tables that a job asks for."""

    def __init__(self, job: Job) -> None:
        self._job = job
        folder, config = job.folder, job.config

        def table(name: str, schema: pa.Schema) -> GrowingTable:
            first = job.first_part * job.writers + job.consumer
            return GrowingTable(folder / f"{name}.parquet", schema, config, first, job.writers)

        self._launches = table("launches", results.LAUNCHES) if job.record_launches else None
        self._commands = table("commands", results.COMMANDS) if job.record_commands else None
        self._kernels = table("kernels", results.KERNELS)  # only traced runs have rows

    def add(self, mode: str, repeat: int, recorder: Recorder, timing: Timing) -> None:
        """Add the rows of one run. If the disk is full, raise RunError and keep earlier rows."""
        shapes, gpu = self._job.stream.shapes, self._job.gpu
        if self._launches:
            self._launches.add_all(
                self._named(summary.launch_columns(first, rows, timing, shapes, gpu), mode, repeat, len(rows))
                for first, rows in recorder.launch_chunks()
            )
        if self._commands:
            self._commands.add_all(
                self._named(summary.command_columns(chunk, timing, shapes), mode, repeat, len(chunk.commands))
                for chunk in recorder.chunks()
            )
        if timing.activity:
            columns = kernel_columns(timing.activity, recorder, mode, shapes, timing.start_ns, gpu)
            self._kernels.add(self._named(columns, mode, repeat, len(timing.activity.activities)))

    def _named(self, columns: Columns, mode: str, repeat: int, rows: int) -> Columns:
        return named(columns, self._job.run_id, mode, repeat, rows)

    def close(self) -> None:
        """Finish the files, unless more processes add to them, or another consumer finishes them."""
        if self._job.consumer or not self._job.is_last:
            return
        for table in (self._launches, self._commands, self._kernels):
            if table:
                table.close()


def named(columns: Columns, run_id: str, mode: str, repeat: int, rows: int) -> Columns:
    """Return `columns`, which have `rows` rows, and columns with the run, the mode and the repeat."""
    names = {"run_id": run_id, "mode": mode}
    constant = {name: pa.repeat(value, rows) for name, value in names.items()}
    return {**columns, **constant, "repeat": np.full(rows, repeat, np.int32)}
