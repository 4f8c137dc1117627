"""Reading commands over several runs, one of whose files is truncated."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.results.diagnosed_rows import repeats

from launchopt.recording import results
from runner import compare, dataset, verdict
from runner.reading import LEFT_OUT
from runner.report import __main__ as report

Main = Callable[[Sequence[str] | None], int]
COMMANDS: dict[str, tuple[Main, list[str]]] = {
    "dataset": (dataset.main, ["runs", "--output", "all.parquet"]),
    "report": (report.main, ["runs", "--json", "all.json"]),
    "report --html": (report.main, ["runs", "--html", "all.html"]),
    "report --pr": (report.main, ["runs"]),
    "compare": (compare.main, ["runs:baseline", "runs:batched", "--json", "all.json"]),
    "verdict": (verdict.main, ["runs", "--json", "all.json"]),
}


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs, of which the second can be broken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCHOPT_CALIBRATION", raising=False)
    for name in ("1", "2", "3"):
        folder = Path("runs") / name
        folder.mkdir(parents=True)
        rows = [*repeats("baseline", 100.0, 101.0, 99.0), *repeats("batched", 5.1, 5.2, 5.05)]
        results.write_rows(folder / "summary.parquet", results.SUMMARY, [row | {"run_id": name} for row in rows], {})
        results.write_manifest(folder, {"run_id": name, "started_utc": name})


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_truncated_file_is_named_in_one_line_and_the_exit_code_is_2(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main, words = COMMANDS[name]
    assert main(words) == 0, capsys.readouterr().err
    capsys.readouterr()
    _truncate(Path("runs/2/summary.parquet"))
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out
    (line,) = [line for line in err.splitlines() if "runs/2/" in line]
    assert line.startswith("warning: runs/2/summary.parquet: cannot be read as Parquet")
    assert err.endswith(f"error: {LEFT_OUT}\n")


def test_the_rows_of_the_other_files_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    _truncate(Path("runs/2/summary.parquet"))
    assert dataset.main(["runs", "--output", "all.parquet"]) == 2
    kept = pq.read_table("all.parquet")["folder"].to_pylist()
    assert sorted(set(kept)) == ["runs/1", "runs/3"]
    assert capsys.readouterr().out == f"{len(kept)} rows of 2 runs: all.parquet\n"
    assert verdict.main(["runs", "--json", "verdict.json"]) == 2
    lines = [line for one in json.loads(Path("verdict.json").read_text())["diagnoses"] for line in one["lines"]]
    assert len(lines) == 4, "two modes of two runs"


def test_the_next_command_of_the_process_has_its_own_exit_code() -> None:
    whole = Path("runs/2/summary.parquet").read_bytes()
    _truncate(Path("runs/2/summary.parquet"))
    assert dataset.main(["runs", "--output", "all.parquet"]) == 2
    Path("runs/2/summary.parquet").write_bytes(whole)
    assert dataset.main(["runs", "--output", "all.parquet"]) == 0


def test_a_command_that_fails_keeps_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    _truncate(Path("runs/2/summary.parquet"))
    assert compare.main(["runs:batched", "runs:baseline", "--fail-on", "slower"]) == 1
    out, err = capsys.readouterr()
    assert "SLOWER" in out
    assert "runs/2/summary.parquet" in err
