"""The report's frontier: its table, its objective, and its block in a README."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from support.results.summary_rows import row, write

from launchopt.analysis.frontier.points import build_frontiers
from launchopt.recording import results
from runner.report import __main__ as report
from runner.report.screen import print_frontiers


def swept() -> list[results.Row]:
    """Three timeouts, the shorter the fewer commands a second."""
    points = ((20.0, 1e6, 90.0), (150.0, 2e6, 240.0), (300.0, 1.9e6, 390.0))
    return [
        row(repeat=at, mode="batched", timeout_us=timeout_us, commands_per_s=rate, latency_p99_us=p99)
        for timeout_us, rate, p99 in points
        for at in range(2)
    ]


def test_the_frontier_is_printed_written_and_keeps_its_objective(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "run", swept())
    assert report.main([str(folder), "--frontier"]) == 0
    shown = capsys.readouterr().out
    assert "3 points tried: 2 on the frontier" in shown
    assert "ecommended" not in shown
    assert not (folder / "frontier.json").exists()

    assert report.main([str(folder), "--frontier", "--slo-p99-us", "100"]) == 0
    shown = capsys.readouterr().out
    assert "Recommended for a p99 of at most 100 us: batched, max_batch / timeout 512 / 20 us" in shown
    assert (folder / "frontier.md").read_text(encoding="utf-8") == shown
    assert (folder / "frontier.json").read_text() == '{"slo_p99_us": 100.0}\n'
    assert not (folder / "report.md").exists()
    assert report.main([str(folder), "--frontier"]) == 0
    assert capsys.readouterr().out == shown

    other = tmp_path / "x.md"
    assert report.main([str(folder), "--frontier", "--slo-p99-us", "250", "--output", str(other)]) == 0
    assert "512 / 150 us" in other.read_text(encoding="utf-8")
    assert (folder / "frontier.json").read_text() == '{"slo_p99_us": 100.0}\n'


@pytest.mark.parametrize("width", [80, 120])
def test_a_narrow_terminal_keeps_both_axes_of_the_frontier(width: int) -> None:
    screen = io.StringIO()
    print_frontiers(build_frontiers(swept(), slo_p99_us=100), Console(file=screen, width=width, color_system=None))
    heads, _, left_out = screen.getvalue().partition("A wider terminal also shows")
    assert re.search(r"2,000,000 +240\.0", heads)
    assert "bounds of commands/s" in left_out


def test_the_frontier_takes_batch_sizes_from_histograms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, [row(mode="batched", commands_per_s=1e6, latency_p99_us=60.0)])
    bucket = {"run_id": "run", "mode": "batched", "repeat": 0, "low": 500, "high": 500, "count": 7}
    buckets = [{**bucket, "what": what} for what in ("latency", "batch_size", "queue_wait")]
    results.write_rows(folder / "histograms.parquet", results.HISTOGRAMS, buckets, {})
    assert report.main([str(folder), "--frontier"]) == 0
    assert "| 1,000,000 | 60.00 | 500 / 500 |" in capsys.readouterr().out


def test_a_readme_block_of_a_folder_with_an_objective_is_its_frontier(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", swept())
    readme = tmp_path / "README.md"
    readme.write_text("<!-- report:run -->\n<!-- /report:run -->\n")
    assert report.main([str(folder), "--frontier", "--slo-p99-us", "300", "--readme", str(readme)]) == 0
    text = readme.read_text(encoding="utf-8")
    assert "| closed | batched | 512 | 150 | 2,000,000 | 240.0 |" in text
    assert "yes, recommended |" in text
    assert "| 300 |" not in text  # beaten, so it is counted and not shown
    assert "3 points tried: 2 on the frontier, 0 overloaded, 0 failed or not verified." in text
    assert report.main(["--readme", str(readme), "--check"]) == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"slo_p99_us": -1}', '{"slo_p99_us": "x"}', '{"slo_p99_us": []}'])
def test_an_objective_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    folder = write(tmp_path, swept())
    (folder / "frontier.json").write_text(text)
    assert report.main([str(folder), "--frontier"]) == 2
    assert "frontier.json: not an objective like" in capsys.readouterr().err


def test_traced_runs_alone_have_no_frontier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(write(tmp_path, [row(traced=True)])), "--frontier"]) == 2
    assert "no untraced run" in capsys.readouterr().err
