"""Programs that print tables end quietly when nobody reads on, and a narrow terminal leaves out columns."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from support.processes.own_process import ROOT, environ_of
from support.results.headings import headings
from support.results.summary_rows import everything, repeats, write

from launchopt.analysis.tables.rows import build_tables
from runner.ending.outputs import CLOSED
from runner.report import page, tables
from runner.report.screen import DROPS, print_tables

LONG = {
    "report": ["outputs/reference/gpu/strategies", "--pr"],
    "verdict": ["outputs/reference/gpu/strategies"],
    "budget": ["model=llama_3_70b", "tokens_per_day=10e6", "from=outputs/reference/gpu/strategies"],
    "dataset": ["--columns"],
}


@pytest.mark.parametrize("name", LONG)
def test_a_reader_that_leaves_is_no_error(name: str) -> None:
    call = [sys.executable, "-m", f"runner.{name}", *LONG[name]]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, cwd=ROOT, env=environ_of(), **pipes) as running:
        assert running.stdout
        assert running.stderr
        running.stdout.close()
        message = running.stderr.read()
    assert (running.returncode, message) == (CLOSED, "")


def test_every_column_that_a_narrow_terminal_leaves_out_exists() -> None:
    assert set(DROPS) <= headings()


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_narrow_terminal_keeps_a_line_for_each_mode_with_wall_time_and_speed_up(width: int) -> None:
    screen = io.StringIO()
    rows = [*repeats(100.0, 101.0, 99.0, 100.5, 100.2), *repeats(5.0, 5.2, 4.9, 5.1, 5.0, mode="multistream")]
    print_tables(build_tables(rows), Console(file=screen, width=width, color_system=None))
    lines = [line.split() for line in screen.getvalue().splitlines()]
    assert [line[1] for line in lines if line and line[0] in ("baseline", "multistream")] == ["100.2", "5.000"]
    assert any(line[:2] == ["multistream", "5.000"] and any(each.endswith("x") for each in line) for line in lines)
    assert max(map(len, screen.getvalue().splitlines())) <= width


def test_on_a_terminal_140_columns_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(page, "console", lambda: Console(file=screen, width=140, color_system=None))
    tables.report([write(tmp_path, everything())])
    shown = screen.getvalue()
    words = [line.split() for line in shown.splitlines() if line.strip()]
    rows = [each for each in words if each[0] in {"baseline", "batched", "graph", "chain"}]
    assert len(rows) == 14  # every line of every table fits on one line of the screen
    assert [row[-1] for row in rows if row[-1] != "yes"] == ["NO"]
    assert shown.count("NVIDIA H200, shapes 64x1x8192, cold cache, closed, max_batch 512, ") == 2
    assert shown.endswith(f"all columns: {tmp_path / 'report.md'}\n")
    for text in ("at the measured peak (1)", "FAILED (2)", "(2) failed: 1 of 3 outputs | wrong by <far>"):
        assert text in shown
    for note in (
        "not interleaved: taken in separate runs",
        "no interval: ",
        "dependencies ignored",
        "order violated on purpose",
        "YES: 61.25/s of 100/s",
    ):
        assert note in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 140
    assert (tmp_path / "report.md").exists()
    tables.frontier([tmp_path], 500.0)
    assert "Recommended for a p99 of at most 500 us: batched" in screen.getvalue()
    assert "…" not in screen.getvalue()
    assert max(map(len, screen.getvalue().splitlines())) <= 140
