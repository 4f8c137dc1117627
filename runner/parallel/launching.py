"""The sweep's process while a launcher runs the jobs elsewhere: it merges their records, and ends them on a signal.

The launcher is called in a thread, so that the main thread takes signals at once. Processes that the thread starts
inherit that SIGINT, SIGTERM and SIGHUP are blocked: a terminal sends them to every process, and would end the workers
before their jobs.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.utils import get_class
from omegaconf import DictConfig

from launchopt.errors import DataError, LaunchoptError, RunError, one_line
from launchopt.messages import say
from launchopt.recording.manifest import read_manifest
from launchopt.recording.results import read_summaries
from runner.config.launchers import LAUNCHER, not_installed
from runner.ending.signals import stop_code
from runner.parallel.packages import Joblib, Package, Submitit, replaced
from runner.parallel.ray_cluster import Ray
from runner.parallel.records import About, Records
from runner.parallel.slurm import Slurm
from runner.plan.gpus import VISIBLE
from runner.run.leftovers import LOCK, is_free, tidy
from runner.run.screens.sweep_results import job_line
from runner.run.sweep import SAME, Sweep, SweepJob, place_at
from runner.screen.pager import Voice

POLL_S = 0.1
KILLED = "its process was killed"
_HELD = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

_OF_OPTIONS: dict[str, type[Package]] = {
    "joblib": Joblib,
    "submitit_local": Submitit,
    "submitit_slurm": Slurm,
    "ray": Ray,
}
Fail = Callable[[LaunchoptError], None]


@contextlib.contextmanager
def reached(hydra: DictConfig) -> Iterator[Package]:
    """Yield the launcher of a sweep, and reach its machines during this block; ConfigError if that is impossible."""
    option = str(hydra.runtime.choices[LAUNCHER])
    package = _OF_OPTIONS[option](hydra.launcher)
    if find_spec(package.module) is None:
        raise not_installed(LAUNCHER, option)
    with package.reached():
        yield package


@contextlib.contextmanager
def watched(package: Package, config: DictConfig, sweep: Sweep, fail: Fail) -> Iterator[None]:
    """Watch the jobs that a launcher runs during this block. fail: prints an error."""
    kind: Any = get_class(str(config.hydra.launcher._target_))
    whole, records = kind.launch, Records(sweep.folder)
    place_at(config, sweep.folder)  # workers may have another working directory
    package.place(records.folder)

    def launch(self: object, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        count = len(job_overrides)
        visible = os.environ.get(VISIBLE) if package.is_here else None
        at_once, cores = package.at_once(count), package.cores
        records.tell(About(sweep.varies_batching, at_once, cores, package.is_here, visible, str(Path.cwd())))
        jobs = Jobs(sweep, records, range(initial_job_idx, initial_job_idx + count), fail, package)
        with package.waiting(lambda number: records.read(number) is not None, sweep.varies_batching):
            return jobs.run(lambda: whole(self, job_overrides, initial_job_idx))

    with replaced(kind, launch=launch), records.opened():
        yield


class Jobs:
    """The jobs of one call of a launcher."""

    def __init__(self, sweep: Sweep, records: Records, numbers: Sequence[int], fail: Fail, package: Package) -> None:
        self._sweep, self._records, self._fail, self._package = sweep, records, fail, package
        self._is_stopped = False
        self._numbers, self._open = numbers, list(numbers)  # all of them, and those that have not ended
        self._begun: dict[int, SweepJob] = {}

    def run(self, launch: Callable[[], Sequence[JobReturn]]) -> Sequence[JobReturn]:
        """Return what Hydra's sweeper takes: the objective of each job, infinite without results."""
        errors: list[BaseException] = []

        def act() -> None:
            try:
                for each in launch():
                    if each.status is JobStatus.FAILED:
                        errors.append(each._return_value)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=act, name="launchopt-launcher", daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            self._wait(thread)
        except KeyboardInterrupt as stop:
            self._is_stopped = True
            self._records.end(stop_code(stop) - 128)
            self._package.stop()
            self._wait(thread)
            raise
        self._settle(errors)
        values = {job.job: job.objective for job in self._sweep.jobs}
        ended = [values.get(number, math.inf) for number in self._numbers]
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=each) for each in ended]

    def _wait(self, thread: threading.Thread) -> None:
        while thread.is_alive():
            thread.join(POLL_S)
            self._merge()
        while any(self._runs(job) for job in self._begun.values()):  # the launcher has lost it
            time.sleep(POLL_S)
            self._merge()
        self._merge()  # what they said since

    def _runs(self, job: SweepJob) -> bool:
        """Return whether a process still runs the job."""
        lock = self._sweep.folder / job.folder / LOCK
        return job.job in self._open and lock.exists() and not is_free(lock)

    def _merge(self) -> None:
        """Take over what the records say, print the jobs that have ended, and save the sweep if anything changed."""
        changed = False
        for number in list(self._open):
            if (found := self._records.read(number)) is None:
                continue
            job = found[0]
            before = self._begun.get(number)
            if before is not None and before == job:
                continue
            changed = True
            if job.status == "interrupted" and not self._is_stopped:
                job.error = f"{job.error}; the launcher ended it{self._package.time_limit}"
            self._sweep.replace(job)
            self._begun[number] = job
            if job.status != "running":
                self._open.remove(number)
                self._print(job)
        if changed:
            self._sweep.save()

    def _settle(self, errors: Sequence[BaseException]) -> None:
        """Record the jobs that never said how they ended, since the launcher or their worker died."""
        lost = [job for number, job in self._begun.items() if number in self._open]
        for job in lost:
            job.ended("failed", RunError(KILLED))
            self._sweep.replace(job)
            self._print(job)
        if errors:
            why = one_line(f"{type(errors[0]).__name__}: {errors[0]}", 300)
            self._fail(RunError(f"the launcher could not run all jobs: {why}"))
        if lost or errors:
            self._sweep.save()

    def _print(self, job: SweepJob) -> None:
        sweep, folder = self._sweep, self._sweep.folder / job.folder
        if job.status in ("ok", "failed"):
            self._notices(job)
        if job.error is not None:
            error = RunError(job.error)
            error.exit_code = job.exit_code
            sweep.fail_once(error, self._fail) if job.status == "refused" else self._fail(error)
        if job.status == "ok":
            with contextlib.suppress(LaunchoptError):
                say(f"{sweep.label(job)}: {job_line(read_summaries([folder]))}")
        elif job.status == SAME:
            say(f"{sweep.label(job)}: the same work as job {job.same_as}, which stands for it")
        elif job.status == "skipped":
            say(sweep.skipped(job))
        else:
            say(f"{sweep.label(job)}: {job.status}")

    def _notices(self, job: SweepJob) -> None:
        """Print what the job's own process told nobody."""
        folder = self._sweep.folder / job.folder
        if job.error == KILLED:
            Voice(printed=self._sweep.printed).notices(tidy(folder))
        with contextlib.suppress(DataError, LaunchoptError):
            found = read_manifest(folder).get("notices")
            Voice(printed=self._sweep.printed).notices([str(each) for each in found] if isinstance(found, list) else [])
