"""Goals beside what was measured: goals.json among results, as a table of a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.results.summary_rows import repeats, row, write

from launchopt.errors import DataError
from launchopt.recording.results import write_manifest, write_rows
from runner.bench.figures import BENCH, Figure
from runner.report import goals
from runner.report.blocks import sync_readme

STREAM = {"what": "a stream", "unit": "ns a command", "most": 50, "run": "0", "mode": "graph", "figure": "command_ns"}
COPY = {**STREAM, "what": "bytes", "unit": "%", "least": 95, "figure": "copy_percent"}
del COPY["most"]
TOKEN = {**STREAM, "what": "a token", "unit": "us", "most": 1.25, "run": "1", "figure": "token_us"}
RATIO = {**TOKEN, "what": "many over one", "unit": "x", "most": 1.3, "over": "2"}
LONE = {"what": "a lone one", "unit": "us", "most": 2.0, "bench": "../lone", "case": "p50"}


def page(folder: Path, *wanted: dict[str, Any]) -> Path:
    """Goals among results: two tables of runs in turn, and one of a benchmark beside them."""
    path = folder / "here" / goals.FILE
    # 100 ms of 2,000,000 commands: 50 ns each.
    both = [*repeats(100, 99, 101, mode="graph", achieved_gb_per_s=3990.0), *repeats(300, 301, mode="batched")]
    write(path.parent / "0", both)
    for name, token_ms, wall_ms in (("1", 0.0013, 1.2), ("2", 0.001, 0.9)):
        steps = {"requests": 1, "tokens": 1000, "wall_ms": wall_ms}
        tokens = [row(mode="graph", repeat=i + 1, tpot_p50_ms=token_ms * (1 + i / 100), **steps) for i in (-1, 0, 1)]
        write(path.parent / name, tokens)
    (folder / "lone").mkdir(exist_ok=True)
    rows = [Figure("resident", "p50", "us", [1.9, 2.1, 1.95]).row(), Figure("resident", "p99", "us", [3.0]).row()]
    write_rows(folder / "lone" / "bench.parquet", BENCH, rows, {})
    write_manifest(folder / "lone", {"device": {"name": "NVIDIA H200"}})
    path.write_text(json.dumps({"goals": wanted}))
    return path


def lines(path: Path) -> list[str]:
    heading, rule, *found = goals.markdown(path).splitlines()
    assert heading == "| goal | wanted | measured | repeats | unit | beside | met | verified | from |"
    assert rule.count("|") == heading.count("|")
    return found


def test_goals_beside_what_was_measured(tmp_path: Path) -> None:
    stream = {**STREAM, "beside": ["batched"]}
    assert lines(page(tmp_path, stream, COPY, TOKEN, RATIO, LONE)) == [
        "| a stream | <= 50 | 50 | 49.5 to 50.5 | ns a command | batched 150.2 | yes | yes | here/0 |",
        "| bytes | >= 95 | 95 | 95 to 95 | % |  | yes | yes | here/0 |",
        "| a token | <= 1.25 | 1.3 TPOT, 1.2 wall | 1.287 to 1.313 | us |  | NO | yes | here/1 |",
        "| many over one | <= 1.3 | 1.3 TPOT, 1.333 wall | - | x |  | NO | yes | here/1, here/2 |",
        "| a lone one | <= 2 | 1.95 | 1.9 to 2.1 | us |  | yes | by the benchmark | lone |",
    ]


def test_a_goal_for_tokens_is_met_by_tpot_and_by_wall_time(tmp_path: Path) -> None:
    most = (1.35, 1.31, 1.29)  # both meet it, TPOT alone, neither
    met = [line.split(" | ")[6] for line in lines(page(tmp_path, *({**RATIO, "most": each} for each in most)))]
    assert met == ["yes", "NO", "NO"]


@pytest.mark.parametrize("bad", [{"verified": False}, {"verified": None}, {"status": "launch failed"}])
def test_what_was_not_right_meets_nothing(bad: dict[str, Any], tmp_path: Path) -> None:
    path = page(tmp_path, STREAM, {**STREAM, "mode": "batched", "most": 1000, "beside": ["graph"]})
    write(path.parent / "0", [*repeats(1, 1, mode="graph"), row(mode="graph", **bad), *repeats(300, mode="batched")])
    first, second = lines(path)
    assert first.split(" | ")[6:8] == ["NO", "NO"]
    assert second.split(" | ")[5:8] == ["graph 0.5 FAILED", "yes", "yes"]


def test_a_page_has_it_between_its_marks(tmp_path: Path) -> None:
    path = page(tmp_path, STREAM)
    readme = tmp_path / "PAGE.md"
    name = path.relative_to(tmp_path)
    readme.write_text(f"<!-- report:{name} -->\nold\n<!-- /report:{name} -->\n")
    assert sync_readme(readme)
    assert goals.markdown(path).strip() in readme.read_text()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({**STREAM, "mode": "streams"}, "no mode 'streams'"),
        ({**STREAM, "run": "9"}, "no such folder"),
        ({**STREAM, "figure": "joules"}, "not a list of goals .KeyError: 'joules'"),
        ({**STREAM, "least": 3}, "not a list of goals .ValueError: a stream: most, or least"),
        ({key: value for key, value in STREAM.items() if key != "most"}, "a stream: most, or least"),
        ({**STREAM, "most": "few"}, "could not convert string to float"),
        ({**STREAM, "beside": ["graph", "none"]}, "no mode 'none'"),
        ({**TOKEN, "run": "0"}, "not a list of goals .TypeError"),
        ({**LONE, "case": "p75"}, "no case 'p75'"),
        ({**LONE, "bench": "../0"}, "bench.parquet"),
        ("a stream", "not a list of goals .TypeError"),
    ],
)
def test_what_is_no_goal_is_refused(wrong: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=why):
        goals.markdown(page(tmp_path, wrong))


@pytest.mark.parametrize("content", ["[]", "{}", "{", '{"goals": 3}'])
def test_what_is_no_file_of_goals_is_refused(content: str, tmp_path: Path) -> None:
    path = page(tmp_path)
    path.write_text(content)
    with pytest.raises(DataError):
        goals.markdown(path)
