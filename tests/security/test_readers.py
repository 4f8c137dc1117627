"""Readers of files, and what somebody else may have put into these; scripts/fuzz.py goes on where this ends."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.processes.limits import limited
from support.results.mutations import CORPUS, READERS, complaint, mutant

from launchopt.analysis.profiles.nsys import read_profile
from launchopt.analysis.verdict.calibration import read_calibration
from launchopt.errors import DataError
from launchopt.recording.results import read_manifest, read_summaries
from launchopt.traces.json_stream import BLANK_BYTES_MAX
from launchopt.traces.kineto import read_kineto
from launchopt.traces.nsys_sqlite import read_nsys

MUTANTS = 60  # of each reader

GOOD = {
    **{"azure": "azure.csv", "mooncake": "mooncake.jsonl", "csv": "after.csv", "auto": "requests.csv"},
    **{"kineto": "kineto.json.gz", "gemms": "list.json", "nsys": "nsys.sqlite", "manifest": "manifest.json"},
    **{"summary": "summary.parquet", "histograms": "histograms.parquet", "dataset": "summary.parquet"},
    **{"calibration": "calibration.json", "gemm_list": "shapes.csv", "model": "model.json"},
    **{"execution_trace": "execution_trace.json.gz", "cut_trace": "execution_trace.json"},
}


@pytest.mark.parametrize("name", READERS)
def test_the_corpus_is_read(name: str, tmp_path: Path) -> None:
    """Else every mutant would be refused for what its original lacks."""
    path = Path(shutil.copy(CORPUS / GOOD[name], tmp_path))
    assert READERS[name].read(path)


@pytest.mark.parametrize("name", READERS)
def test_mutants_are_read_or_refused_in_a_line(name: str, tmp_path: Path) -> None:
    reader, found = READERS[name], {}
    for number in range(MUTANTS):
        generator = Random(f"{name} {number}")
        seed = CORPUS / generator.choice(reader.seeds)
        path = tmp_path / seed.name
        path.write_bytes(mutant(seed, generator))
        if message := complaint(reader, path):
            found[number] = message
    assert found == {}


def bomb(folder: Path, before: bytes, inside: bytes, after: bytes) -> Path:
    """A gzip file of 256 MiB of one byte, between others."""
    path = folder / "trace.json.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(before)
        for _ in range(256):
            file.write(inside * (1 << 20))
        file.write(after)
    return path


@pytest.mark.parametrize("blank", [b" ", b"\n"])
def test_a_trace_with_too_much_white_space_in_a_row_is_refused_soon(blank: bytes, tmp_path: Path) -> None:
    harmless = tmp_path / "spaced.json"
    harmless.write_bytes(b'{"traceEvents": [' + blank * BLANK_BYTES_MAX + b"]}")
    with limited(5.0, 128 << 20):
        assert read_kineto(harmless).events == 0
    path = bomb(tmp_path, b'{"traceEvents": [', blank, b"]}")
    with limited(5.0, 128 << 20), pytest.raises(DataError, match="over 64 MB of white space in a row"):
        read_kineto(path)


def test_one_value_of_a_trace_is_bounded(tmp_path: Path) -> None:
    path = bomb(tmp_path, b'{"traceEvents": [{"name": "', b"x", b"")
    with limited(60.0, 512 << 20), pytest.raises(DataError, match="over 16 MiB"):
        read_kineto(path)


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_depth_is_bounded(suffix: str, opening: bytes, tmp_path: Path) -> None:
    names = {"json": ("kineto", "gemms", "gemm_list", "manifest", "calibration"), "jsonl": ("mooncake",)}[suffix]
    for name in names:
        path = tmp_path / {"manifest": "manifest.json"}.get(name, f"deep.{suffix}")
        path.write_bytes(opening * 100_000)
        assert complaint(READERS[name], path) is None
        with pytest.raises(DataError):
            READERS[name].read(path)


@pytest.mark.parametrize("read", [read_nsys, read_profile])
def test_columns_that_sqlite_would_compute_are_refused(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "bomb.sqlite"
    shutil.copy(CORPUS / "nsys.sqlite", path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE StringIds")
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT AS (hex(zeroblob(400000000))))")
        database.execute("INSERT INTO StringIds (id) VALUES (1), (2), (4)")
        database.commit()
    with limited(10.0, 256 << 20), pytest.raises(DataError, match="StringIds has computed columns"):
        read(path)


@pytest.mark.parametrize("read", [read_nsys, read_profile])
def test_a_value_of_sqlite_is_bounded(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "large.sqlite"
    shutil.copy(CORPUS / "nsys.sqlite", path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE StringIds SET value = hex(zeroblob(20000000))")
        database.commit()
    with limited(10.0, 256 << 20), pytest.raises(DataError, match="cannot be read as SQLite"):
        read(path)


def test_a_parquet_bomb_is_refused_by_its_counts(tmp_path: Path) -> None:
    summary = pq.read_table(CORPUS / "summary.parquet")
    one = summary.slice(0, 1)
    path = tmp_path / "summary.parquet"
    many = pa.table({name: pa.repeat(one.column(name)[0], 11_000_000) for name in ("repeat", "commands")})
    pq.write_table(many, path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    with limited(10.0, 512 << 20), pytest.raises(DataError, match="11,000,000 rows"):
        read_summaries([path])


@pytest.mark.parametrize(
    ("column", "why"),
    [("wall_ms", "wall_ms holds no double"), ("traced", "traced holds no bool")],
)
def test_a_summary_with_a_column_of_another_type_is_refused(column: str, why: str, tmp_path: Path) -> None:
    table = pq.read_table(CORPUS / "summary.parquet")
    at = table.column_names.index(column)
    path = tmp_path / "summary.parquet"
    pq.write_table(table.set_column(at, column, pa.array(["<script>"] * len(table))), path)
    with pytest.raises(DataError, match=why):
        read_summaries([path])


@pytest.mark.parametrize("name", ["summary", "dataset"])
def test_a_column_whose_name_is_no_utf8(name: str, tmp_path: Path) -> None:
    path = tmp_path / "summary.parquet"
    path.write_bytes((CORPUS / "summary.parquet").read_bytes().replace(b"wall_ms", b"\x9ball_ms"))
    with pytest.raises(DataError):
        READERS[name].read(path)


@pytest.mark.parametrize("read", [read_nsys, read_profile])
def test_a_nsys_schema_that_is_no_utf8(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "nsys.sqlite"
    path.write_bytes(
        (CORPUS / "nsys.sqlite").read_bytes().replace(b"CREATE TABLE StringIds", b"CREATE \xb9ABLE StringIds")
    )
    with pytest.raises(DataError, match="cannot be read as SQLite"):
        read(path)


def test_metadata_of_parquet_is_text(tmp_path: Path) -> None:
    """What would be unpickled, or read as a config, is neither."""
    mark = tmp_path / "ran"
    payload = b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    kind = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": payload}
    table = pq.read_table(CORPUS / "summary.parquet")
    at = table.column_names.index("run_id")
    field = table.schema.field("run_id").with_metadata(kind)
    table = table.cast(table.schema.set(at, field))
    config = {**(table.schema.metadata or {}), b"launchopt.config": b"{_target_: os.system}", b"pandas": payload}
    path = tmp_path / "summary.parquet"
    pq.write_table(table.replace_schema_metadata(config), path)
    assert len(read_summaries([path])) == len(table)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["manifest.json", "calibration.json"])
def test_a_file_without_end_is_not_read_to_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.symlink_to("/dev/zero")
    with limited(10.0, 512 << 20), pytest.raises(DataError, match="a device, not a regular file"):
        read_manifest(tmp_path) if name == "manifest.json" else read_calibration(path)


def test_a_calibration_with_a_number_beyond_floats(tmp_path: Path) -> None:
    content = json.loads((CORPUS / "calibration.json").read_text())
    content["floors"]["copy_gb_per_s"]["value"] = 10**400
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="must be a number above 0"):
        read_calibration(path)


@pytest.mark.parametrize("read", [read_nsys, read_profile])
def test_pipes_beside_an_export_are_not_opened(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "nsys.sqlite"
    shutil.copy(CORPUS / "nsys.sqlite", path)
    assert read(path)
    for suffix in ("-wal", "-journal", "-shm"):
        os.mkfifo(f"{path}{suffix}")
    assert read(path)


def test_stages_of_a_wrong_type_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((CORPUS / "calibration.json").read_text())
    whole = {"call": {"p50_us": 1.0, "p99_us": 2.0, "how": "x"}}
    content["stages"] = {"a": 7, "b": None, "c": {"call": whole["call"] | {"p99_us": "slow"}}, "d": whole}
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(content))
    assert read_calibration(path).stages == {"d": whole}
    assert "wrong type: stages.a, stages.c.call.p99_us" in capsys.readouterr().err
