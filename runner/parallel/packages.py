"""What differs between the launchers that packages add to Hydra: jobs at once, files, errors, limits of time.

joblib keeps workers, and ends all of them if one dies. submitit starts a worker for each job, and all at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, read_write

from launchopt.errors import ConfigError, one_line

MOST_TEXT = 200  # characters of an error of a launcher


class Joblib:
    """Workers of joblib, each of which runs one job after another."""

    is_here = True  # jobs run on the machine of the sweep's process
    time_limit = ""  # ` (hydra.launcher....)`, the setting by which the launcher limits the time of a job

    def __init__(self, launcher: DictConfig) -> None:
        self._launcher = launcher

    def place(self, folder: Path) -> None:
        """Make the launcher keep its files in `folder`, which the sweep removes at its end."""

    def at_once(self, jobs: int) -> int:
        """Return how many of a sweep's jobs run at the same time on one machine. jobs: all of them."""
        effective: Callable[[int], int] = import_module("joblib").effective_n_jobs
        wanted = self._launcher.n_jobs
        return min(jobs, effective(1 if wanted is None else int(wanted)))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """During this block the launcher returns the error of a job, and waits for the other jobs."""
        yield


class Submitit(Joblib):
    """A worker of submitit for each job."""

    def __init__(self, launcher: DictConfig) -> None:
        super().__init__(launcher)
        self.time_limit = f" (hydra.launcher.timeout_min={launcher.timeout_min})"

    def place(self, folder: Path) -> None:
        """Make the launcher keep its files in `folder`, which the sweep removes at its end."""
        if "%" in str(folder):
            raise ConfigError("hydra.sweep.dir", folder.parent, "submitit takes no folder whose name has a %")
        with read_write(self._launcher):
            self._launcher.submitit_folder = str(folder / "submitit" / "%j")

    def at_once(self, jobs: int) -> int:
        """Return the number of jobs: submitit does not wait for one before it starts the next."""
        return jobs

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """During this block the launcher returns the error of a job, and waits for the other jobs."""
        kind: Any = import_module("submitit.core.core").Job
        whole: Callable[[object], list[JobReturn]] = kind.results

        def results(job: object) -> list[JobReturn]:
            try:
                return whole(job)
            except Exception as error:
                return [JobReturn(status=JobStatus.FAILED, _return_value=RuntimeError(_last_line(error)))]

        kind.results = results
        try:
            yield
        finally:
            kind.results = whole


def _last_line(error: Exception) -> str:
    """Return the last line of what a worker printed, which an error of submitit holds between two rules."""
    text = str(error).partition("You can check full logs")[0]
    lines = [line for line in text.splitlines() if line.strip(" -")]
    return one_line(lines[-1] if lines else type(error).__name__, MOST_TEXT)


_OF_OPTIONS = {"JoblibLauncher": Joblib, "LocalLauncher": Submitit}


def of_launcher(launcher: DictConfig) -> Joblib:
    """Return what is known of a launcher. launcher: its settings, which were checked."""
    return _OF_OPTIONS[str(launcher._target_).rpartition(".")[2]](launcher)
