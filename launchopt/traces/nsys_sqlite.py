"""Read traces of Nsight Systems, as `nsys export --type sqlite` writes them.

Files of nsys 2022 to 2025 are opened read-only. Any table may be missing. The `Trace` has every call of the CUDA API
and every kernel, copy, fill and whole graph. A runtime call and the driver call within it are two calls.

In nsys, globalTid = process << 24 | thread, and globalPid = process << 24. `launchopt.analysis.profiles.nsys` reads the
same files for our own profiles, by NVTX range.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from launchopt.errors import DataError
from launchopt.traces.events import (
    CALL,
    GPU_EVENT,
    LATEST_NS,
    NAME_CHARACTERS_MAX,
    NONE,
    Format,
    Gathered,
    Kind,
    Names,
    Trace,
    without_time,
)
from launchopt.traces.json_stream import VALUE_BYTES_MAX

# Columns to read, by table. A missing table is replaced by an empty one, so that one query works for all files.
_GPU_COLUMNS = ("correlationId", "streamId", "globalPid", "deviceId", "contextId")
_SPAN = f'start, "end", {", ".join(_GPU_COLUMNS)}'
_TABLES = {
    "StringIds": "id, value",
    "CUPTI_ACTIVITY_KIND_RUNTIME": 'start, "end", correlationId, globalTid, nameId',
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_SPAN}, demangledName",
    "CUPTI_ACTIVITY_KIND_MEMCPY": _SPAN,
    "CUPTI_ACTIVITY_KIND_MEMSET": _SPAN,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _SPAN,
    "TARGET_INFO_CUDA_DEVICE": "pid, cudaId, gpuId",
}
_GPU_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (Kind.KERNEL, "demangledName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (Kind.MEMCPY, None),
    "CUPTI_ACTIVITY_KIND_MEMSET": (Kind.MEMSET, None),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (Kind.GRAPH, None),
}
# A file with any of these is an export, too: nsys leaves out the tables of what it did not collect.
_SIGNS = {"DIAGNOSTIC_EVENT", "OSRT_API", "NVTX_EVENTS", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"}
_DIAGNOSTICS = """
SELECT DISTINCT SUBSTR(CAST(text AS TEXT), 1, 1000) FROM DIAGNOSTIC_EVENT
WHERE text LIKE '%CUDA%' OR text LIKE '%CUPTI%' OR text LIKE '%GPU%' LIMIT 3
"""
_STRINGS = f"""
SELECT id, SUBSTR(COALESCE(CAST(value AS TEXT), '(unnamed)'), 1, {NAME_CHARACTERS_MAX + 1}) FROM StringIds WHERE id IN (
  SELECT nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME UNION SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL)
