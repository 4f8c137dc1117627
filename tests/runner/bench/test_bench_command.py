"""launchopt bench: parts that are named twice, parts without figures, and what an earlier result left."""

from __future__ import annotations

from pathlib import Path

import pytest

from launchopt.recording.results import write_manifest, write_rows
from runner.bench import account, figures
from runner.bench.__main__ import main
from runner.bench.figures import BENCH, FILE, Figure


@pytest.mark.parametrize(("processes", "counts"), [("1", [1]), ("2", [1, 1])])
def test_a_part_that_is_named_twice_is_measured_once_a_process(
    processes: str, counts: list[int], tmp_path: Path
) -> None:
    words = ["batcher", "batcher", "--processes", processes, "--repeats", "1", "--device", "cpu"]
    assert main([*words, "--output", str(tmp_path)]) == 0
    rows = figures.read(tmp_path)
    assert len({row["case"] for row in rows}) == len(rows)
    assert all(row["samples_of"] == counts for row in rows)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_figures_of_an_earlier_result_do_not_stay(
    processes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / FILE, BENCH, [Figure("attention", "a step", "us", [1.0]).row()], {})
    (tmp_path / account.FILE).touch()
    write_manifest(tmp_path, {"status": "ok"})
    words = ["attention", "--processes", processes, "--device", "cpu", "--output", str(tmp_path)]
    assert main(words) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["manifest.json"]
    assert capsys.readouterr().err.endswith("the cpu device measures nothing of attention\n")


@pytest.mark.parametrize(
    ("words", "named"), [("posting", "PART"), ("--processes 3", "--processes"), ("--output DIR", "--output")]
)
def test_a_comparison_takes_no_option_of_a_measurement(
    words: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--compare", str(tmp_path), str(tmp_path)]) == 2
    said = capsys.readouterr().err.splitlines()[0]
    assert said == f"error: --compare={tmp_path} {tmp_path}: measures nothing: leave out {named}"
