"""megakernel.parquet: rows of a case, the tables that a page and a terminal show, and what is none."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from launchopt.devices.megakernel.step_account import Part, WeightsFloor
from launchopt.errors import DataError
from launchopt.recording.results import write_manifest, write_rows
from runner.bench import account
from runner.bench.__main__ import _print_account
from runner.bench.account import ACCOUNT, FILE, Measured, rows_of
from runner.report.blocks import sync_readme

PARTS = [
    Part("NORM", 1, 1.0, 0.25, 0.25, 1.0, 1.0, 0.25, 1.0, 0.25, 1.0, 0.125),
    Part("GEMM 64x32", 2, 131.5, 1.75, 3.0, 2.25, 3.5, 3.5, 4.5, 2.5, 3.0, 0.25),
]
FLOOR = WeightsFloor(90_000_000, 4500.0, "read")
FOUND = Measured([40.0, 39.0, 41.0], [30.0, 31.0, 32.0], [25.0, 25.0, 25.0], 41.5, 1735.4, 1980.0, FLOOR, PARTS)
EXPECTED = """\
| step | weights MB | least us | kernel us | GB/s | of bandwidth | no weights us | no waits us | verified |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| decode, 1 request | 90.00 | 20.00 | 40.00 | 2,250 | 50.0% read | 31.00 | 25.00 | yes |
| another | 90.00 | 20.00 | 40.00 | 2,250 | 50.0% read | 31.00 | 25.00 | yes |

LEGEND

**decode, 1 request**

The kernel that writes its clock down took 41.50 us by events; on block 0, from the begin of the first instruction to \
the end of the last, 7.125 us. The rest is the launch, and what comes before and after. Its clock ran at 1,735 MHz \
by the GPU's timer (NVML: 1,980 MHz).

| op | instructions | blocks | wait us | most | work us | most | wait, all us | work, all us | block 0: wait us | \
work us | between us |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| NORM | 1 | 1 | 0.250 | 0.250 | 1.000 | 1.000 | 0.250 | 1.000 | 0.250 | 1.000 | 0.125 |
| GEMM 64x32 | 2 | 132 | 1.750 | 3.000 | 2.250 | 3.500 | 3.500 | 4.500 | 2.500 | 3.000 | 0.250 |
| all | 3 |  |  |  |  |  | 3.750 | 5.500 | 2.750 | 4.000 | 0.375 |
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [*rows_of("decode, 1 request", FOUND), *rows_of("another", FOUND)]
    write_rows(tmp_path / FILE, ACCOUNT, rows, {})
    write_manifest(tmp_path, {"device": {"name": "NVIDIA H200"}})
    return tmp_path


def test_rows_are_read_as_they_were_written(folder: Path) -> None:
    rows = account.read(folder)
    assert rows == [*rows_of("decode, 1 request", FOUND), *rows_of("another", FOUND)]
    assert [(row["case"], row["op"]) for row in rows[1:3]] == [("decode, 1 request", "GEMM 64x32"), ("another", "NORM")]
    assert [len(own) for own in account.by_case(rows)] == [2, 2]
    assert rows[0]["kernel_us"] == 40.0, "the median"


def test_every_column_says_what_it_is() -> None:
    assert all(field.metadata[b"doc"] for field in ACCOUNT)


def test_a_page_shows_a_table_of_cases_and_one_of_each_ones_ops(folder: Path) -> None:
    about, _, rest = account.markdown(folder).partition("\n\n")
    assert about.startswith("NVIDIA H200. A decode step in one launch")
    assert "medians of 3 launches" in about
    tables = rest.replace(account.LEGEND, "LEGEND")
    assert tables.startswith(EXPECTED)
    assert tables.count("**another**") == 1


def test_a_page_is_brought_up_to_date(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "PAGE.md"
    page.write_text(f"<!-- report:{folder.name} -->\n<!-- /report:{folder.name} -->\n")
    page = page.rename(folder.parent / f"{folder.name}.md")
    assert not sync_readme(page, check=True)
    assert sync_readme(page)
    assert account.markdown(folder) in page.read_text()
    assert sync_readme(page, check=True)


def test_a_terminal_shows_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _print_account(folder)
    shown = capsys.readouterr().out
    for cell in ("decode, 1 request", "another", "GEMM 64x32", "50.0% read", "1,735 MHz", "5.500"):
        assert cell in shown


def test_what_is_none_is_refused(folder: Path) -> None:
    rows = account.read(folder)
    write_rows(folder / FILE, ACCOUNT, [rows[0] | {"kernel_us": None}], {})
    with pytest.raises(DataError, match="gaps"):
        account.read(folder)
    write_rows(folder / FILE, ACCOUNT, [], {})
    with pytest.raises(DataError, match="no rows"):
        account.read(folder)
    pq.write_table(pq.read_table(folder / FILE).drop_columns(["op"]), folder / FILE)
    with pytest.raises(DataError, match="lacks op"):
        account.read(folder)
    (folder / FILE).write_text("nothing")
    with pytest.raises(DataError, match="cannot be read"):
        account.read(folder)
