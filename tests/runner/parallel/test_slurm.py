"""Sweeps by Slurm: `scripts/launcher_check.sh slurm` starts a cluster of two nodes for these tests.

LAUNCHOPT_SLURM names the folder of that cluster, so that no other one is used: a test takes a node down.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.results.side_by_side import (
    LONG,
    PATIENCE_S,
    TWELVE,
    begun,
    ended,
    gone,
    has_records,
    job_process,
    only_sweep,
    outcome,
    plain_jobs,
    running,
)
from support.results.sweeps import statuses, sweep_json

FOLDER = os.environ.get("LAUNCHOPT_SLURM", "")
SLURM = "hydra/launcher=submitit_slurm"
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="needs Slurm: scripts/launcher_check.sh slurm starts it and runs these tests"
)


def said(*call: str) -> list[str]:
    """Return the lines that a program of Slurm prints."""
    return subprocess.run(call, capture_output=True, text=True, check=True).stdout.splitlines()


def queue() -> list[str]:
    """Return the jobs that have not left the queue."""
    return said("squeue", "-h", "-r", "-o", "%i %T %N")


def until(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    """Wait until something holds; return whether it does in time."""
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def of_job(sweep: Path, job: int) -> list[psutil.Process]:
    """Return the processes of a job: the worker, the job's own and its children."""
    worker = job_process(sweep, job).parent()
    return [worker, *worker.children(recursive=True)]


@pytest.fixture(autouse=True)
def empty_queue() -> Iterator[None]:
    """The queue is empty before and after each test."""
    assert until(lambda: not queue(), 30)
    yield
    subprocess.run(["scancel", "--quiet", "--user", str(os.geteuid())], check=False)


def test_twelve_jobs_in_an_array_end_as_by_the_basic_launcher_and_are_resumed(tmp_path: Path) -> None:
    for name in ("basic", "slurm"):
        (tmp_path / name).mkdir()
    one, two = ended(TWELVE, tmp_path / "basic"), ended([SLURM, *TWELVE], tmp_path / "slurm")
    basic, sweep = only_sweep(tmp_path / "basic"), only_sweep(tmp_path / "slurm")
    assert two.exit_code == one.exit_code == 2
    assert plain_jobs(sweep) == plain_jobs(basic)
    for name in ("status", "exit_code", "counts", "overrides"):
        assert sweep_json(sweep)[name] == sweep_json(basic)[name], name
    assert sorted(path.name for path in sweep.iterdir()) == sorted(path.name for path in basic.iterdir())
    assert until(lambda: not queue(), 10)
    assert set(said("squeue", "-h", "-r", "-t", "all", "-o", "%T")) == {"COMPLETED"}

    again = ended([SLURM, *TWELVE, "resume=true"], tmp_path / "slurm")
    assert again.exit_code == 2
    assert statuses(sweep) == ["skipped" if each == "ok" else each for each in statuses(basic)]


def test_ctrl_c_ends_the_jobs_that_run_and_cancels_those_that_wait(tmp_path: Path) -> None:
    with begun([SLURM, *LONG.split(), "seed=0,1,2,3,4,5"], tmp_path) as sweep:
        running(tmp_path, 2)
        folder = only_sweep(tmp_path)
        processes = [each for job in (0, 1) for each in of_job(folder, job)]
        assert len(queue()) == 6
        os.killpg(sweep.pid, signal.SIGINT)
        ran = outcome(sweep)
    assert until(lambda: not queue(), 10), queue()
    assert gone(processes)
    assert ran.exit_code == 130, ran.stderr
    assert "error: interrupted" in ran.stderr
    assert statuses(folder) == ["interrupted"] * 2 + ["not run"] * 4
    assert not has_records(folder)


def test_no_job_outlives_a_sweep_whose_process_was_killed(tmp_path: Path) -> None:
    with begun([SLURM, *LONG.split(), "seed=0,1,2,3"], tmp_path) as sweep:
        running(tmp_path, 2)
        folder = only_sweep(tmp_path)
        processes = [each for job in (0, 1) for each in of_job(folder, job)]
        sweep.kill()
        assert gone(processes)
        assert until(lambda: not queue(), 60), queue()
    assert not (folder / "2").exists(), "a job that begins after that ends at once"


def test_a_killed_job_fails_and_its_job_of_slurm_ends(tmp_path: Path) -> None:
    with begun([SLURM, *LONG.split(), "repeats=1000,1"], tmp_path) as sweep:
        running(tmp_path, 2)
        folder = only_sweep(tmp_path)
        processes = of_job(folder, 0)
        job_process(folder, 0).kill()
        ran = outcome(sweep)
    assert ran.exit_code == 1
    assert statuses(folder) == ["failed", "ok"]
    assert sweep_json(folder)["jobs"][0]["error"] == "the process of the job was killed by signal 9"
    assert gone(processes)
    assert until(lambda: not queue(), 10), queue()


