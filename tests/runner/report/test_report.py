"""The report: from rows in Parquet to Markdown and a terminal.

The golden file is what `test_markdown_is_the_golden_file` wrote to its temporary folder; after an intended
change copy it from there, and read the difference.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.paths import TESTS
from support.results.summary_rows import DECODE, TOKENS, everything, repeats, row, write

from launchopt.analysis.tables import reference
from launchopt.analysis.tables.markdown import grid, report_markdown
from launchopt.analysis.tables.rows import NO_VERDICT, SAME_RUN, SEPARATE_RUNS, build_tables
from launchopt.files import read_json
from launchopt.recording import results
from runner.report import __main__ as report
from runner.report import tables

GOLDEN = TESTS / "golden" / "report.md"


@pytest.fixture(autouse=True)
def figures_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the expected texts have: a new measurement of them changes no test."""
    monkeypatch.setattr(reference, "_programs", lambda: read_json(GOLDEN.with_name(reference.FILE)))


def test_markdown_is_the_golden_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", everything())
    assert report.main([str(folder)]) == 0
    written = (folder / "report.md").read_text(encoding="utf-8")
    assert written == GOLDEN.read_text(encoding="utf-8")
    piped = capsys.readouterr()
    assert piped.err == f"all columns: {folder / 'report.md'}\n"
    headings = [line for line, rule in pairwise(piped.out.splitlines()) if rule.startswith("| ---")]
    assert len(headings) >= 5
    assert all(line.count("|") <= 9 for line in headings), "up to 8 columns"
    notes = {line.partition(") ")[2] for line in written.splitlines() if line.startswith("(")}
    shown = {re.sub(r"^\(\d+\) ", "", line) for line in piped.out.splitlines()}
    assert notes <= shown, "the notes of the page stand on the screen, too"


def test_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    folder = write(tmp_path, everything()[::-1])
    tables.report([folder])
    written = (folder / "report.md").read_text(encoding="utf-8")
    assert written == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "bad",
    [{"status": "launch failed"}, {"verified": False}, {"verified": None}, {"status": "", "verified": True}],
)
def test_a_line_with_one_bad_repeat_claims_nothing(bad: dict[str, Any]) -> None:
    lines = [*repeats(9, 9, 9), *repeats(3, 3, mode="graph"), row(mode="graph", repeat=2, **bad)]
    (table,) = build_tables(lines)
    graph = table.lines[1]
    assert graph.problem is not None
    assert (graph.speedup, graph.verdict, graph.launch_reduction, graph.peer_ratio) == (None,) * 4
    assert "FAILED" in report_markdown([table], "compact")


def test_nothing_is_compared_with_a_failed_baseline() -> None:
    (table,) = build_tables([*repeats(9, 9, 9, status="broke"), *repeats(3, 3, 3, mode="graph")])
    assert table.lines[1].speedup is None
    assert "baseline failed (broke)" in report_markdown([table], "full")


