"""A sweep in a process of its own, whose jobs a launcher runs side by side."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from launchopt.files import read_json
from runner.parallel.records import FOLDER
from support.processes.own_process import environ_of, without_progress
from support.results.sweeps import Ran

PATIENCE_S = 180.0
DECODE = "device=cpu workload=decode model=tiny workload.cache=hot workload.requests=5 workload.tokens=2"
TWELVE = [*DECODE.split(), "batching.max_batch=0,2,4", "ordering=violated,per_request", "mode=baseline,batched"]
SMALL = "device=cpu workload.m=16 workload.k=64 workload.commands=200 workload.cache=hot"
LONG = f"{SMALL} arrival=constant arrival.rate_per_s=1000 repeats=1000"  # 0.2 s a repeat


@contextlib.contextmanager
def begun(words: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a sweep in its own session, as a terminal does; end it with its workers after this block."""
    call = [sys.executable, "-m", "runner", "-m", *words]
    pipe = subprocess.PIPE
    sweep = subprocess.Popen(
        call, cwd=folder, env=environ_of(), stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        yield sweep
    finally:
        for each in (*started_by(sweep.pid), sweep):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        for stream in (sweep.stdout, sweep.stderr):
            assert stream
            stream.close()
        sweep.wait(PATIENCE_S)


def ended(words: Sequence[str], folder: Path) -> Ran:
    """Make a sweep and return what it said."""
    with begun(words, folder) as sweep:
        return outcome(sweep)


def outcome(sweep: subprocess.Popen[str]) -> Ran:
    """Wait for the end of a sweep."""
    stdout, stderr = sweep.communicate(timeout=PATIENCE_S)
    return Ran(sweep.returncode, stdout, without_progress(stderr))


def started_by(pid: int) -> list[psutil.Process]:
    """Return the processes below process `pid`."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def running(folder: Path, count: int) -> list[int]:
    """Wait until `count` jobs of the only sweep below `folder` have finished a repeat; return their numbers."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = [int(each.parent.name) for each in folder.glob("outputs/sweep/*/*/summary.parquet")]
        if len(found) >= count:
            return sorted(found)
        time.sleep(0.1)
    raise AssertionError(f"{found} of {count} jobs run")


def job_process(sweep: Path, job: int) -> psutil.Process:
    """Return the process that runs a job: the owner of its lock."""
    owner = (sweep / str(job) / ".launchopt.lock").read_text().partition(" ")[0]
    return psutil.Process(int(owner))


def only_sweep(folder: Path) -> Path:
    """Return the folder of the only sweep."""
    (sweep,) = folder.glob("outputs/sweep/*")
    return sweep


def plain_jobs(sweep: Path) -> list[dict[str, object]]:
    """Return the jobs of sweep.json without what a measurement gives, and without details of errors."""
    jobs = read_json(sweep / "sweep.json")["jobs"]
    of_runs = {"objective": lambda value: value is not None, "error": lambda value: value and value.partition(";")[0]}
    return [each | {name: plain(each[name]) for name, plain in of_runs.items()} for each in jobs]


def has_records(sweep: Path) -> bool:
    """Return whether the files between jobs and sweep are still there."""
    return (sweep / FOLDER).exists()


def gone(processes: Sequence[psutil.Process], within_s: float = 30.0) -> bool:
    """Return whether all processes end in time."""
    return not psutil.wait_procs(list(processes), timeout=within_s)[1]
