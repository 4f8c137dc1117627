"""The report of a waterfall: from rows and manifests to Markdown, JSON, a terminal, a README, a picture and a page."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.paths import ROOT
from support.results.summary_rows import repeats, row, write

from launchopt.recording import results
from launchopt.report.page import page_html
from launchopt.report.source import read_source
from runner.report import __main__ as report
from runner.report import page

WORK: dict[str, Any] = {"workload": "layer", "requests": 4, "tokens": 400, "commands": 10_000, "run_id": "waterfall/0"}
ORDERS = [["baseline", "coalesced", "graph", "megakernel"], ["baseline", "coalesced+norm", "graph"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    times = {"baseline": 100.0, "coalesced": 40.0, "coalesced+norm": 35.0, "graph": 20.0}
    stacks = {"baseline": "submit=stream", "coalesced": "coalesce submit=stream", "graph": "coalesce submit=graph"}
    stacks["coalesced+norm"] = "coalesce fuse=norm submit=stream"
    rows = [
        row
        for mode, ms in times.items()
        for row in repeats(ms, ms + 0.1, ms - 0.1, ms, ms, mode=mode, stack=stacks[mode], **WORK)
    ]
    manifest = {"run_id": "waterfall/0", "waterfall": ORDERS, "refused": {"megakernel": "needs a GPU"}, "status": "ok"}
    results.write_manifest(write(tmp_path / "waterfall" / "0", rows), manifest)
    return tmp_path / "waterfall"


def test_markdown_json_and_a_picture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("altair")
    words = ["--waterfall", "--plot", str(folder / "w.svg"), "--json", str(folder / "w.json")]
    assert report.main([str(folder), *words]) == 0
    shown = capsys.readouterr().out
    assert "| coalesce | coalesced | 1,000.0 | 400.0 | 600 [600, 600] | 75.0% |" in shown
    assert "| whole | graph | 1,000.0 | 200.0 | 800 [800, 800] | 100.0% |" in shown
    assert "- Left out: megakernel (needs a GPU)" in shown
    assert (folder / "waterfall.md").read_text(encoding="utf-8") == shown
    assert report.main([str(folder), "--waterfall"]) == 0, "it replaces its own file"
    (folder / "waterfall.md").write_text("# Waterfall\n\nof the Nile\n")
    assert report.main([str(folder), "--waterfall"]) == 2, "but no other one"
    assert report.main([str(folder), "--waterfall", "--json"]) == 0, "JSON alone needs none"
    first, second = json.loads((folder / "w.json").read_text())["waterfalls"]
    assert [each["mode"] for each in first["steps"]] == ["coalesced", "graph"]
    assert [each["choice"] for each in second["steps"]] == ["coalesce, norm", "graph, without norm"]
    picture = (folder / "w.svg").read_text()
    for text in ("coalesce", "600 us [600, 600]", "200.0 us", "us a step", "saves time", "left out: megakernel"):
        assert text in picture, text


def test_json_alone_prints_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(folder), "--waterfall", "--json"]) == 0
    first, _ = json.loads(capsys.readouterr().out)["waterfalls"]
    page_text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for place, keys in {
        "waterfalls[]": first,
        "waterfalls[].steps[]": first["steps"][0],
        "waterfalls[].steps[].brings": first["steps"][0]["brings"],
    }.items():
        assert f"- `{place}`: {', '.join(keys)}\n" in page_text, "docs/results.md has the keys"
    assert first["whole"].keys() == first["steps"][0].keys()
    assert not (folder / "waterfall.md").exists()


def test_a_readme_block_of_runs_with_an_order_is_their_waterfall(folder: Path) -> None:
    readme = folder.parent / "README.md"
    readme.write_text("<!-- report:waterfall -->\n<!-- /report:waterfall -->\n")
    assert report.main(["--readme", str(readme)]) == 0
    text = readme.read_text(encoding="utf-8")
    assert "**layer fp32, 10,000 commands of 4 requests**" in text
    assert "| coalesce, norm | coalesced+norm | 1,000.0 | 350.0 | 650 [650, 650] | 81.2% |" in text
    assert report.main(["--readme", str(readme), "--check"]) == 0


def test_the_page_has_a_figure_and_a_table_for_each_order(folder: Path) -> None:
    pytest.importorskip("altair")
    text = page_html(read_source([folder]))
    for number in (1, 2):
        assert text.count(f"What each choice brings: baseline to graph, order {number} of 2, 5 repeats") >= 3
    assert "From 1,000.0 to 200.0 us a step: 800 us [800, 800] in all. Most by coalesce 600 us [600, 600]" in text
    assert "Left out: megakernel (needs a GPU)" in text


def test_a_terminal_shows_every_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(page, "console", lambda: Console(file=screen, width=100, color_system=None))
    assert report.main([str(folder), "--waterfall"]) == 0
    shown = screen.getvalue()
    for text in ("coalesce, norm", "650 [650, 650]", "81.2%", "whole", "Left out: megakernel (needs a GPU)"):
        assert text in shown
    assert max(len(line) for line in shown.splitlines() if str(folder) not in line) <= 100


def test_runs_without_an_order_are_told_how_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(write(tmp_path, [row()])), "--waterfall"]) == 2
    assert capsys.readouterr().err.endswith(
        "no waterfall: no untraced run has the same repeats of two verified modes of waterfall=[[...]]\n"
    )


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(tmp_path / "absent"), "--waterfall"]) == 2
    assert "absent: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("waterfall", ["graph", [1, 2], [["baseline", 3]], {"a": 1}, [[]], [None]])
def test_a_damaged_order_is_no_traceback(folder: Path, waterfall: object, capsys: pytest.CaptureFixture[str]) -> None:
    results.write_manifest(folder / "0", {"run_id": "waterfall/0", "waterfall": waterfall})
    assert report.main([str(folder), "--waterfall"]) == 2
    assert "no waterfall" in capsys.readouterr().err
