"""Names in results and of folders may hold any character: no tool sends a control character or a bidi mark on."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from support.results.kineto_events import call, kernel
from support.results.recorded_runs import write_run

from launchopt.analysis.frontier.points import build_frontiers
from launchopt.analysis.tables.markdown import escaped
from launchopt.analysis.tables.rows import build_tables
from launchopt.analysis.tables.strategies import build_strategies
from launchopt.recording import results
from runner import commands
from runner.report import screen
from runner.screen import pager

EVIL = "a\x1b[2J\x07\u202eb\u2066\x9b|<b>`![x](y)&#8238;@someone#12www.a.b"
TOOLS = [
    ["report"],
    ["report", "--frontier"],
    ["report", "--strategies"],
    ["report", "--pr"],
    ["verdict"],
]
OTHERS = [
    ["budget", "tokens_per_day=1e9", "launches_per_token=9", "from={folder}"],
    ["budget", "{evil}=1"],
    ["dataset", "{folder}", "--output", "{output}"],
    *(
        [tool, "{evil}\nnext line"]
        for tool in ("report", "verdict", "trace", "nsys", "ncu", "bench", "doctor", "prefixes")
    ),
    ["compare", "{folder}", "{evil}\nnext line"],
    ["matrix", "--{evil}\nnext line"],
    ["run", "{evil}\nnext line"],
    ["run", "mode={evil}\nnext line"],
    ["{evil}\nnext line"],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a run whose folder, work, model and GPU have such names, of requests in an open loop."""
    names = {"workload": EVIL, "model": EVIL, "gpu": EVIL, "scheduler": EVIL, "sampling": EVIL, "shapes": EVIL}
    arrivals = {"arrival": EVIL, "arrival_rate_per_s": 1000.0, "completed_rate_per_s": 999.0, "overloaded": False}
    return write_run(tmp_path / EVIL.replace("<b>", ""), EVIL, **names, **arrivals)


def is_clean(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("words", TOOLS, ids=" ".join)
def test_no_tool_prints_or_writes_a_control_character_of_a_name(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main([words[0], str(folder), *words[1:]]) == 0
    printed = capsys.readouterr()
    assert "2J" in printed.out
    assert is_clean(printed.out + printed.err)
    require_inert(printed.out)
    for page in folder.glob("*.md"):
        require_inert(page.read_text())


def require_inert(markdown: str) -> None:
    """Check that a name brings no markup, link, picture or entity into Markdown, outside of a span of code."""
    assert is_clean(markdown)
    prose = re.sub(r"(`+)[^`].*?[^`]\1(?!`)", "", markdown)
    assert [each for each in ("<b>", "](y)", "&#8238;", "@someone", "#12", "www.") if each in prose] == []


def test_an_address_in_markdown_is_no_link() -> None:
    assert escaped("model, layer: 2 @ 1") == "model, layer: 2 @ 1"
    assert escaped("https://a.b") == "https:<!-- -->//a.b"


def test_names_in_the_html_page_and_in_pictures_are_escaped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The library that draws SVG aborted the process at an escape character."""
    picture = folder / "picture.svg"
    assert commands.main(["report", str(folder), "--html"]) == 0
    assert commands.main(["report", str(folder), "--plot", str(picture)]) == 0
    page = (folder / "report.html").read_text()
    assert is_clean(page.replace("\t", ""))
    assert "\\u001b" not in page
    assert "2J" in page
    assert is_clean(picture.read_text())
    assert is_clean("".join(capsys.readouterr()))


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_other_tools_and_errors_print_none(
    words: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [each.format(folder=folder, evil=EVIL, output=tmp_path / "all.parquet") for each in words]
    with contextlib.suppress(SystemExit):
        commands.main(filled)
    printed = capsys.readouterr()
    assert "2J" in printed.out + printed.err or words[0] in ("dataset", "completion")
    assert is_clean(printed.out + printed.err)
    assert not re.search(r"^next line", printed.err, re.MULTILINE)


def test_a_comparison_prints_and_writes_none(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    assert commands.main(["compare", f"{folder}:baseline", f"{folder}:batched", "--markdown", str(page)]) == 0
    printed = capsys.readouterr()
    assert "2J" in printed.out
    assert is_clean(printed.out + printed.err)
    require_inert(page.read_text())


@pytest.mark.parametrize("width", [60, 200])
def test_a_terminal_gets_none(width: int, folder: Path) -> None:
    rows = results.read_summaries([folder])
    screen_of = pager.console()
    assert isinstance(screen_of, Console)
    screen_of.width = width
    with screen_of.capture() as captured:
        screen.print_tables(build_tables(rows), screen_of)
        screen.print_frontiers(build_frontiers(rows, results.read_histograms([folder]), None), screen_of)
        screen.print_strategies(build_strategies(rows, {}), screen_of)
    assert "2J" in captured.get()
    assert is_clean(captured.get())


@pytest.mark.parametrize("words", [*TOOLS[:4], ["report", "--html"], ["verdict"]], ids=" ".join)
def test_a_summary_without_rows_is_one_line_and_code_2(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results.write_rows(tmp_path / "summary.parquet", results.SUMMARY, [], {})
    assert commands.main([words[0], str(tmp_path), *words[1:]]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        f"error: {tmp_path / 'summary.parquet'}: has no rows: the run ended before its first repeat"
    ]


def test_a_trace_prints_none_of_its_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"cudaLaunchKernel{EVIL}"
    trace = tmp_path / f"t{EVIL.replace('<b>', '')}.json"
    trace.write_text(json.dumps({"traceEvents": [call(0, 4, 1, name), kernel(6, 3, 1) | {"name": name}]}))
    assert commands.main(["trace", str(trace)]) == 0
    printed = capsys.readouterr()
    assert "2J" in printed.out
    assert is_clean(printed.out + printed.err)
