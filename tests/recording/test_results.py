"""Files in a run's folder: columns, metadata, and errors for files of other programs."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.paths import TESTS

from launchopt.errors import DataError, RunError
from launchopt.recording import results
from launchopt.recording.dataset import batches
from launchopt.recording.summary_columns import KNOWN, SUMMARY_COLUMNS, derived

GOLDEN = TESTS / "golden"
SCHEMAS = {"summary": results.SUMMARY, "launches": results.LAUNCHES, "commands": results.COMMANDS}
SCHEMAS |= {"tokens": results.TOKENS, "histograms": results.HISTOGRAMS, "kernels": results.KERNELS}
VALUES = {pa.string(): "x", pa.int32(): 2**31 - 1, pa.int64(): -(2**63), pa.float64(): 0.1, pa.bool_(): True}
CONFIG = {"mode": {"name": "batched"}, "note": "µ"}


# A value in every column without which a summary's row is of no use.
ROW = dict.fromkeys(results.SUMMARY.names) | {
    name: {"string": "cpu", "bool": False}.get(str(results.SUMMARY.field(name).type), 1) for name in KNOWN
}


def rows(schema: pa.Schema) -> list[results.Row]:
    """One with a value in every column, one with nulls."""
    return [{field.name: VALUES[field.type] for field in schema}, dict.fromkeys(schema.names)]


@pytest.mark.parametrize("name", SCHEMAS)
def test_columns(name: str) -> None:
    """A change here is a change of what others read."""
    lines = [f"{field.name} {field.type}" for field in SCHEMAS[name]]
    assert "\n".join(lines) + "\n" == (GOLDEN / f"schema_{name}.txt").read_text()


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_column_says_what_it_is(name: str) -> None:
    for field in SCHEMAS[name]:
        assert field.metadata[b"doc"].decode().strip(), field.name
    assert len(set(SCHEMAS[name].names)) == len(SCHEMAS[name].names)


@pytest.mark.parametrize("name", SCHEMAS)
def test_round_trip_keeps_values_nulls_docs_and_config(name: str, tmp_path: Path) -> None:
    schema, path = SCHEMAS[name], tmp_path / f"{name}.parquet"
    results.write_rows(path, schema, rows(schema), CONFIG)
    table = pq.read_table(path)
    assert table.to_pylist() == rows(schema)
    assert table.schema.equals(schema)
    assert [field.metadata[b"doc"] for field in table.schema] == [field.metadata[b"doc"] for field in schema]
    assert json.loads(table.schema.metadata[b"launchopt.config"]) == CONFIG
    assert table.schema.metadata[b"launchopt.schema_version"] == str(results.SCHEMA_VERSION).encode()


def test_summaries_are_read_in_path_order_from_folders_and_files(tmp_path: Path) -> None:
    for name in ("b", "a/mode=deep", "c"):  # a folder's name is no column
        (tmp_path / name).mkdir(parents=True)
        row = ROW | {"run_id": name}
        results.write_rows(tmp_path / name / "summary.parquet", results.SUMMARY, [row], {})
    read = results.read_summaries([tmp_path, tmp_path / "c/summary.parquet"])
    assert [row["run_id"] for row in read] == ["a/mode=deep", "b", "c", "c"]
    assert [row["model"] for row in read] == [None] * 4
    assert all(row.keys() == set(results.SUMMARY.names) for row in read)


def write_without(names: list[str], version: str, folder: Path, **more: object) -> None:
    """A summary of one row that lacks some columns, and has some more."""
    kept = [name for name in results.SUMMARY.names if name not in names]
    table = pa.table({name: pa.array([ROW[name]], results.SUMMARY.field(name).type) for name in kept} | more)
    table = table.replace_schema_metadata({"launchopt.schema_version": version})
    pq.write_table(table, folder / "summary.parquet")


VERSIONS = ("1", "2", "3", str(results.SCHEMA_VERSION), str(results.SCHEMA_VERSION + 1), "")
LATER = [each.name for each in SUMMARY_COLUMNS if not each.is_required]


@pytest.mark.parametrize("version", VERSIONS)
def test_columns_that_a_file_does_not_have_read_as_null_whatever_its_version(version: str, tmp_path: Path) -> None:
    write_without(LATER, version, tmp_path)
    (row,) = results.read_summaries([tmp_path])
    assert row == ROW


@pytest.mark.parametrize("version", VERSIONS)
def test_columns_that_nobody_knows_yet_are_left_out(version: str, tmp_path: Path) -> None:
    write_without([], version, tmp_path, tomorrow_ms=[1.0])
    (row,) = results.read_summaries([tmp_path])
    assert row == ROW


def test_an_old_name_of_a_column_is_read_as_todays(tmp_path: Path) -> None:
    write_without(["setup_ms"], "4", tmp_path, one_time_ms=[12.5])
    (row,) = results.read_summaries([tmp_path])
    (batch,) = batches([tmp_path], "summary")
    assert row["setup_ms"] == batch.to_pylist()[0]["setup_ms"] == 12.5
    assert "one_time_ms" not in row


@pytest.mark.parametrize("recorded", ["predecessor", "tiny"])
def test_an_old_name_of_a_model_is_read_as_todays(recorded: str, tmp_path: Path) -> None:
    write_without(["model"], "4", tmp_path, model=[recorded])
    (row,) = results.read_summaries([tmp_path])
    (batch,) = batches([tmp_path], "summary")
    today = {"predecessor": "small_1024"}.get(recorded, recorded)
    assert row["model"] == batch.to_pylist()[0]["model"] == today


@pytest.mark.parametrize("missing", ["wall_ms", "run_id, mode"])
def test_what_every_file_has_must_be_there(missing: str, tmp_path: Path) -> None:
    write_without(missing.split(", "), str(results.SCHEMA_VERSION), tmp_path)
    with pytest.raises(DataError, match=f"lacks {missing}$"):
        results.read_summaries([tmp_path])


def test_a_formula_gives_its_column_and_null_where_it_cannot() -> None:
    missing = dict.fromkeys(["launch_calls_per_step", "kernels_per_step", "step_wall_us", "step_span_us"])
    assert derived({"commands": 12, "batches": 4}) == {"batch_size_mean": 3.0} | missing
    assert derived({"commands": 0, "batches": 0}) == derived({"commands": 1}) == {"batch_size_mean": None} | missing


def test_formulas_use_columns_that_are_there() -> None:
    names = [each.name for each in SUMMARY_COLUMNS]
    for each in SUMMARY_COLUMNS:
        assert set(each.inputs) <= set(names[: names.index(each.name)]), each.name


def test_committed_summaries_can_all_be_read() -> None:
    """They were written by several versions."""
    rows = results.read_summaries([GOLDEN.parents[1] / "outputs/reference"])
    assert all(row.keys() == set(results.SUMMARY.names) for row in rows)


def test_a_launch_of_several_shapes_has_none(tmp_path: Path) -> None:
    path = tmp_path / "launches.parquet"
    row = {**rows(results.LAUNCHES)[0], "m": None, "n": None, "k": None, "strategy": "grouped"}
    results.write_rows(path, results.LAUNCHES, [row], CONFIG)
    assert pq.read_table(path).to_pylist() == [row]


def test_histograms_are_read_from_folders_and_beside_files_and_by_what_they_count(tmp_path: Path) -> None:
    assert results.read_histograms([tmp_path]) == []
    row = {"run_id": "a", "mode": "batched", "repeat": 0, "low": 5, "high": 5, "count": 2}
    kept = [{**row, "what": what} for what in ("latency", "batch_size")]
    for name in ("a/mode=deep", "b"):
        (tmp_path / name).mkdir(parents=True)
        results.write_rows(tmp_path / name / "histograms.parquet", results.HISTOGRAMS, kept, {})
    assert results.read_histograms([tmp_path]) == kept * 2
    assert results.read_histograms([tmp_path / "b"], ["latency"]) == kept[:1]
    (tmp_path / "b/summary.parquet").write_bytes(b"")
    assert results.read_histograms([tmp_path / "b/summary.parquet"]) == kept


def test_broken_and_foreign_histograms_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "histograms.parquet"
    path.write_bytes(b"PAR1 but no more")
    assert results.read_histograms([tmp_path]) == []
    assert "histograms.parquet: cannot be read as Parquet" in capsys.readouterr().err
    pq.write_table(pa.table({"what": ["latency"], "run_id": ["x"]}), path)
    assert results.read_histograms([tmp_path], ["latency"]) == []
    assert "lacks mode, repeat, low, high, count" in capsys.readouterr().err


def test_a_wrong_type_is_refused(tmp_path: Path) -> None:
    row = {**rows(results.SUMMARY)[0], "commands": "many"}
    with pytest.raises(pa.ArrowException):
        results.write_rows(tmp_path / "summary.parquet", results.SUMMARY, [row], {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_write_that_fails_leaves_nothing_and_takes_nothing(
    before: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(table: pa.Table, where: BinaryIO, **_: Any) -> None:
        where.write(b"half")
        raise OSError("disk full")

    path = tmp_path / "summary.parquet"
    if before is not None:
        path.write_bytes(before)
    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(RunError, match=r"summary.parquet cannot be written: disk full$"):
        results.write_rows(path, results.SUMMARY, rows(results.SUMMARY), {})
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == (
        {} if before is None else {"summary.parquet": before}
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "no summary.parquet here or below"),
        ("outptus", "no such folder; did you mean {}/outputs?"),
        ("nowhere/summary.parquet", "no such folder"),
    ],
)
def test_a_folder_without_a_summary_is_named(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    with pytest.raises(DataError) as caught:
        results.read_summaries([tmp_path / name])
    assert str(caught.value) == f"{tmp_path / name}: {why.format(tmp_path)}"


def test_a_broken_summary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "summary.parquet"
    results.write_rows(path, results.SUMMARY, rows(results.SUMMARY), {})
    for broken in (b"", b"run_id,mode\n", path.read_bytes()[:-9]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"summary\.parquet: cannot be read as Parquet \("):
            results.read_summaries([tmp_path])


def test_a_foreign_summary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "summary.parquet"
    kept = [name for name in results.SUMMARY.names if name not in ("mode", "wall_ms")]
    pq.write_table(pa.table({name: [1] for name in kept}), path)
    with pytest.raises(DataError) as caught:
        results.read_summaries([path])
    assert str(caught.value) == f"{path}: not a summary of this project: lacks mode, wall_ms"


def test_a_folder_that_may_not_be_listed_is_not_taken_for_one_without_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        results.read_summaries([tmp_path])