def test_a_killed_worker_is_noticed_without_accounting(tmp_path: Path) -> None:
    with begun([SLURM, *LONG.split(), "repeats=1000,1"], tmp_path) as sweep:
        running(tmp_path, 2)
        folder = only_sweep(tmp_path)
        processes = of_job(folder, 0)
        processes[0].kill()
        assert gone(processes)
        ran = outcome(sweep)
    assert ran.exit_code == 1
    assert statuses(folder) == ["failed", "ok"]
    assert "the launcher could not run all jobs" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert until(lambda: not queue(), 10), queue()


def test_a_job_that_somebody_cancels_is_interrupted(tmp_path: Path) -> None:
    with begun([SLURM, *LONG.split(), "repeats=1000,1"], tmp_path) as sweep:
        running(tmp_path, 2)
        folder = only_sweep(tmp_path)
        processes = of_job(folder, 0)
        said("scancel", min(line.split()[0] for line in queue()))
        ran = outcome(sweep)
    assert ran.exit_code == sweep_json(folder)["jobs"][0]["exit_code"]
    assert statuses(folder)[0] in ("interrupted", "failed")
    assert statuses(folder)[1] == "ok"
    assert gone(processes)


def test_a_job_past_its_time_limit_fails(tmp_path: Path) -> None:
    ran = ended([SLURM, *LONG.split(), "job_timeout_s=6", "repeats=1000"], tmp_path)
    assert ran.exit_code == 1
    assert statuses(only_sweep(tmp_path)) == ["failed"]
    assert "job_timeout_s=6" in str(sweep_json(only_sweep(tmp_path))["jobs"][0]["error"])


def test_a_job_at_the_end_of_its_time_keeps_its_repeats(tmp_path: Path) -> None:
    limits = ("timeout_min=2", "signal_delay_s=30")  # Slurm may send the signal a minute earlier
    ran = ended([SLURM, *(f"hydra.launcher.{each}" for each in limits), *LONG.split(), "seed=0"], tmp_path)
    sweep = only_sweep(tmp_path)
    assert statuses(sweep) == ["interrupted"], ran.stderr
    assert sweep_json(sweep)["jobs"][0]["error"].endswith("the launcher ended it (hydra.launcher.timeout_min=2)")
    assert (sweep / "0/summary.parquet").exists()
    assert until(lambda: not queue(), 10), queue()


def test_jobs_of_a_node_that_goes_down_run_again(tmp_path: Path) -> None:
    with begun([SLURM, *LONG.split(), "repeats=40", "seed=0,1,2,3"], tmp_path) as sweep:
        running(tmp_path, 2)
        folder = only_sweep(tmp_path)
        take_down("b")
        assert until(lambda: said("sinfo", "-h", "-n", "b", "-o", "%t")[0].startswith("down"))
        said("slurmd", "-N", "b", "-f", os.environ["SLURM_CONF"])
        assert until(lambda: said("sinfo", "-h", "-n", "b", "-o", "%t")[0] in ("idle", "alloc"))
        ran = outcome(sweep)
    assert statuses(folder) == ["ok"] * 4, ran.stderr
    assert ran.exit_code == 0, ran.stderr


def take_down(node: str) -> None:
    """Kill what runs on a node, as a machine that loses its power: the daemon, and all processes of its jobs."""
    jobs = said("squeue", "-h", "-r", "-w", node, "-o", "%A")
    tops = [psutil.Process(int(Path(FOLDER, f"slurmd-{node}.pid").read_text()))]
    for each in psutil.process_iter(["cmdline"]):
        words = " ".join(each.info["cmdline"] or ())
        tops += [each for job in jobs if words.startswith(f"slurmstepd: [{job}.")]
    assert len(tops) > 1
    for each in [*tops, *(child for top in tops for child in top.children(recursive=True))]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


@pytest.mark.parametrize("word", ["partition=none", "gpus_per_node=1", "cpus_per_task=400", "gres=gpu:1"])
def test_a_job_that_no_node_could_run_is_refused(word: str, tmp_path: Path) -> None:
    ran = ended([SLURM, f"hydra.launcher.{word}", *LONG.split(), "seed=0,1"], tmp_path)
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert ran.stderr.startswith(f"error: {SLURM}: Slurm takes no job with these settings: ")
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_whose_controller_is_down_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(FOLDER, "slurm.conf").read_text()
    (tmp_path / "slurm.conf").write_text(text.replace("SlurmctldPort=", "SlurmctldPort=1 #"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    here = tmp_path / "here"
    here.mkdir()
    ran = ended([SLURM, *LONG.split(), "seed=0,1"], here)
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert "slurm controller" in ran.stderr
    assert list(here.iterdir()) == []
