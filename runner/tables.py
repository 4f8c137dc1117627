"""launches.parquet, commands.parquet and kernels.parquet, written by the consumer as runs end.

A row group is a chunk of the recording, or the kernels of one run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from launchopt import results, summary
from launchopt.recorder import Recorder
from launchopt.summary import Timing
from launchopt.timing.activity import kernel_columns
from runner.job import Job


class GrowingTable:
    """One Parquet file that appears under its name when it is closed."""

    def __init__(self, path: Path, schema: pa.Schema, config: dict[str, Any]) -> None:
        self._path, self._temporary = path, path.with_name(f".{path.name}.tmp")
        self._schema = schema.with_metadata(results.metadata(config))
        self._writer: pq.ParquetWriter | None = None

    def open(self) -> pq.ParquetWriter:
        """Begin the file, where it was not begun."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._temporary, self._schema, compression="zstd")
        return self._writer

    def add(self, columns: dict[str, Any]) -> None:
        """Append a row group."""
        arrays = [pa.array(columns[field.name], field.type, safe=False) for field in self._schema]
        self.open().write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Finish the file: it appears under its name."""
        if self._writer is not None:
            self._writer.close()
            self._temporary.replace(self._path)
            self._writer = None


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
        """The rows of one run."""
        shapes = self._job.stream.shapes
        if self._launches:
            self._launches.open()  # a run without a launch has a table without a row
            for first, rows in recorder.launch_chunks():
                columns = summary.launch_columns(first, rows, timing, shapes)
                self._launches.add(self._named(columns, mode, repeat, len(rows)))
        if self._commands:
            self._commands.open()
            for chunk in recorder.chunks():
                columns = summary.command_columns(chunk, timing, shapes)
                self._commands.add(self._named(columns, mode, repeat, len(chunk.commands)))
        if timing.activity:
            columns = kernel_columns(timing.activity, recorder, mode, shapes, timing.start_ns)
            self._kernels.add(self._named(columns, mode, repeat, len(timing.activity.activities)))

    def _named(self, columns: dict[str, Any], mode: str, repeat: int, rows: int) -> dict[str, Any]:
        return named(columns, self._job.run_id, mode, repeat, rows)

    def close(self) -> None:
        """Finish the files: what was added is readable from now on."""
        for table in (self._launches, self._commands, self._kernels):
            if table:
                table.close()


def named(columns: dict[str, Any], run_id: str, mode: str, repeat: int, rows: int) -> dict[str, Any]:
    """`columns` of `rows` rows with those that name the run."""
    names = {"run_id": run_id, "mode": mode}
    constant = {name: pa.array([value]).take(pa.array(np.zeros(rows, np.int64))) for name, value in names.items()}
    return {**columns, **constant, "repeat": np.full(rows, repeat, np.int32)}
