"""A Parquet file of somebody else: the values that can be used come out, and one line names the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launchopt.errors import DataError
from launchopt.reading.parquet import NUMBER_MAX, TEXT_CHARACTERS_MAX, Rules, checked, read_all

SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64()), ("ms", pa.float64()), ("is_new", pa.bool_())])
RULES = Rules(SCHEMA, ["name", "ms"], ["name"], renamed={"title": "name"}, most_rows=1000)
GOOD = {"name": ["a", "b"], "count": [1, 2], "ms": [0.5, 1.5], "is_new": [True, False]}


def read(folder: Path, table: pa.Table, rules: Rules = RULES) -> list[dict[str, Any]]:
    pq.write_table(table, folder / "x.parquet")
    return [row for batch in checked(folder / "x.parquet", rules) for row in batch.to_pylist()]


def test_a_good_file_is_read_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pa.Table.from_pylist(read(tmp_path, pa.table(GOOD))).to_pydict() == GOOD
    assert pa.Table.from_pylist(read(tmp_path, pa.table(GOOD).rename_columns(["title", "count", "ms", "is_new"])))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("column", "values", "kept", "why"),
    [
        ("ms", [float("nan"), 1.5], [None, 1.5], "ms has 1 impossible values"),
        ("ms", [float("inf"), -1.0], [None, None], "ms has 2 impossible values"),
        ("ms", [1e-31, 0.0], [None, 0.0], "ms has 1 impossible values"),
        ("ms", ["soon", "late"], [None, None], "ms holds no double"),
        ("ms", [[1.0], [2.0]], [None, None], "ms holds no double"),
        ("ms", [{"a": 1}, {"a": 2}], [None, None], "ms holds no double"),
        ("count", [NUMBER_MAX + 1, 2], [None, 2], "count has 1 impossible values"),
        ("count", [1e300, 2.0], [None, None], "count holds no int64"),
        ("is_new", ["<script>", "x"], [None, None], "is_new holds no bool"),
        ("name", ["x" * (TEXT_CHARACTERS_MAX + 1), "b"], ["b"], "name has 1 impossible values; name is missing in 1"),
        ("name", [None, "b"], ["b"], "name is missing in 1 of 2 rows"),
    ],
)
def test_what_cannot_be_used_is_named_and_the_rest_is_read(
    column: str, values: list[Any], kept: list[Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = read(tmp_path, pa.table(GOOD | {column: values}))
    assert [row[column] for row in rows] == kept
    assert [row["count"] for row in rows][-1] == (None if column == "count" and kept[-1] is None else 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {tmp_path}/x.parquet: shown without what cannot be used: {why}")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (pa.table(GOOD).drop_columns(["ms"]), "lacks ms"),
        (pa.table(GOOD | {"name": [None, None]}), "no row can be used: name is missing in 2 of 2 rows"),
        (pa.table(GOOD | {"name": [[1], [2]]}), "name holds no string"),
        (pa.table(GOOD).append_column("name", pa.array([1, 2])), "name is the name of two columns"),
        (pa.table({name: values * 600 for name, values in GOOD.items()}), "1,200 rows"),
    ],
)
def test_a_file_without_a_usable_row_is_refused(table: pa.Table, why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=why):
        read(tmp_path, table)


def test_a_text_that_is_not_utf8_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offsets, data = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffb")
    names = pa.StringArray.from_buffers(2, offsets, data)
    rows = read(tmp_path, pa.table(GOOD | {"name": names}), RULES._replace(known=()))
    assert [row["name"] for row in rows] == [None, None]
    assert "name holds no string" in capsys.readouterr().err


def test_a_window_reads_only_row_groups_that_may_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"name": ["a"] * 4 + ["b"] * 4, "ms": [1.0] * 8, "count": range(8)})
    pq.write_table(table, path, row_group_size=4)
    rows = [row for batch in checked(path, RULES, {"name": ("b", "b"), "count": (3, 5)}) for row in batch.to_pylist()]
    assert [row["count"] for row in rows] == [4, 5]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(DataError, match="a named pipe, not a regular file"):
        read_all(tmp_path / "pipe.parquet")
