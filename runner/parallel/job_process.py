"""A process that runs jobs of a sweep for a worker: `python -m runner.parallel.job_process PID DESCRIPTOR SWEEP`.

It is bound to the worker, process PID. DESCRIPTOR: of a pipe with jobs from the worker. SWEEP: folder of the sweep.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launchopt.errors import ConfigError, LaunchoptError
from launchopt.messages import print_error
from runner.config.groups import DeviceKind
from runner.config.plugged import register_named
from runner.config.schema import register
from runner.ending import end
from runner.ending.signals import signals
from runner.parallel.records import About, Records
from runner.parallel.worker import time_signal
from runner.plan import cores, gpus
from runner.run import children
from runner.run.leftovers import LOCK, is_free
from runner.run.sweep import Sweep, SweepJob
from runner.sweep_jobs import run_in_sweep
from runner.worker.lifeline import end_with

POLL_S = 0.1
BEGIN_S = 60.0  # a job of a lower number that has not begun by then may have been lost


class OneJob(Sweep):
    """A sweep as one of its jobs sees it: it has this job only, and saves the job's record."""

    def __init__(self, records: Records) -> None:
        super().__init__(records.sweep, [], is_new=False, is_planned=False)
        self._records = records
        self._key: str | None = None
        self.__dict__["varies_batching"] = records.about().varies_batching

    def add(self, job: SweepJob, folder: Path) -> None:
        """Claim the folder of the job; ConfigError if another job of this sweep has it."""
        job.folder = os.path.relpath(folder, self.folder)
        self.jobs.append(job)
        self.save()
        if not self._records.claim(job):
            wanted = "holds another job of this sweep: give each its own, as ${hydra.job.num} does"
            raise ConfigError("hydra.sweep.subdir", job.folder, wanted)

    def save(self, ended: bool = False) -> None:
        """Replace the record of the job."""
        self._records.save(self.jobs[0], self._key)

    def twin_of(self, key: str | None) -> SweepJob | None:
        """Return the job of a lower number and the same work that has results, after it has ended.

        Jobs that a launcher starts at once begin in any order, so it waits until those of lower numbers have begun.
        """
        self._key = key or ""
        self.save()
        until = time.monotonic() + BEGIN_S
        for number in range(self.jobs[0].job if key else 0):
            while (found := self._begun(number, until)) is not None and found[1] in (None, key):
                twin, work = found
                if twin.status != "running":
                    if work == key and twin.status in ("ok", "skipped"):
                        return twin
                    break
                if is_free(self.folder / twin.folder / LOCK):  # it was killed
                    break
                signals.check()
                time.sleep(POLL_S)
        return None

    def _begun(self, number: int, until: float) -> tuple[SweepJob, str | None] | None:
        """Return the record of a job, once it has begun, and the key of its work; None if it has not until then."""
        while (found := self._records.read(number)) is None and time.monotonic() < until:
            signals.check()
            time.sleep(POLL_S)
        return found

    def remember(self, job: SweepJob, key: str | None) -> None:
        """Save the key with the job's record."""
        self._key = key or ""
        self.save()


class Watch:
    """A thread that ends the job, or the process if it has none, when the sweep's process ends or is interrupted."""

    def __init__(self, records: Records, orders: Connection) -> None:
        self._records, self._orders = records, orders
        self._lock, self._is_busy, self._is_over = threading.Lock(), False, False
        threading.Thread(target=self._wait, daemon=True).start()

    def begin(self) -> bool:
        """Begin a job; False if the sweep has ended."""
        with self._lock:
            self._is_busy = not self._is_over
            return self._is_busy

    def end(self) -> None:
        """End a job."""
        with self._lock:
            self._is_busy = False

    def _wait(self) -> None:
        self._records.is_over(wait=True)
        with self._lock:
            self._is_over = True
            if self._is_busy:
                os.kill(os.getpid(), self._records.signal())
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._orders.fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RD)  # ends the wait for another job


def serve(sweep: Path, orders: Connection) -> int:
    """Run jobs until the worker closes the pipe, or the sweep ends."""
    records = Records(sweep)
    register()
    watch = Watch(records, orders)
    try:
        while True:
            try:
                job, composed, folder, words = orders.recv()
            except (EOFError, OSError):
                return 0
            register_named(words)
            objective = math.inf
            if watch.begin():
                _take_gpu(records.about(), composed)
                objective = _run(OneJob(records), job, composed, folder)
                watch.end()
            orders.send(objective)
    finally:
        with signals.held():
            children.dismiss()


def _take_gpu(about: About, composed: DictConfig) -> None:
    """Take a GPU for the job, unless it runs on the CPU or this process has one."""
    kind = None
    with contextlib.suppress(OmegaConfBaseException):  # the job will be refused
        kind = OmegaConf.select(composed, "device.kind")
    if kind is DeviceKind.cpu or gpus.own():
        return
    with signals.held():
        children.dismiss()  # they began without it
    gpus.take(about.visible if about.is_here else os.environ.get(gpus.VISIBLE))


def _run(sweep: OneJob, job: SweepJob, composed: DictConfig, folder: Path) -> float:
    try:
        return run_in_sweep(sweep, job, composed, folder, print_error)
    except SystemExit:  # the job was interrupted
        return math.inf
    finally:
        with signals.held(), contextlib.suppress(LaunchoptError, OSError):
            sweep.save()


def main() -> int:
    """Bind this process to its worker, and serve it."""
    parent, descriptor, sweep = sys.argv[1:]
    end_with(int(parent))
    if number := time_signal():  # Slurm sends it to all processes of a job: the worker acts on it, its children do not
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    cores.take(Records(Path(sweep)).about().on_cores(len(os.sched_getaffinity(0))))
    return serve(Path(sweep), Connection(int(descriptor)))


if __name__ == "__main__":
    end(main)
