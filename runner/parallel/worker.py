"""The side of a worker of a launcher: it hands each job to a process, which it keeps for its later jobs.

A worker belongs to its launcher, which has its own start method, signal handlers and standard streams. The process of
the jobs has none of these, and ends with the worker.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from launchopt.errors import RunError
from launchopt.plugins.found import GROUPS
from runner.parallel.records import Records
from runner.run.sweep import SweepJob
from runner.worker.orphans import marked

GRACE_S = 10.0  # of a process that should end
POLL_S = 0.1


class JobProcess:
    """A process that runs jobs of a sweep, one after another."""

    def __init__(self, records: Records) -> None:
        self.sweep = records.sweep
        self._pipe, other = Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        words = map(str, (os.getpid(), other.fileno(), self.sweep))
        call = [sys.executable, "-m", "runner.parallel.job_process", *words]
        with marked():
            self._process = subprocess.Popen(
                call,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(other.fileno(),),
                cwd=records.about().working,
                start_new_session=True,  # a terminal's signals go to the sweep's process alone
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))},
            )
        other.close()

    def is_alive(self) -> bool:
        """Return whether the process can take another job."""
        return self._process.poll() is None

    def run(self, order: object) -> float:
        """Run a job, and return its objective; EOFError or OSError if the process ends instead."""
        self._pipe.send(order)
        objective = self._pipe.recv()
        assert isinstance(objective, float)
        return objective

    def interrupt(self) -> None:
        """Let the process end its job, and keep the finished repeats."""
        self._process.terminate()

    def end(self) -> str:
        """End the process, and return how it ended."""
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        self._process.kill()
        code = self._process.wait()
        self._output.close()
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


_kept: list[JobProcess] = []  # at most one


def handed_on(job: SweepJob, composed: DictConfig, folder: Path, sweep_folder: Path) -> float:
    """Run a job of a sweep in a process of its own; return its objective, infinite without results."""
    records = Records(Path.cwd() / sweep_folder)
    if records.is_over():
        _remove_empty(folder)
        if not records.folder.is_dir():
            _remove_empty(records.sweep)
            where = f"{socket.gethostname()} does not see the files of the sweep in it"
            raise RunError(
                f"{records.sweep}: {where}; hydra.sweep.dir must lie in a file system that all machines share"
            )
        return math.inf
    process = _process(records)
    choices = HydraConfig.get().runtime.choices
    words = [f"{group}={choices[group]}" for group in GROUPS if choices.get(group)]
    try:
        with _time_limit(process):
            return process.run((job, composed, folder, words))
    except (EOFError, OSError):
        _kept.clear()
        how = process.end()
        if not records.is_over():
            found = records.read(job.job)
            job = found[0] if found else job
            job.ended("failed", RunError(f"the process of the job {how}"))
            records.save(job)
        return math.inf


def _remove_empty(folder: Path) -> None:
    """Remove a folder that Hydra has made for a job that does not run."""
    with contextlib.suppress(OSError):  # not empty
        folder.rmdir()


def time_signal() -> int | None:
    """Return the signal by which submitit tells a worker that its time is almost over; None if it runs none here."""
    if "SUBMITIT_EXECUTOR" not in os.environ:
        return None
    return int(getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"))


@contextlib.contextmanager
def _time_limit(process: JobProcess) -> Iterator[None]:
    """Interrupt the job when submitit says, during this block, that its time is over: it would begin the job again."""
    if (number := time_signal()) is None:
        yield
        return
    before = signal.signal(number, lambda number, frame: process.interrupt())
    try:
        yield
    finally:
        signal.signal(number, before)


def _end_with_sweep(records: Records, parent: int) -> None:
    """End this worker if the sweep's process, which started it, was killed: joblib's workers would wait for ever.

    parent: the process that started this worker.
    """
    records.is_over(wait=True)
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        if os.getppid() != parent:
            os._exit(1)
        time.sleep(POLL_S)


def _process(records: Records) -> JobProcess:
    if _kept and not (_kept[0].is_alive() and _kept[0].sweep == records.sweep):
        _kept.pop().end()
    if not _kept:
        _kept.append(JobProcess(records))
        threading.Thread(target=_end_with_sweep, args=(records, os.getppid()), daemon=True).start()
    return _kept[0]
