"""Sweeps by hydra/launcher=joblib: the same end as by the basic launcher, whatever happens to their jobs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.results.side_by_side import (
    DECODE,
    LONG,
    begun,
    ended,
    gone,
    has_records,
    job_process,
    outcome,
    plain_jobs,
    running,
    started_by,
)
from support.results.sweeps import statuses, sweep_json

pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]


def only_sweep(folder: Path) -> Path:
    """Return the folder of the only sweep."""
    (sweep,) = folder.glob("outputs/sweep/*")
    return sweep


def errors(stderr: str) -> list[str]:
    """Return the first part of each line, sorted."""
    return sorted(line.partition(";")[0] for line in stderr.splitlines())


def test_twelve_jobs_end_as_by_the_basic_launcher_and_are_resumed(tmp_path: Path) -> None:
    words = [*DECODE.split(), "batching.max_batch=0,2,4", "ordering=violated,per_request", "mode=baseline,batched"]
    basic, joblib = tmp_path / "basic", tmp_path / "joblib"
    for each in (basic, joblib):
        each.mkdir()
    one, two = ended(words, basic), ended([*JOBLIB, *words], joblib)
    assert two.exit_code == one.exit_code == 2
    sweeps = [only_sweep(each) for each in (basic, joblib)]
    assert plain_jobs(sweeps[1]) == plain_jobs(sweeps[0])
    assert len(set(statuses(sweeps[1]))) == 4
    for name in ("status", "exit_code", "counts", "overrides"):
        assert sweep_json(sweeps[1])[name] == sweep_json(sweeps[0])[name], name
    assert errors(two.stderr) == errors(one.stderr)
    assert sorted(path.name for path in sweeps[1].iterdir()) == sorted(path.name for path in sweeps[0].iterdir())

    again = ended([*JOBLIB, *words, "resume=true"], joblib)
    assert again.exit_code == 2
    was = statuses(sweeps[0])
    assert statuses(sweeps[1]) == ["skipped" if each == "ok" else each for each in was]


def test_ctrl_c_of_a_terminal_ends_all_jobs_and_the_next_start_finishes_them(tmp_path: Path) -> None:
    words = [*JOBLIB, *LONG.split(), "seed=0,1,2"]
    with begun(words, tmp_path) as sweep:
        running(tmp_path, 2)
        others = started_by(sweep.pid)
        os.killpg(sweep.pid, signal.SIGINT)
        ran = outcome(sweep)
        assert gone(others)
    folder = only_sweep(tmp_path)
    assert ran.exit_code == 130, ran.stderr
    assert "error: interrupted" in ran.stderr
    assert "/runner/" not in ran.stderr, "a traceback of this program; joblib's own tracker prints one now and then"
    assert statuses(folder) == ["interrupted", "interrupted", "not run"]
    assert [each["exit_code"] for each in sweep_json(folder)["jobs"]] == [130, 130, 0]
    assert not has_records(folder)


def test_jobs_end_with_the_process_of_their_sweep(tmp_path: Path) -> None:
    with begun([*JOBLIB, *LONG.split(), "seed=0,1"], tmp_path) as sweep:
        running(tmp_path, 2)
        others = started_by(sweep.pid)
        assert len(others) >= 8, "two workers, two job processes, and two children of each"
        sweep.kill()
        assert gone(others)


def test_a_killed_job_fails_and_the_others_run(tmp_path: Path) -> None:
    words = [*JOBLIB, *LONG.split(), "repeats=1000,1000,1,1"]
    with begun(words, tmp_path) as sweep:
        running(tmp_path, 2)
        folder = only_sweep(tmp_path)
        killed = [job_process(folder, job) for job in (0, 1)]
        children = [child for each in killed for child in each.children(recursive=True)]
        for each in killed:
            each.kill()
        assert gone([*killed, *children])
        ran = outcome(sweep)
    assert ran.exit_code == 1
    assert statuses(folder) == ["failed", "failed", "ok", "ok"]
    assert sweep_json(folder)["jobs"][0]["error"] == "the process of the job was killed by signal 9"
    assert sweep_json(folder)["jobs"][2]["error"] is None


def test_a_killed_worker_ends_the_sweep_which_says_so(tmp_path: Path) -> None:
    with begun([*JOBLIB, *LONG.split(), "seed=0,1,2"], tmp_path) as sweep:
        running(tmp_path, 2)
        folder = only_sweep(tmp_path)
        job_process(folder, 0).parent().kill()
        ran = outcome(sweep)
        assert gone(started_by(sweep.pid))
    assert ran.exit_code == 1
    assert statuses(folder)[:2] == ["failed", "failed"]
    assert "the launcher could not run all jobs" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_job_past_its_time_limit_fails_and_keeps_its_repeats(tmp_path: Path) -> None:
    ran = ended([*JOBLIB, *LONG.split(), "job_timeout_s=12", "repeats=1000,1"], tmp_path)
    folder = only_sweep(tmp_path)
    assert ran.exit_code == 1
    assert statuses(folder) == ["failed", "ok"]
    assert "job_timeout_s=12" in str(sweep_json(folder)["jobs"][0]["error"])
