"""A sweep on the screen: overload, a full queue, one repeat a job, and a fastest mode only where it is told apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.results.summary_rows import row

from launchopt.recording import results
from launchopt.recording.results import Row
from runner.run.screens.sweep_results import job_line, print_jobs
from runner.run.sweep import Sweep, SweepJob
from runner.screen.pager import console

FULL = {"arrival": "closed", "commands": 1000, "launch_calls": 1000, "latency_p50_us": 50_000.0, "max_batch": 1}
QUICK = {"arrival": "closed", "commands": 1000, "launch_calls": 1000, "latency_p50_us": 110.0, "max_batch": 1}
LATE = {"arrival": "poisson", "arrival_rate_per_s": 50.0, "completed_rate_per_s": 13.9, "overloaded": True}


def pairs(factors: list[float]) -> list[Row]:
    """Return interleaved repeats of baseline, and of batched that is faster by each factor."""
    rows = []
    for repeat, factor in enumerate(factors):
        common = {"repeat": repeat, "interleaved": True, **QUICK}
        rows += [row(mode="batched", wall_ms=100.0 / factor, **common), row(mode="baseline", wall_ms=100.0, **common)]
    return rows


def drawn(jobs: list[list[Row]], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    sweep = Sweep(folder, [], True)
    for number, rows in enumerate(jobs):
        place = folder / str(number)
        place.mkdir()
        results.write_rows(place / "summary.parquet", results.SUMMARY, rows, {})
        sweep.add(SweepJob(number, [f"seed={number}"], status="ok"), place)
    print_jobs(sweep, console())
    return " ".join(capsys.readouterr().out.split())


def test_a_job_names_its_fastest_mode_only_if_it_is_told_apart() -> None:
    assert job_line(pairs([1.5, 1.51, 1.49, 1.5, 1.52])).startswith("batched, fastest of 2 modes: ")
    for unclear in ([1.5], [0.8, 1.3, 1.0, 0.9, 1.2]):
        line = job_line(pairs(unclear))
        assert "fastest" not in line
        assert "batched " in line
        assert "baseline 100.00 ms" in line


def test_a_job_shows_overload_and_no_latency_of_a_full_queue() -> None:
    assert ", p99 " in job_line([row(wall_ms=100.0, **QUICK)])
    assert "p99" not in job_line([row(wall_ms=100.0, **FULL)])
    assert job_line([row(**LATE)]).endswith(", OVERLOADED")


def test_the_table_shows_overloaded_jobs_and_that_one_repeat_gives_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = drawn([[row(run_id="x/0", **LATE)], [row(run_id="x/1", **LATE | {"overloaded": False})]], tmp_path, capsys)
    assert "overloaded" in text
    assert "YES: 13.9/s of 50/s" in text
    assert "1 repeat a job: no verdict; repeats=5 gives one." in text


def test_the_table_of_full_queues_has_no_p99_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = [row(wall_ms=100.0, repeat=repeat, **FULL) for repeat in (0, 1)]
    text = drawn([full, full], tmp_path, capsys)
    assert "p99 us" not in text
    assert "overloaded" not in text
    assert "latency is queue depth there" in text
    assert "1 repeat a job" not in text
