"""`python -m runner.ncu`: the table and the file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launchopt.errors import DataError
from runner.profiles.ncu import main, markdown
from runner.screen.pager import PIPED_COLUMNS

PAGE = (
    '"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","launch__waves_per_multiprocessor"\n'
    '"","","","","ns",""\n'
    '"0","void gemv<float, (int)1>(Params)","(128, 1, 1)","(64, 1, 512)","1,245,312","0.02"\n'
)


def test_the_table_and_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "profile.csv").write_text(PAGE)
    assert main([str(tmp_path / "profile.csv"), "--output", str(tmp_path / "profile.parquet")]) == 0
    *table, note = capsys.readouterr().out.splitlines()
    assert max(map(len, table)) <= PIPED_COLUMNS, "the columns that do not fit stand in another table"
    assert [line.split()[:2] for line in table if "kernel" in line] == [["kernel", "duration"], ["kernel", "grid"]]
    rows = [line.split() for line in table if "gemv" in line]
    assert rows == [["gemv", "1,245.3", *("-",) * 8, "0.02"], ["gemv", "64x1x512", "128x1x1", "unknown"]]
    assert "no headline times" in note
    (written,) = pq.read_table(tmp_path / "profile.parquet").to_pylist()
    assert (written["name"], written["duration_us"]) == ("void gemv<float, (int)1>(Params)", pytest.approx(1245.312))
    assert written["registers"] is None


def test_no_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "profile.csv").write_text('"ID","Kernel Name"\n"",""\n')
    assert main([str(tmp_path / "profile.csv")]) == 0
    assert capsys.readouterr().out == "no kernel was profiled\n"


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), (b"\xff\x00", "x.csv: no table of kernels")]
)
def test_errors_are_one_line(
    content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "x.csv").write_bytes(content)
    assert main([str(tmp_path / "x.csv"), "--output", str(tmp_path / "x.parquet")]) == DataError.exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "x.parquet").exists()


def test_profiles_of_a_folder_are_one_table_of_a_page(tmp_path: Path) -> None:
    for name in ("one_request", "many"):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "profile.csv").write_text(PAGE)
        output = tmp_path / "all" / name / "profile.parquet"
        assert main([str(tmp_path / "profile.csv"), "--output", str(output)]) == 0
    heading, rule, *rows, empty, note = markdown(tmp_path / "all").splitlines()
    assert heading.startswith("| profiled | kernel | duration us | DRAM read MB | ")
    assert len({line.count("|") for line in (heading, rule, *rows)}) == 1
    assert [row[: len("| many | gemv | 1,245.3 |")] for row in rows[:1]] == ["| many | gemv | 1,245.3 |"]
    assert rows[1].startswith("| one request | gemv | 1,245.3 | - |")
    assert (len(rows), empty) == (2, "")
    assert "no headline times" in note


@pytest.mark.parametrize("content", [b"PAR1", None])
def test_a_file_that_is_no_profile_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "x" / "profile.parquet"
    path.parent.mkdir()
    if content is None:
        pq.write_table(pa.table({"strange": [1]}), path)
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"no profile of kernels|cannot be read as Parquet"):
        markdown(tmp_path)