"""
_VERSION = re.compile(r"_v\d{4,}$")  # suffix that CUPTI and nsys add: cudaLaunchKernel_v7000
_CUDA = re.compile(r"cu(da)?[A-Z]")  # a capital follows, unlike in names of cuBLAS and cuDNN
_INT32 = 2**31 - 1
_DEVICES_MAX = 100_000  # rows of the table of devices that are read


def read_nsys(path: Path) -> Trace:
    """Return the CUDA calls and GPU events of the export at `path`; DataError if it is missing, or no export.

    Events without a usable time are left out and counted.
    """
    try:
        # immutable: SQLite opens no journal beside the file, which could be a pipe.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            # A name may end within a UTF-8 character. That must not make the file unreadable.
            database.text_factory = lambda raw: raw.decode(errors="replace")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
            return _Reader(database, path).trace()
    except sqlite3.OperationalError as error:
        raise DataError(path, None, f"not laid out like an nsys export ({error})") from None
    except sqlite3.DatabaseError as error:
        raise DataError(path, None, f"cannot be read as SQLite ({error})") from None
    except UnicodeDecodeError:  # from SQLite's message about a damaged schema
        raise DataError(path, None, "cannot be read as SQLite (its schema is damaged)") from None


def complete(database: sqlite3.Connection, path: Path, tables: Mapping[str, str]) -> None:
    """Create those tables of `tables`, {name: columns}, that are missing, as empty tables.

    DataError: the file has no table of nsys, or a table has computed columns.
    """
    present = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if present.isdisjoint({*tables, *_SIGNS}):
        raise DataError(path, None, "holds no table of nsys: export the report with `nsys export --type sqlite`")
    for name in tables.keys() & present:
        if any(hidden for *_, hidden in database.execute(f"PRAGMA table_xinfo({name})")):
            raise DataError(path, None, f"{name} has computed columns: not what nsys exports")
    for name in tables.keys() - present:
        database.execute(f"CREATE TEMP TABLE {name} ({tables[name]})")


class _Reader:
    """Turns the rows of one database into rows of a `Trace`."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self._database = database
        self._calls, self._gpu, self._names = Gathered(CALL), Gathered(GPU_EVENT), Names()
        self._events, self._left_out = 0, 0
        complete(database, path, _TABLES)
        self._strings: dict[int, str] = dict(database.execute(_STRINGS))
        self._gpus = self._gpus_of_processes()

    def trace(self) -> Trace:
        """Return the whole trace."""
        self._read_calls()
        for table in _GPU_TABLES:
            self._read_gpu(table)
        calls, gpu = self._calls.array(), self._gpu.array()
        diagnostics = () if len(calls) or len(gpu) else self._diagnostics()
        unknown = without_time(np.concatenate([calls["start_ns"], gpu["start_ns"]]))
        calls, gpu = calls[~unknown[: len(calls)]], gpu[~unknown[len(calls) :]]
        left_out = self._left_out + int(unknown.sum())
        names = self._names.texts
        return Trace(Format.SQLITE, calls, gpu, names, self._events, left_out, diagnostics=diagnostics)

    def _gpus_of_processes(self) -> dict[tuple[int, int], int]:
        """Return the number of the GPU itself by process and device; none that has two numbers."""
        present = {row[1] for row in self._database.execute("PRAGMA table_info(TARGET_INFO_CUDA_DEVICE)")}
        if not present.issuperset({"pid", "cudaId", "gpuId"}):
            return {}
        found: dict[tuple[int, int], set[int]] = {}
        rows = self._database.execute(f"SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE LIMIT {_DEVICES_MAX}")
        for process, device, itself in rows:
            if isinstance(itself, int) and 0 <= itself <= _INT32:
                found.setdefault((process, device), set()).add(itself)
        return {key: min(of) for key, of in found.items() if len(of) == 1}

    def _diagnostics(self) -> tuple[str, ...]:
        """Return the diagnostics of nsys about CUDA."""
        columns = {row[1] for row in self._database.execute("PRAGMA table_info(DIAGNOSTIC_EVENT)")}
        return tuple(text for (text,) in self._database.execute(_DIAGNOSTICS)) if "text" in columns else ()

    def _rows(self, table: str, *columns: str | None) -> Iterator[tuple[Any, ...]]:
        """Yield start, end and these columns of each row with a usable time. Count all rows, and those left out.

        A value is NONE if the column is missing or the value is null, since versions of nsys differ in their columns.
        """
        present = {row[1] for row in self._database.execute(f"PRAGMA table_info({table})")}
        parts = (
            f"COALESCE(CAST({column} AS INTEGER), {NONE})" if column in present else str(NONE) for column in columns
        )
        for start, end, *values in self._database.execute(f'SELECT start, "end", {", ".join(parts)} FROM {table}'):
            self._events += 1
            if isinstance(start, int) and isinstance(end, int) and -LATEST_NS < start <= end < LATEST_NS:
                yield start, end, *values
            else:
                self._left_out += 1

    def _read_calls(self) -> None:
        rows = self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId", "globalTid", "nameId")
        for start, end, correlation, thread, name_id in rows:
            name = _VERSION.sub("", self._strings.get(name_id, "(unnamed)"))
            if _CUDA.match(name):
                labels = self._process(thread), self._names.code(("thread", thread), str(thread & 0xFFFFFF))
                self._calls.add((start, end, correlation, self._events, *labels, self._names.code(name)))

    def _read_gpu(self, table: str) -> None:
        kind, name_column = _GPU_TABLES[table]
        for start, end, correlation, stream, process, *numbers, name_id in self._rows(
            table, *_GPU_COLUMNS, name_column
        ):
            name = self._names.code(self._strings.get(name_id, kind.name.lower()))
            device, context = (number if 0 <= number <= _INT32 else NONE for number in numbers)
            owner, stream = self._process(process), max(stream, NONE)
            key = start, end, correlation, self._events, stream
            itself = self._gpus.get((process >> 24 & 0xFFFFFF, device), NONE)
            self._gpu.add((*key, owner, NONE, device, context, name, kind, NONE, itself))

    def _process(self, global_id: int) -> int:
        if global_id == NONE:
            return NONE
        return self._names.code(("process", global_id >> 24), str(global_id >> 24 & 0xFFFFFF))
