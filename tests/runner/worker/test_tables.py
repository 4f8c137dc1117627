"""Tables that grow a part a repeat: whatever stops them, the parts that were finished are the table."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.errors import RunError
from runner.worker.tables import GrowingTable, rescue

SCHEMA = pa.schema([("part", pa.int32()), ("row", pa.int64()), ("mode", pa.string())])
ENOSPC = os.strerror(errno.ENOSPC)


def row_group(part: int, rows: int, first: int = 0) -> dict[str, Any]:
    return {"part": np.full(rows, part), "row": first + np.arange(rows), "mode": ["batched"] * rows}


class Disk:
    """Full after so many more writes of a row group."""

    def __init__(self, writes: int) -> None:
        self.left, self._write = writes, pq.ParquetWriter.write_table

    def __enter__(self) -> None:
        disk = self

        def write(writer: Any, *arguments: Any, **options: Any) -> None:
            if disk.left == 0:
                raise OSError(errno.ENOSPC, "[Errno 28] Error writing bytes to file")
            disk.left -= 1
            disk._write(writer, *arguments, **options)

        pq.ParquetWriter.write_table = write

    def __exit__(self, *error: object) -> None:
        pq.ParquetWriter.write_table = self._write


@pytest.fixture
def table(tmp_path: Path) -> GrowingTable:
    return GrowingTable(tmp_path / "launches.parquet", SCHEMA, {"seed": 5})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=4), st.integers(0, 30))
def test_a_disk_that_fills_up_at_any_write_costs_what_was_being_written(parts: list[list[int]], writes: int) -> None:
    """`parts`: the rows of each row group of each part."""
    with tempfile.TemporaryDirectory() as name:
        folder, done, gathered, message = Path(name), 0, False, ""
        table = GrowingTable(folder / "launches.parquet", SCHEMA, {})
        try:
            with Disk(writes):
                for part, sizes in enumerate(parts):
                    table.add_all(row_group(part, rows) for rows in sizes)
                    done += 1
                table.close()
                gathered = True
        except RunError as error:
            message = str(error)
        with Disk(0):  # nothing was given back: no room to make one of several
            rescue(folder)
        assert gathered or (message.startswith(f"{folder}: ") and message.endswith(f"cannot be written: {ENOSPC}"))
        written = names(folder)
        whole = gathered or done == 1 or (done > 0 and not any(parts[:done]))
        assert written == (["launches.parquet"] if whole else [f"launches.{part:05}.parquet" for part in range(done)])
        read = [pq.read_table(folder / each) for each in written]
        expected = [(part, row) for part, sizes in enumerate(parts[:done]) for rows in sizes for row in range(rows)]
        rows = [(row["part"], row["row"]) for each in read for row in each.to_pylist()]
        assert rows == expected


def test_a_later_process_adds_to_the_parts_of_the_earlier_one(table: GrowingTable, tmp_path: Path) -> None:
    table.add(row_group(0, 1))
    table.add(row_group(1, 1))
    later = GrowingTable(tmp_path / "launches.parquet", SCHEMA, {"seed": 5}, 2)
    later.add(row_group(2, 1))
    later.close()
    assert pq.read_table(tmp_path / "launches.parquet")["part"].to_pylist() == [0, 1, 2]
    assert names(tmp_path) == ["launches.parquet"]


def test_several_writers_add_parts_in_turn_and_the_first_one_joins_them(tmp_path: Path) -> None:
    path = tmp_path / "launches.parquet"
    (tmp_path / ".launchopt-launches.00003.part.tmp").write_bytes(b"PAR1 of an earlier run")
    tables = [GrowingTable(path, SCHEMA, {}, first, 2) for first in range(2)]
    for part in range(2):
        for writer in (1, 0):  # the second one is faster
            tables[writer].add(row_group(10 * part + writer, 1))
    later = [GrowingTable(path, SCHEMA, {}, first, 2) for first in (4, 5)]
    for writer, table in enumerate(later):
        table.add(row_group(20 + writer, 1))
    later[0].close()
    assert pq.read_table(path)["part"].to_pylist() == [0, 1, 10, 11, 20, 21]
    assert names(tmp_path) == ["launches.parquet"]


def test_who_outlives_the_writer_finishes_its_tables(tmp_path: Path) -> None:
    for name in ("launches", "commands"):
        table = GrowingTable(tmp_path / f"{name}.parquet", SCHEMA, {"seed": 5})
        for part in range(3):
            table.add(row_group(part, 2))
    (tmp_path / ".launchopt-.launchopt-launches.00003.part.tmp.77.tmp").write_bytes(b"PAR1 half of a part")
    assert not (tmp_path / "launches.parquet").exists()
    rescue(tmp_path)
    for name in ("launches", "commands"):
        read = pq.read_table(tmp_path / f"{name}.parquet")
        assert read["part"].to_pylist() == [0, 0, 1, 1, 2, 2]
        assert read.schema.metadata[b"launchopt.config"] == b'{"seed": 5}'
    assert [name for name in names(tmp_path) if name.endswith(".part.tmp")] == []


def test_parts_of_a_table_that_was_finished_are_only_cleared_away(table: GrowingTable, tmp_path: Path) -> None:
    """Whoever gathered it was killed before the last part was gone."""
    for part in range(3):
        table.add(row_group(part, 1))
    last = tmp_path / ".launchopt-launches.00002.part.tmp"
    content = last.read_bytes()
    table.close()
    last.write_bytes(content)
    rescue(tmp_path)
    assert pd.read_parquet(tmp_path / "launches.parquet")["part"].tolist() == [0, 1, 2]
    assert names(tmp_path) == ["launches.parquet"]


def test_what_an_earlier_run_left_in_the_folder_is_no_part_of_it(table: GrowingTable, tmp_path: Path) -> None:
    for part in range(3):
        table.add(row_group(part, 1))
    again = GrowingTable(tmp_path / "launches.parquet", SCHEMA, {})
    again.add(row_group(7, 1))
    again.close()
    assert pd.read_parquet(tmp_path / "launches.parquet")["part"].tolist() == [7]
    third = GrowingTable(tmp_path / "launches.parquet", SCHEMA, {})
    third.add(row_group(8, 1))
    third.add(row_group(9, 1))
    third.close()
    assert pd.read_parquet(tmp_path / "launches.parquet")["part"].tolist() == [8, 9]
    assert names(tmp_path) == ["launches.parquet"]


def test_no_row_is_a_table_and_no_part_is_none(table: GrowingTable, tmp_path: Path) -> None:
    table.close()
    assert names(tmp_path) == []
    table.add_all([])
    table.close()
    assert pq.read_table(tmp_path / "launches.parquet").num_rows == 0
    assert pq.read_schema(tmp_path / "launches.parquet").names == SCHEMA.names


def test_row_groups_stay_as_they_were_written(table: GrowingTable, tmp_path: Path) -> None:
    table.add_all([row_group(0, 2), row_group(0, 3, first=2)])
    table.add(row_group(1, 4))
    table.close()
    file = pq.ParquetFile(tmp_path / "launches.parquet")
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [2, 3, 4]


def test_a_broken_part_takes_no_other_with_it(table: GrowingTable, tmp_path: Path) -> None:
    """As a machine that lost power leaves it."""
    for part in range(2):
        table.add(row_group(part, 1))
    (tmp_path / ".launchopt-launches.00001.part.tmp").write_bytes(b"PAR1 but no more")
    rescue(tmp_path)
    assert pd.read_parquet(tmp_path / "launches.00000.parquet")["part"].tolist() == [0]
    assert names(tmp_path) == ["launches.00000.parquet"]
