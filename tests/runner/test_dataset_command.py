"""python -m runner.dataset: one file of many runs, and the page of columns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.processes.own_process import ROOT, environ_of
from support.results.summary_rows import repeats, write

from launchopt.recording import results
from launchopt.recording.dataset import schema_of
from launchopt.recording.results import write_manifest
from runner import commands
from runner.dataset import main
from runner.reading import LEFT_OUT

COMMITTED = ROOT / "outputs/reference"


def test_all_summaries_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "all.parquet"
    assert main([str(COMMITTED / "gpu/qkv"), "--output", str(output)]) == 0
    table = pq.read_table(output)
    assert table.schema.equals(schema_of("summary"))
    assert capsys.readouterr().out == f"{len(table)} rows of 12 runs: {output}\n"
    assert len(table) == len(results.read_summaries([COMMITTED / "gpu/qkv"]))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["EMPTY", "--output", "x.parquet"], "no summary.parquet here or below"),
        (["none", "--output", "x.parquet"], "none: no such folder"),
        (["EMPTY", "--table", "all", "--output", "x.parquet"], "--table=all: must be one of summary, histograms"),
        ([str(COMMITTED / "gpu/qkv"), "--output", "no/folder/x.parquet"], "no/folder: no such folder"),
        (["--page", "x.md"], "x.md: cannot be read"),
    ],
)
def test_refusals_are_short_and_leave_nothing(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "EMPTY").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(arguments) != 0
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert says in message
    assert message.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["EMPTY"]


def test_the_page_of_columns_is_current_and_a_stale_one_is_seen(tmp_path: Path) -> None:
    assert main(["--page", str(COMMITTED / "COLUMNS.md"), "--check"]) == 0
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- columns -->\nold\n<!-- /columns -->\nafter\n")
    assert main(["--page", str(page), "--check"]) == 1
    assert "old" in page.read_text()
    assert main(["--page", str(page)]) == 0
    assert main(["--page", str(page), "--check"]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    for column in (*results.SUMMARY.names, *results.KERNELS.names):
        assert f"| `{column}` |" in text


def test_the_example_names_a_folder_that_is_missing() -> None:
    call = [sys.executable, "scripts/dataset_example.py", "outptus"]
    done = subprocess.run(call, cwd=ROOT, env=environ_of(), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: outptus: no such folder; did you mean outputs?\n"


def test_the_example_runs() -> None:
    call = [sys.executable, "scripts/dataset_example.py"]
    done = subprocess.run(call, cwd=ROOT, env=environ_of(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "times_baseline" in done.stdout
    assert "torch_graph" in done.stdout


@pytest.mark.parametrize(
    ("content", "fault"), [("null", "not the manifest of a run"), ('{"a": 1', "cannot be read as JSON")]
)
def test_a_run_with_a_broken_manifest_is_left_out_and_named(
    content: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("good", "torn"):
        write_manifest(write(tmp_path / name, repeats(1.0)), {"run_id": name})
    (tmp_path / "torn/manifest.json").write_text(content)
    output = tmp_path / "all.parquet"
    assert main([str(tmp_path), "--output", str(output)]) == 2
    printed = capsys.readouterr()
    assert f"rows of 1 run: {output}" in printed.out
    warning, last = printed.err.splitlines()
    assert warning.startswith(f"warning: {tmp_path}/torn/manifest.json: {fault}")
    assert last == f"error: {LEFT_OUT}"
    assert {Path(name).name for name in pq.read_table(output)["folder"].to_pylist()} == {"good"}
    assert commands.main(["report", str(tmp_path / "torn")]) == 2
    assert warning in capsys.readouterr().err.splitlines()
