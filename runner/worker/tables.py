"""launches.parquet, commands.parquet and kernels.parquet, written by the consumer as runs end.

A row group is a chunk of the recording, or the kernels of one run. Each repeat is a part: a Parquet file of its own,
under a hidden temporary name beside the table, and complete or not there. When the job is done they become the table
(`gather`). So whatever ends a writer, even SIGKILL, what it finished before is there for who outlives it (`rescue`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.errors import RunError
from launchopt.files import save_result
from launchopt.recording import results, summary
from launchopt.recording.kernels import kernel_columns
from launchopt.recording.recorder import Recorder
from launchopt.recording.summary import Timing
from runner.plan.job import Job

_PART = "part.tmp"  # how parts' names end: whoever clears temporary files away takes them too

Columns = dict[str, Any]


class GrowingTable:
    """One Parquet file that appears under its name when it is closed; RunError where the disk takes no more."""

    def __init__(self, path: Path, schema: pa.Schema, config: dict[str, Any]) -> None:
        self._path, self._parts = path, 0
        self._schema = schema.with_metadata(results.metadata(config))

    def add(self, columns: Columns) -> None:
        """Append a part of one row group."""
        self.add_all([columns])

    def add_all(self, row_groups: Iterable[Columns]) -> None:
        """Append a part, whole or not at all. Without a row group it is a table without a row."""
        if self._parts == 0:  # what an earlier run left in this folder is no part of this one
            for old in (self._path, *_parts(self._path)):
                old.unlink(missing_ok=True)
        part = self._path.with_name(f".{self._path.stem}.{self._parts:05}.{_PART}")
        tables = (self._table(columns) for columns in row_groups)
        save_result(part, lambda temporary: _write(temporary, self._schema, tables))
        self._parts += 1

    def _table(self, columns: Columns) -> pa.Table:
        arrays = [pa.array(columns[field.name], field.type, safe=False) for field in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def close(self) -> None:
        """Finish the file: it appears under its name."""
        gather(self._path)


def _parts(path: Path) -> list[Path]:
    """The parts of a table, in their order."""
    return sorted(path.parent.glob(f".{path.stem}.[0-9]*.{_PART}"))


def _write(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    # Times hardly repeat: a dictionary of them takes twice the time and more room than none.
    words = [field.name for field in schema if pa.types.is_string(field.type)]
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=words) as writer:
        for table in tables:
            writer.write_table(table)


def _row_groups(parts: Iterable[Path]) -> Iterator[pa.Table]:
    for part in parts:
        with pq.ParquetFile(part) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)


def gather(path: Path) -> None:
    """One table from its parts, which are gone then; RunError where there is no room, and they are still there."""
    parts = _parts(path)
    if len(parts) == 1 and not path.exists():
        parts[0].rename(path)
    elif parts:
        if not path.exists():  # else it was gathered, and whoever did so was ended before the parts were gone
            schema = pq.read_schema(parts[0])
            save_result(path, lambda temporary: _write(temporary, schema, _row_groups(parts)))
        for part in parts:
            part.unlink(missing_ok=True)


def rescue(folder: Path) -> None:
    """Every table in `folder` whose writer did not get to gather it.

    Where there is no room for that the parts stay, as NAME.00000.parquet and so on: nothing is lost, little is tidy.
    """
    for name in sorted({part.name.split(".")[1] for part in folder.glob(f".*.{_PART}")}):
        path = folder / f"{name}.parquet"
        try:
            gather(path)
        except (RunError, OSError, pa.ArrowException):
            for part in _parts(path):
                _keep(part, folder / f"{name}.{part.name.split('.')[2]}.parquet")


def _keep(part: Path, path: Path) -> None:
    """Under a name of its own, if it can be read: a machine that lost power may have left less."""
    try:
        pq.read_metadata(part)
    except (OSError, pa.ArrowException):
        part.unlink(missing_ok=True)
    else:
        with contextlib.suppress(OSError):  # a folder that takes nothing any more
            part.rename(path)


class TableWriter:
    """The detailed tables a job asks for."""

    def __init__(self, job: Job) -> None:
        self._job = job
        folder, config = job.folder, job.config
        self._launches = (
            GrowingTable(folder / "launches.parquet", results.LAUNCHES, config) if job.record_launches else None
        )
        self._commands = (
            GrowingTable(folder / "commands.parquet", results.COMMANDS, config) if job.record_commands else None
        )
        self._kernels = GrowingTable(folder / "kernels.parquet", results.KERNELS, config)  # of traced runs alone

    def add(self, mode: str, repeat: int, recorder: Recorder, timing: Timing) -> None:
        """The rows of one run; RunError where the disk takes no more, and what was added before stays."""
        shapes = self._job.stream.shapes
        if self._launches:
            self._launches.add_all(
                self._named(summary.launch_columns(first, rows, timing, shapes), mode, repeat, len(rows))
                for first, rows in recorder.launch_chunks()
            )
        if self._commands:
            self._commands.add_all(
                self._named(summary.command_columns(chunk, timing, shapes), mode, repeat, len(chunk.commands))
                for chunk in recorder.chunks()
            )
        if timing.activity:
            columns = kernel_columns(timing.activity, recorder, mode, shapes, timing.start_ns)
            self._kernels.add(self._named(columns, mode, repeat, len(timing.activity.activities)))

    def _named(self, columns: Columns, mode: str, repeat: int, rows: int) -> Columns:
        return named(columns, self._job.run_id, mode, repeat, rows)

    def close(self) -> None:
        """Finish the files: what was added is readable from now on."""
        for table in (self._launches, self._commands, self._kernels):
            if table:
                table.close()


def named(columns: Columns, run_id: str, mode: str, repeat: int, rows: int) -> Columns:
    """`columns` of `rows` rows with those that name the run."""
    names = {"run_id": run_id, "mode": mode}
    constant = {name: pa.array([value]).take(pa.array(np.zeros(rows, np.int64))) for name, value in names.items()}
    return {**columns, **constant, "repeat": np.full(rows, repeat, np.int32)}
