"""The results of a run as the screen shows them, for tests."""

from __future__ import annotations

import pytest
from rich.console import Console

from launchopt.recording.results import Row
from runner.run.screens.run_results import print_results
from runner.screen.pager import console
from support.results.summary_rows import row


def drawn(rows: list[Row], capsys: pytest.CaptureFixture[str], out: Console | None = None) -> str:
    capsys.readouterr()
    print_results(rows, "batched", "outputs/run/x", out or console())
    return capsys.readouterr().out


def shown(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Return the cells of each line by its label."""
    lines = (line.strip().split("  ") for line in drawn(rows, capsys).splitlines())
    return {words[0]: [word.strip() for word in words[1:] if word.strip()] for words in lines}


def pairs(factors: list[float], **columns: object) -> list[Row]:
    """Return interleaved repeats of baseline, and of batched that is faster by each factor."""
    rows = []
    for repeat, factor in enumerate(factors):
        common = {"repeat": repeat, "interleaved": True, **columns}
        rows += [row(mode="batched", wall_ms=100.0 / factor, **common), row(mode="baseline", wall_ms=100.0, **common)]
    return rows
