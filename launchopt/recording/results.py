"""What a run leaves in its folder, and how to read it back.

    summary.parquet     a row a repeat of a mode
    histograms.parquet  a row a bucket: how the times and the batch sizes of a repeat are distributed
    launches.parquet    a row a launch call            (record.launches=all)
    commands.parquet    a row a command, as executed   (record.commands=all)
    kernels.parquet     a row a kernel, as CUPTI saw it (timing=cupti)
    tokens.parquet      a row a token of a request     (record.tokens=all)
    torch-MODE-REPEAT.json.gz  what torch.profiler saw (timing=torch)
    manifest.json       status, composed config, environment, versions, ceilings, what went wrong

Their columns are documented in `columns`. The composed config is in the Parquet metadata under `launchopt.config`.
Files are written atomically. Files of an earlier schema version are readable: a column that they lack is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.errors import DataError
from launchopt.files import save_result
from launchopt.recording.columns import COMMANDS, HISTOGRAMS, KERNELS, LAUNCHES, SUMMARY, TOKENS
from launchopt.recording.manifest import SCHEMA_VERSION, read_manifest, read_manifests, write_manifest

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
    "missing_columns",
    "read_histograms",
    "read_manifest",
    "read_manifests",
    "read_summaries",
    "write_manifest",
    "write_rows",
    "write_table",
]

Row = dict[str, Any]
MOST_ROWS, MOST_TABLE_BYTES = 10_000_000, 1 << 30  # of the tables that are read as a whole

# Columns that a file of an earlier schema version does not have.
_SINCE_3 = {
    *("kernels_dropped", "launch_delay_p50_us", "launch_delay_p99_us", "launch_delays_clipped"),
    *("sm_clock_mhz", "sm_clock_min_mhz", "throttled", "throttle_reasons", "energy_mj_per_command", "power_w"),
}
_SINCE_2 = _SINCE_3 | {
    *("streams", "padded_commands", "graph_replays"),
    *("one_time_ms", "capture_ms", "instantiate_ms", "upload_ms", "update_ms"),
}
_SINCE_1 = _SINCE_2 | {
    *("arrival_rate_per_s", "completed_rate_per_s", "overloaded", "scheduler", "flush_stall", "goodput_per_s"),
    *("producer_late_max_us",),
    *(name for name in SUMMARY.names if name.startswith(("token", "ttft", "tpot", "slo", "sampling", "batch_wait"))),
    *(f"{name}_{part}_us" for name in ("latency", "queue_wait") for part in ("p90", "p999", "max")),
}
_SINCE = {b"1": _SINCE_1, b"2": _SINCE_2, b"3": _SINCE_3}


def metadata(config: Mapping[str, Any]) -> dict[str, str]:
    """What every file says of itself: the schema's version, and the config it was made with."""
    return {"launchopt.schema_version": str(SCHEMA_VERSION), "launchopt.config": json.dumps(config)}


def write_table(path: Path, schema: pa.Schema, columns: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Write one Parquet file atomically; `columns` maps every name of `schema` to values of one length.

    RunError where the disk does not take it; so too of `write_rows`.
    """
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema.with_metadata(metadata(config)))
    save_result(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def write_rows(path: Path, schema: pa.Schema, rows: Sequence[Row], config: Mapping[str, Any]) -> None:
    """`write_table` for a few rows."""
    write_table(path, schema, {name: [row[name] for row in rows] for name in schema.names}, config)


def read_summaries(folders: Iterable[Path]) -> list[Row]:
    """Rows of every summary.parquet at or below `folders`, in path order.

    Raises DataError for a folder that holds none, and for a file that is not one of ours.
    """
    rows: list[Row] = []
    for folder in folders:
        found = [folder] if folder.is_file() else sorted(folder.rglob("summary.parquet"))
        if not found:
            raise DataError(folder, None, "no summary.parquet here or below")
        for path in found:
            rows += _read_rows(path)
    return rows


def read_histograms(folders: Iterable[Path], what: Sequence[str] | None = None) -> list[Row]:
    """Rows of every histograms.parquet at or below `folders`, or beside a file; only of `what`, where given.

    None is an empty list: runs of schema version 1 left no histograms. Raises DataError for a file that is not ours.
    """
    rows: list[Row] = []
    for folder in folders:
        within = folder.parent.glob if folder.is_file() else folder.rglob
        for path in sorted(within("histograms.parquet")):
            try:
                _require_small(path)
                table = pq.read_table(path, filters=None if what is None else [("what", "in", list(what))])
            except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are no UTF-8
                raise DataError(path, None, f"cannot be read as a table of histograms ({error})") from None
            missing = [name for name in HISTOGRAMS.names if name not in table.column_names]
            if missing:
                raise DataError(path, None, f"not histograms of this project: lacks {', '.join(missing)}")
            rows += _typed(path, table, HISTOGRAMS).to_pylist()
    return rows


def missing_columns(names: Sequence[str], schema: pa.Schema, version: bytes) -> list[str]:
    """Columns of `schema` that a file of a schema version ought to have and has not."""
    later = _SINCE.get(version, set())
    return [name for name in schema.names if name not in names and name not in later]


def _require_small(path: Path) -> None:
    """DataError for a file of rows beyond all runs: some kilobytes of Parquet can hold billions of them."""
    about = pq.read_metadata(path)
    size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    if about.num_rows > MOST_ROWS or size > MOST_TABLE_BYTES:
        raise DataError(path, None, f"{about.num_rows:,} rows of {size:,} bytes: more than any run leaves")


def _typed(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema` that are there, in its types; DataError for one of another type, or there twice."""
    columns: dict[str, Any] = {}
    for field in schema:
        found = table.schema.get_all_field_indices(field.name)
        if len(found) > 1:
            raise DataError(path, None, f"two columns are named {field.name}")
        try:
            if found:
                columns[field.name] = table.column(found[0]).cast(field.type)
        except pa.ArrowException as error:
            raise DataError(path, None, f"{field.name} holds no {field.type} ({error})") from None
    return pa.table(columns)


def _read_rows(path: Path) -> list[Row]:
    try:
        _require_small(path)
        table = pq.read_table(path)
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are no UTF-8
        raise DataError(path, None, f"cannot be read as Parquet ({error})") from None
    version = (table.schema.metadata or {}).get(b"launchopt.schema_version", b"")
    if missing := missing_columns(table.column_names, SUMMARY, version):
        raise DataError(path, None, f"not a summary of this project: lacks {', '.join(missing)}")
    rows: list[Row] = _typed(path, table, SUMMARY).to_pylist()
    return [dict.fromkeys(SUMMARY.names) | row for row in rows]
