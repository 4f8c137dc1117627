"""What differs between the launchers that packages add to Hydra: jobs at once, files, errors, limits of time.

joblib keeps workers, and ends all of them if one dies. submitit starts a worker for each job, and all at once. Those
that hand jobs to a cluster are in `slurm` and `ray_cluster`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, read_write

from launchopt.errors import ConfigError, last_line, one_line

MOST_TEXT = 200  # characters of an error of a launcher


@contextlib.contextmanager
def replaced(owner: object, **attributes: object) -> Iterator[None]:
    """Give a class or module of a package other attributes during this block."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def failed(why: str) -> JobReturn:
    """Return what a launcher returns for a job whose worker died."""
    return JobReturn(status=JobStatus.FAILED, _return_value=RuntimeError(why))


class Package:
    """A launcher that a package adds to Hydra."""

    module: ClassVar[str]  # that it needs
    is_here = True  # jobs run on the machine of the sweep's process, with the GPUs that this process sees
    cores = 0  # that a cluster gives each job; 0: jobs divide those of the machine
    time_limit = ""  # ` (hydra.launcher....)`, the setting by which the launcher limits the time of a job

    def __init__(self, launcher: DictConfig) -> None:
        self._launcher = launcher

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Reach the machines of the jobs during this block; ConfigError if that, or any job there, is impossible."""
        yield

    def place(self, folder: Path) -> None:
        """Make the launcher keep its files in `folder`, which the sweep removes at its end."""

    def at_once(self, jobs: int) -> int:
        """Return how many of a sweep's jobs may run at the same time on one machine. jobs: all of them."""
        return jobs

    @contextlib.contextmanager
    def waiting(self, has_begun: Callable[[int], bool], in_order: bool) -> Iterator[None]:
        """During this block the launcher returns the error of a job, and waits for the other jobs.

        has_begun: whether the job with a number has begun. in_order: jobs should begin in the order of their numbers.
        """
        yield

    def stop(self) -> None:
        """Begin no more jobs. Those that have begun end by themselves."""


class Joblib(Package):
    """Workers of joblib, each of which runs one job after another."""

    module = "joblib"

    def at_once(self, jobs: int) -> int:
        """Return the number of workers."""
        effective: Callable[[int], int] = import_module("joblib").effective_n_jobs
        wanted = self._launcher.n_jobs
        return min(jobs, effective(1 if wanted is None else int(wanted)))


class Submitit(Package):
    """A worker of submitit for each job."""

    module = "submitit"

    def __init__(self, launcher: DictConfig) -> None:
        super().__init__(launcher)
        self.time_limit = f" (hydra.launcher.timeout_min={launcher.timeout_min})"

    def place(self, folder: Path) -> None:
        """Make the launcher keep its files in `folder`, which the sweep removes at its end."""
        if "%" in str(folder):
            raise ConfigError("hydra.sweep.dir", folder.parent, "submitit takes no folder whose name has a %")
        with read_write(self._launcher):
            self._launcher.submitit_folder = str(folder / "submitit" / "%j")

    @contextlib.contextmanager
    def waiting(self, has_begun: Callable[[int], bool], in_order: bool) -> Iterator[None]:
        """During this block the launcher returns the error of a job, and waits for the other jobs."""
        kind: Any = import_module("submitit.core.core").Job
        whole: Callable[[object], list[JobReturn]] = kind.results

        def results(job: object) -> list[JobReturn]:
            try:
                return whole(job)
            except Exception as error:
                return [failed(_said(error))]

        with replaced(kind, results=results):
            yield


def _said(error: Exception) -> str:
    """Return the last line of what a worker printed, which an error of submitit holds between two rules."""
    text = str(error).partition("You can check full logs")[0]
    lines = "\n".join(line for line in text.splitlines() if line.strip(" -"))
    return one_line(last_line(lines) or type(error).__name__, MOST_TEXT)
