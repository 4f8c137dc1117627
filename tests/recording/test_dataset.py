"""Runs of several versions as one table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.paths import ROOT

from launchopt.errors import ConfigError, DataError
from launchopt.recording import results
from launchopt.recording.dataset import TABLES, batches, files, schema_of

COMMITTED = ROOT / "outputs/reference"


def written(folder: Path, table: str, version: str, without: tuple[str, ...] = ()) -> None:
    """A file of one row of nulls but for its run_id, as a version left it."""
    schema = TABLES[table]
    kept = [field for field in schema if field.name not in without]
    columns = {field.name: pa.array([folder.name if field.name == "run_id" else None], field.type) for field in kept}
    folder.mkdir(parents=True, exist_ok=True)
    made = pa.table(columns).replace_schema_metadata({"launchopt.schema_version": version})
    pq.write_table(made, folder / f"{table}.parquet")


def rows(folders: list[Path], table: str) -> list[results.Row]:
    return [row for batch in batches(folders, table) for row in batch.to_pylist()]


def test_versions_are_joined_in_path_order_with_their_folders(tmp_path: Path) -> None:
    written(tmp_path / "b", "summary", "3", ("throttled", "launch_delay_p50_us"))
    written(tmp_path / "a", "summary", str(results.SCHEMA_VERSION))
    found = rows([tmp_path, tmp_path / "a"], "summary")
    assert [(row["run_id"], row["folder"]) for row in found] == [(name, str(tmp_path / name)) for name in "ab"]
    assert all(list(row) == schema_of("summary").names for row in found)


@pytest.mark.parametrize("table", TABLES)
def test_every_table_can_be_read_and_none_is_no_row(table: str, tmp_path: Path) -> None:
    assert rows([tmp_path], table) == []
    written(tmp_path / "x", table, str(results.SCHEMA_VERSION))
    (row,) = rows([tmp_path], table)
    assert row == dict.fromkeys(schema_of(table).names) | {"run_id": "x", "folder": str(tmp_path / "x")}


def test_committed_runs_are_all_of_today(tmp_path: Path) -> None:
    table = pa.Table.from_batches(batches([COMMITTED], "summary"), schema_of("summary"))
    assert len(table) == len(results.read_summaries([COMMITTED]))
    assert set(table["folder"].to_pylist()) == {str(path.parent) for path in files([COMMITTED], "summary")}


def test_a_file_without_what_every_file_has_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "summary", str(results.SCHEMA_VERSION), ("wall_ms",))
    with pytest.raises(DataError, match=r"lacks wall_ms$"):
        rows([tmp_path], "summary")


def test_a_file_of_a_later_version_is_read(tmp_path: Path) -> None:
    written(tmp_path / "x", "summary", "99999999999")
    (row,) = rows([tmp_path], "summary")
    assert row["run_id"] == "x"


def test_broken_files_missing_folders_and_unknown_tables_are_named(tmp_path: Path) -> None:
    (tmp_path / "kernels.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(DataError, match=r"kernels\.parquet: cannot be read as Parquet"):
        rows([tmp_path], "kernels")
    with pytest.raises(DataError, match="no such folder"):
        rows([tmp_path / "none"], "summary")
    with pytest.raises(ConfigError, match="must be one of summary, "):
        schema_of("everything")
