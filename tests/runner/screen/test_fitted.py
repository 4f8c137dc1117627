"""Tables that fit: at every width numbers, words and row labels are whole, and no line is too long."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from launchopt.analysis.tables.columns import number
from launchopt.analysis.tables.rows import build_tables
from launchopt.analysis.verdict.calibration import read_calibration
from launchopt.analysis.verdict.diagnosis import diagnose
from launchopt.analysis.verdict.markdown import diagnosis_grid
from launchopt.recording.results import read_summaries
from runner.doctor import screen as doctor_screen
from runner.report.screen import print_tables
from runner.screen import pager
from runner.screen.fitted import FittedTable, Heading, SafeConsole

WIDTHS = (60, 80, 100, 120, 200)
GPU = ROOT / "outputs/reference/gpu"
HEADINGS = [Heading("mode", is_text=True), Heading("wall ms"), Heading("launch calls", drops=1), Heading("notes", True)]
ROWS = [["baseline", "16,312.51", "8,192", "one launch for each command"], ["graph", "0.07", "1", "replayed"]]


def printed(table: object, width: int, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    SafeConsole(file=sys.stdout, width=width).print(table)
    return capsys.readouterr().out


def assert_fits(text: str, width: int) -> None:
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text


def words(text: str) -> set[str]:
    return set(re.findall(r"[^\s─]+", text))


@pytest.mark.parametrize("width", [*range(24, 60), *WIDTHS])
def test_every_cell_of_a_column_that_stays_is_whole(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(FittedTable(HEADINGS, ROWS, "title"), width, capsys)
    assert_fits(text, width)
    assert {"baseline", "graph", "16,312.51", "0.07", "command", "replayed"} <= words(text)
    left_out = "A wider terminal also shows: launch calls." in " ".join(text.split())
    assert left_out == ("8,192" not in text)


def test_the_wide_table_shows_everything(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split("  ") for line in printed(FittedTable(HEADINGS, ROWS), 80, capsys).splitlines() if line.strip()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[2:] == ROWS


def test_no_name_becomes_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich replaces `:skull:` by an emoji."""
    pager.console().print("plain, mode :skull:", FittedTable(HEADINGS, [[":skull:", *ROWS[0][1:]]], ":skull:"))
    text = capsys.readouterr().out
    assert "plain" in text
    assert text.count(":skull:") == 3


@pytest.mark.parametrize("width", WIDTHS)
def test_report_tables(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    tables = build_tables(read_summaries([GPU / "qkv"]))
    capsys.readouterr()
    print_tables(tables, SafeConsole(file=sys.stdout, width=width))
    text = capsys.readouterr().out
    assert_fits(text, width)
    for table in tables:
        for line in table.lines:
            assert {str(line["mode"]), number(line.median("wall_ms"))} <= words(text)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_tables_of_the_verdict(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    for one in diagnose(read_summaries([GPU / "qkv"]), {}, None):
        columns, lines = diagnosis_grid(one)
        text = printed(pager.drawn(columns, lines), width, capsys)
        assert_fits(text, width)
        assert {word for line in lines for cell in line for word in cell.split()} <= words(text)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_tables_of_the_doctor(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_screen, "console", lambda: SafeConsole(file=sys.stdout, width=width))
    calibration = read_calibration(Path(GPU / "calibration/calibration.json"))
    capsys.readouterr()
    doctor_screen.print_floors(calibration, {})
    doctor_screen.print_stages(calibration)
    text = capsys.readouterr().out
    assert "…" not in text
    assert {*calibration.floors} <= words(text)
    for stages in calibration.stages.values():
        assert {f"{one['p50_us']:.3f}" for one in stages.values()} <= words(text)


def test_control_characters_of_cells_are_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(FittedTable([Heading("mode", True), Heading("ms")], [["a\x1b[2Jb", "1\x9b"]]), 60, capsys)
    assert {"a\\x1b[2Jb", "1\\x9b"} <= words(text)


def test_columns_of_equal_headings_show_their_own_cells(capsys: pytest.CaptureFixture[str]) -> None:
    headings = [Heading("mode", True), Heading("p50"), Heading("p50"), Heading("p50", drops=1)]
    wide = printed(FittedTable(headings, [["graph", "1.5", "2.5", "3.5"]]), 60, capsys)
    assert ["graph", "1.5", "2.5", "3.5"] in [line.split() for line in wide.splitlines()]
    narrow = printed(FittedTable(headings, [["graph", "1.5", "2.5", "3.5"]]), 25, capsys)
    assert ["graph", "1.5", "2.5"] in [line.split() for line in narrow.splitlines()]
    assert "A wider terminal also shows: p50." in " ".join(narrow.split())