def test_what_was_not_interleaved_says_so() -> None:
    apart = [*repeats(9, 9, 9), *repeats(3, 3, 3, mode="graph", run_id="other")]
    in_turn = [*repeats(9, 9, 9), *repeats(3, 3, 3, mode="graph")]
    in_one_run = [{**r, "interleaved": False} for r in in_turn]
    several = [
        {**each, "process": each["repeat"] // 2}
        for each in [*repeats(*[9] * 6), *repeats(*[3] * 6, mode="graph", run_id="other")]
    ]
    for rows, expected in ((apart, [NO_VERDICT]), (several, [SEPARATE_RUNS]), (in_one_run, [SAME_RUN]), (in_turn, [])):
        (table,) = build_tables(rows)
        assert table.lines[-1].remarks == expected
        assert table.lines[-1].speedup is not None
        assert ("not interleaved" in report_markdown([table], "compact")) == bool(expected)


def test_a_baseline_with_the_same_batching_is_preferred() -> None:
    rows = [
        *repeats(8, 8, 8, run_id="a", max_batch=1),
        *repeats(9, 9, 9, run_id="b", max_batch=512),
        *repeats(3, 3, 3, run_id="c", max_batch=512, mode="graph"),
        *repeats(2, 2, 2, run_id="d", max_batch=64, mode="graph"),
    ]
    (table,) = build_tables(rows)
    speedups = {line["run_id"]: line.speedup.value for line in table.lines if line.speedup}
    assert speedups == {"c": pytest.approx(3.0), "d": pytest.approx(4.0)}


def test_pairs_are_made_by_repeat_not_by_position() -> None:
    baseline = repeats(10, 20, 30, 40, 50)
    (table,) = build_tables([*baseline, *repeats(5, 10, 15, 20, 25, mode="graph")[::-1]])
    speedup = table.lines[1].speedup
    assert speedup is not None
    assert (speedup.low, speedup.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_other_work_is_another_table_and_never_a_baseline() -> None:
    for column, other in (
        ("commands", 10),
        ("shapes", "1x1x1"),
        ("requests", 7),
        ("cache", "hot"),
        ("traced", True),
        ("arrival_rate_per_s", 10.0),
        ("scheduler", "continuous"),
        ("sampling", "greedy"),
    ):
        tables = build_tables([*repeats(9, 9, 9), *repeats(3, 3, 3, mode="graph", **{column: other})])
        assert len(tables) == 2
        assert not any(line.speedup for table in tables for line in table.lines)


@pytest.mark.parametrize(
    ("columns", "ratio"),
    [
        ({}, "18-19x"),
        ({"dtype": "fp16"}, "45-50x"),
        (DECODE, "4.0-6.1x"),
        ({"workload": "prefill", "shapes": "1024 × 256 × 1024"}, "2.0x"),
        ({"workload": "gemv_256", "shapes": "256x1x256", "dtype": "fp16"}, "158-181x"),
        ({"dtype": "bf16"}, None),
        ({"gpu": "NVIDIA GeForce RTX 3060"}, None),
        ({"gpu": None, "device": "cpu"}, None),
        ({"shapes": "64x1x4096"}, None),
        ({"shapes": "164x1x8192"}, None),
        ({"shapes": "3 shapes"}, None),
    ],
)
def test_the_cpp_loop_is_shown_only_beside_the_same_work(columns: dict[str, Any], ratio: str | None) -> None:
    (table,) = build_tables([row(**columns), row(**{**columns, "mode": "graph"})])
    assert table.lines[1].peer_ratio == ratio
    assert ("cuBLASLt called from C++" in report_markdown([table], "full")) == (ratio is not None)


def test_a_folder_given_twice_does_not_double_the_repeats(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", repeats(9, 9, 9))
    (table,) = build_tables(results.read_summaries([folder, tmp_path]))
    assert len(table.lines[0].rows) == 3


def test_two_different_rows_for_one_repeat_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", [row(wall_ms=1.0), row(wall_ms=2.0)])
    assert report.main([str(tmp_path)]) == 2
    assert "two different rows for baseline, repeat 0" in capsys.readouterr().err


def test_output_and_several_folders(tmp_path: Path) -> None:
    folders = [write(tmp_path / name, repeats(9, 9, 9, run_id=name)) for name in ("a", "b")]
    assert report.main([*map(str, folders)]) == 0
    assert (folders[0] / "report.md").exists()
    assert not (folders[1] / "report.md").exists()
    assert report.main([*map(str, folders), "--output", str(tmp_path / "x.md")]) == 0
    assert (tmp_path / "x.md").read_text(encoding="utf-8") == (folders[0] / "report.md").read_text(encoding="utf-8")


def test_errors_are_one_line_with_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(tmp_path / "absent")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'absent'}: no such folder\n"
    (tmp_path / "summary.parquet").write_bytes(b"PAR1 but no more")
    assert report.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'summary.parquet'}: cannot be read as Parquet")
    assert error.count("\n") == 1
    folder = write(tmp_path / "run", [row()])
    assert report.main([str(folder), "--output", str(tmp_path / "no" / "x.md")]) == 2
    assert "x.md: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--check"],
        ["DIR", "--check"],
        ["--readme", "x", "--plot", "y"],
        ["--readme", "x", "--frontier"],
        ["--readme", "x", "--json"],
        ["DIR", "--frontier", "--json"],
        ["DIR", "--slo-p99-us", "5"],
        *(["DIR", "--frontier", "--slo-p99-us", bad] for bad in ("0", "-1", "nan", "many")),
    ],
)
def test_arguments_that_do_not_go_together(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        report.main(arguments)
    assert stopped.value.code == 2


def test_tokens_have_a_table_of_their_own_in_full_and_in_a_readme() -> None:
    tables = build_tables([*repeats(640, 650, **TOKENS), *repeats(9, 9, run_id="plain")])
    line = "| 12,800 | 3.500 / 12.25 | 0.820 / 1.500 |"
    for kind in ("full", "compact"):
        text = report_markdown(tables, kind)
        assert text.count(line) == 1
        assert "95.5/s (TTFT 10 ms) | no | yes |" in text
        assert "poisson 100/s" in text
    assert "TTFT" not in report_markdown(tables[:1], "compact")


def test_json_has_the_lines_of_the_tables_in_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", everything())
    assert report.main([str(folder), "--json"]) == 0
    printed = capsys.readouterr().out
    assert not (folder / "report.md").exists(), "it prints JSON, and writes nothing"
    tables = json.loads(printed)["tables"]
    known = build_tables(results.read_summaries([folder]))
    assert [table["title"] for table in tables] == [table.title for table in known]
    assert [len(table["lines"]) for table in tables] == [len(table.lines) for table in known]
    batched = next(line for line in tables[0]["lines"] if line["mode"] == "batched")
    assert (batched["wall_ms"], batched["speedup_over"]["mode"], batched["verdict"]) == (5.05, "baseline", "FASTER")
    assert batched["speedup"]["value"] == pytest.approx(19.81, abs=0.01)
    failed = next(line for line in tables[0]["lines"] if line["mode"] == "graph")
    assert failed["problem"].startswith("1 of 3 outputs")
    assert failed["speedup"] is None
    assert report.main([str(folder), "--json", str(tmp_path / "x.json")]) == 0
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == printed
    assert capsys.readouterr().out.startswith("# Report")
    (folder / "report.md").write_text("# Mine\n")
    assert report.main([str(folder), "--json"]) == 0, "it writes no Markdown"
    assert capsys.readouterr().out == printed
    assert report.main([str(folder), "--json", str(tmp_path / "x.json")]) == 2, "beside JSON in a file it does"
    assert (folder / "report.md").read_text() == "# Mine\n"


def test_an_overload_says_what_was_reached_and_one_repeat_is_enough() -> None:
    over = {"overloaded": True, "completed_rate_per_s": 61.25}
    tables = build_tables([row(**{**TOKENS, "repeat": 0}), row(**{**TOKENS, **over, "repeat": 1})])
    assert "YES: 80.12/s of 100/s" in report_markdown(tables, "full")


def test_independent_commands_have_overload_in_their_table_and_a_closed_loop_has_none() -> None:
    late = {"arrival": "poisson", "arrival_rate_per_s": 100.0, "completed_rate_per_s": 61.25, "overloaded": True}
    for kind in ("full", "terminal"):
        columns, cells, _ = grid(build_tables([row(**late)])[0], kind)
        at = [column.heading for column in columns].index("overloaded")
        assert cells[0][at] == "YES: 61.25/s of 100/s"
        assert "overloaded" not in [column.heading for column in grid(build_tables([row()])[0], kind)[0]]
    assert "overloaded" in report_markdown(build_tables([row(**late)]), "full")


def test_an_order_that_was_violated_on_purpose_is_said_so() -> None:
    for workload in (DECODE, {}):
        tables = build_tables([row(), row(mode="chain", **{**workload, "ordering": "violated"})])
        for kind in ("full", "compact"):
            assert "(order violated on purpose)" in report_markdown(tables, kind)
