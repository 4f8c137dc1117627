"""Benchmarks in several processes: each process measures each part, and its samples stay apart."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from launchopt.errors import DataError
from launchopt.recording.manifest import usable_manifest
from launchopt.recording.results import write_rows
from runner.bench import account, figures, processes
from runner.bench.__main__ import main
from runner.bench.figures import BENCH, FILE, Figure

FAILED = """megakernel: a step: 20 us
error: out of memory
Error in sys.excepthook:

Original exception was:
"""  # as Python ends behind a fault of the GPU
SPAN = "In (): from the smallest to the largest of"
LEVELS = (10.0, 30.0, 20.0)  # of three processes
Runs = list[Sequence[str]]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Runs]:
    """Stands in for the processes: each writes a figure at its level. The one at `fails` has `code`; 0: Ctrl-C."""

    def stand_in(fails: int | None = None, has_account: bool = False, code: int = 1) -> Runs:
        done: Runs = []

        def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
            done.append(words)
            at = len(done) - 1
            if at == fails and code:
                return subprocess.CompletedProcess(words, code, "", FAILED)
            folder, level = Path(words[-1]), LEVELS[at]
            folder.mkdir()
            row = Figure("megakernel", "a step", "us", [level - 1, level, level + 2], 25.0).row()
            write_rows(folder / FILE, BENCH, [row], {})
            if has_account:
                (folder / account.FILE).write_text(str(level))
            if at == fails:
                raise KeyboardInterrupt
            return subprocess.CompletedProcess(words, 0, "", "")

        monkeypatch.setattr(processes, "run_bound", run)
        return done

    return stand_in


def test_processes_measure_each_part_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["posting", "batcher", "--processes", "2", "--repeats", "1", "--device", "cpu", "--output", str(tmp_path)]
    assert main(words) == 0
    rows = figures.read(tmp_path)
    assert {row["suite"] for row in rows} == {"posting", "batcher"}
    assert all(row["samples_of"] == [1, 1] and len(row["samples"]) == 2 for row in rows)
    assert (usable_manifest(tmp_path) or {})["processes"] == 2
    printed = capsys.readouterr()
    order = [f"process {process} of 2: {part}" for process in (1, 2) for part in ("posting", "batcher")]
    assert printed.err.splitlines() == order
    assert "the medians of 2 processes" in printed.out


def test_the_range_is_that_of_the_medians_of_processes(
    runs: Callable[..., Runs], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = runs()
    words = ["megakernel", "--processes", "3", "--repeats", "3", "--device", "cpu", "--output", str(tmp_path)]
    assert main(words) == 0
    assert [words[1:4] for words in done] == 3 * [["megakernel", "--repeats", "3"]]
    (row,) = figures.read(tmp_path)
    assert (row["samples_of"], row["median"], row["goal_met"]) == ([3, 3, 3], 20.0, True)
    assert (row["low"], row["high"]) == (None, None), "three medians have no interval"
    assert list(map(sorted, figures.groups(row))) == [[level - 1, level, level + 2] for level in LEVELS]
    assert figures.cells(row)[3] == "(10 to 30)"
    assert "In (): from the smallest to the largest of the medians of 3 processes." in figures.markdown(tmp_path)


def test_the_account_of_the_megakernel_is_that_of_the_first_process(runs: Callable[..., Runs], tmp_path: Path) -> None:
    runs(has_account=True)
    assert all(processes.measured(["megakernel"], "cpu", 1, 3, tmp_path))
    assert (tmp_path / account.FILE).read_text() == str(LEVELS[0])


def test_what_was_measured_before_a_process_failed_is_kept(
    runs: Callable[..., Runs], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(fails=2)
    assert main(["megakernel", "--processes", "3", "--device", "cpu", "--output", str(tmp_path)]) == 1
    assert "megakernel in process 3: exit code 1: error: out of memory" in capsys.readouterr().err
    assert figures.read(tmp_path)[0]["samples_of"] == [3, 3]
    assert (usable_manifest(tmp_path) or {})["status"] == "failed"


def test_what_an_interrupted_process_measured_is_kept(runs: Callable[..., Runs], tmp_path: Path) -> None:
    runs(fails=1, code=0)
    with pytest.raises(KeyboardInterrupt):
        main(["megakernel", "--processes", "3", "--device", "cpu", "--output", str(tmp_path)])
    assert figures.read(tmp_path)[0]["samples_of"] == [3, 3]
    assert (usable_manifest(tmp_path) or {})["status"] == "interrupted"


def test_the_last_line_of_a_process_that_a_signal_ended_is_named_as_such(
    runs: Callable[..., Runs], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(fails=0, code=-9)
    assert main(["megakernel", "--processes", "2", "--device", "cpu", "--output", str(tmp_path)]) == 1
    line = "error: megakernel in process 1: ended by signal 9; its last line: error: out of memory\n"
    assert capsys.readouterr().err.endswith(line)
    assert not (tmp_path / FILE).exists(), "a file without figures"


@pytest.mark.parametrize(
    ("counts", "lines"),
    [
        ([1], [f"{SPAN} the repeats."]),
        ([3, 1], [f"{SPAN} the medians of 3 processes.", f"{SPAN} the repeats."]),
        ([5], ["Interval: 95% (94% at five values), of the median, from the medians of 5 processes."]),
    ],
)
def test_a_legend_names_the_processes_that_its_rows_have(counts: Sequence[int], lines: Sequence[str]) -> None:
    rows = [Figure("ring", "a", "ns", [1.0, 2.0] * count, samples_of=[2] * count).row() for count in counts]
    assert figures.legend(rows) == lines


def test_an_older_file_is_of_one_process(tmp_path: Path) -> None:
    write_rows(tmp_path / FILE, BENCH, [Figure("ring", "a command", "ns", [1.0, 2.0]).row()], {})
    pq.write_table(pq.read_table(tmp_path / FILE).drop_columns(["samples_of"]), tmp_path / FILE)
    (row,) = figures.read(tmp_path)
    assert figures.groups(row) == [[1.0, 2.0]]


@pytest.mark.parametrize(("samples", "counts"), [([1.0, 2.0], [1]), ([1.0, 2.0], [3, -1]), ([1.0], [1, 0])])
def test_a_file_that_does_not_count_its_samples_is_refused(
    samples: list[float], counts: list[int], tmp_path: Path
) -> None:
    row = Figure("ring", "a command", "ns", [1.0]).row() | {"samples": samples, "samples_of": counts}
    write_rows(tmp_path / FILE, BENCH, [row], {})
    with pytest.raises(DataError, match=f"a command: {len(samples)} samples"):
        figures.read(tmp_path)
