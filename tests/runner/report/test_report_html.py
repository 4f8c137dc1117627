"""`python -m runner.report` with --html, --pr and --timeline: files, exit codes and messages."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.results.recorded_runs import write_run, write_sweep

from launchopt.report import page
from runner.report import __main__ as report

needs_extra = pytest.mark.skipif(find_spec("altair") is None, reason="needs the report extra")


@needs_extra
def test_html_goes_into_the_first_folder_or_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run")
    assert report.main([str(folder), "--html"]) == 0
    assert report.main([str(folder), "--html", str(tmp_path / "other.html")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in out] == [
        f"wrote {folder / 'report.html'}",
        f"wrote {tmp_path / 'other.html'}",
    ]
    assert (folder / "report.html").read_text() == (tmp_path / "other.html").read_text()
    assert (folder / "report.html").stat().st_size < 2_000_000
    assert not (folder / "report.md").exists(), "nothing else was asked for"


@needs_extra
def test_an_objective_is_given_or_kept(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep")
    assert report.main([str(folder), "--html", "--slo-p99-us", "500"]) == 0
    assert "Recommended for a p99 of at most 500 us" in (folder / "report.html").read_text()
    (folder / "frontier.json").write_text('{"slo_p99_us": 400}')
    assert report.main([str(folder), "--html"]) == 0
    assert "Recommended for a p99 of at most 400 us" in (folder / "report.html").read_text()


def test_pull_request_prints_markdown_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    before = sorted(path.name for path in folder.iterdir())
    assert report.main([str(folder), "--pr"]) == 0
    assert capsys.readouterr().out.startswith("### Launch overhead on NVIDIA H200\n")
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_timeline_says_what_it_holds_and_what_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, path = write_run(tmp_path / "run"), tmp_path / "timeline.json"
    assert report.main([str(folder), "--timeline", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "rows of 10 repeats; open it at https://ui.perfetto.dev" in captured.out
    assert report.main([str(folder), "--timeline", str(path), "--timeline-limit", "60"]) == 0
    assert (
        "recorded rows are shown: the first launches of every repeat (--timeline-limit 60)" in capsys.readouterr().err
    )
    assert json.loads(path.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--html --pr", "--html and --pr are 2 reports: ask for one"),
        ("--html --strategies", "--strategies and --html are 2 reports: ask for one"),
        ("--html --plot x.svg", "--output and --plot do not go with --html"),
        ("--pr --slo-p99-us 5", "--slo-p99-us goes with --frontier or --html"),
        ("--timeline-limit 5", "--timeline-limit goes with --timeline"),
        ("--timeline x.json --timeline-limit 0", "--timeline-limit: 0: must be a whole number of at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        report.main([str(write_run(tmp_path)), *arguments.split()])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_errors_are_one_line_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, run = write_sweep(tmp_path / "sweep"), write_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    cases = [
        (
            [str(sweep), "--timeline", str(tmp_path / "t.json")],
            "no launches.parquet, commands.parquet or kernels.parquet",
        ),
        ([str(tmp_path / "empty"), "--html"], "no summary.parquet here or below"),
    ]
    if find_spec("altair"):
        cases.append(([str(run), "--html", str(tmp_path / "no" / "x.html")], "cannot be written"))
    for arguments, message in cases:
        assert report.main(arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert message in err
        assert err.count("\n") == 1
    monkeypatch.setattr(page, "missing", lambda *names: list(names))
    assert report.main([str(run), "--html"]) == 2
    said = "error: --html needs altair, jinja2, vl_convert; type: pip install -e '.[report]'\n"
    assert capsys.readouterr().err == said
    assert not [
        path for path in tmp_path.rglob("*") if path.suffix in (".html", ".json", ".tmp") and path.parent == tmp_path
    ]
    assert not (run / "report.html").exists()


def test_tables_need_no_plotting_library() -> None:
    code = "import sys, runner.report; sys.exit(bool({'altair', 'vl_convert', 'jinja2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
