"""Jobs of Slurm, by submitit: one for each job of the sweep, in an array.

submitit asks `sacct` how jobs ended that left no result. Without accounting it waits for them for ever, so `Queue` asks
`squeue` instead. Slurm's jobs outlive the process that submitted them. So `Queue` cancels those of a sweep that ends,
and a job that begins after that ends at once (`records`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from launchopt.errors import ConfigError, one_line
from launchopt.scratch import scratch
from runner.parallel.packages import MOST_TEXT, Submitit, replaced

OPTION = ("hydra/launcher", "submitit_slurm")
PROGRAMS = ("sbatch", "srun", "squeue", "scancel")
ANSWER_S = 60.0  # patience with Slurm's programs: without a controller, sbatch takes 9 s to say so
LEAST_S, MOST_S = 2.0, 15.0  # between two calls of squeue
RESULT_S = 15.0  # a result may appear so long after the end of its job: file systems of clusters are slow
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}


class Queue:
    """The jobs of a sweep in Slurm's queue. It stands in for submitit's `SlurmInfoWatcher`."""

    def __init__(self) -> None:
        self._ended: dict[str, float] = {}  # time at which it was known, by the id of the job
        self._states: dict[str, str] = {}
        self._began_s = self._asked_s = -MOST_S
        self.is_stopped = False

    def register_job(self, job: str) -> None:
        """Take over a job that was submitted."""
        self._states[job] = "PENDING"
        self._began_s = time.monotonic()

    def is_done(self, job: str, mode: str = "standard") -> bool:
        """Return whether a job has ended, as far as Slurm knows."""
        now = time.monotonic()
        pause = 0.0 if mode == "force" else min(MOST_S, max(LEAST_S, (now - self._began_s) / 2))
        if job not in self._ended and now - self._asked_s >= pause:
            self._ask()
        return job in self._ended

    def get_state(self, job: str, mode: str = "standard") -> str:
        """Return the state of a job by Slurm's word for it."""
        return self._states.get(job, "UNKNOWN")

    def patience_s(self, job: str) -> float:
        """Return how long to wait for the result of a job that has ended."""
        waited = time.monotonic() - self._ended.get(job, time.monotonic())
        return 0.0 if self.is_stopped else max(0.0, RESULT_S - waited)

    def cancel(self, *words: str) -> None:
        """Cancel the jobs that have not ended. words: for scancel."""
        if jobs := sorted({job.partition("_")[0] for job in self._states.keys() - self._ended.keys()}):
            _said(["scancel", "--quiet", *words, *jobs])
        self._asked_s = -MOST_S

    def _ask(self) -> None:
        """Find the jobs that have ended. Slurm forgets a job some minutes after its end."""
        said = _said(["squeue", "-h", "-r", "-t", "all", "-u", str(os.geteuid()), "-o", "%i %T"])
        self._asked_s = time.monotonic()
        if said is None:  # the controller is away: its jobs go on
            return
        found = dict(line.split(maxsplit=1) for line in said.splitlines() if " " in line)
        for job in self._states:
            self._states[job] = found.get(job, "FORGOTTEN")
            if job not in found or found[job] in ENDED:
                self._ended.setdefault(job, self._asked_s)


class Slurm(Submitit):
    """A job of Slurm for each job."""

    is_here = False

    def __init__(self, launcher: DictConfig) -> None:
        super().__init__(launcher)
        self.cores = int(launcher.cpus_per_task or 1)
        self._queue = Queue()

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Ask Slurm whether it would run a job with these settings; ConfigError if not."""
        missing = [each for each in PROGRAMS if shutil.which(each) is None]
        if missing:
            wanted = f"there is no {missing[0]} here; start the sweep on a machine that submits jobs to Slurm"
            raise ConfigError(*OPTION, wanted)
        with scratch() as folder:
            script = self._script(folder)
        try:
            asked = subprocess.run(
                ["sbatch", "--test-only"], input=script, capture_output=True, text=True, timeout=ANSWER_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(*OPTION, f"Slurm has not answered within {ANSWER_S:.0f} s") from None
        if asked.returncode:
            raise ConfigError(*OPTION, f"Slurm takes no job with these settings: {_why(asked.stderr)}")
        yield

    def _script(self, folder: Path) -> str:
        """Return the script of a job, as the launcher makes it."""
        values: Any = OmegaConf.to_container(self._launcher, resolve=True)
        config = import_module("hydra_plugins.hydra_submitit_launcher.config")
        common = {each.name for each in fields(config.BaseQueueConf)}
        for name in ("_target_", "submitit_folder", "max_num_timeout"):
            values.pop(name, None)
        executor: Any = import_module("submitit").AutoExecutor(folder, cluster="slurm")
        try:
            executor.update_parameters(**{k if k in common else f"slurm_{k}": value for k, value in values.items()})
        except (AssertionError, NameError, TypeError, ValueError) as error:
            raise ConfigError(*OPTION, f"submitit takes no such settings: {one_line(error, MOST_TEXT)}") from None
        return str(executor._executor._make_submission_file_text("true", "check"))

    @contextlib.contextmanager
    def waiting(self, has_begun: Callable[[int], bool], in_order: bool) -> Iterator[None]:
        """During this block the launcher waits for all jobs as `Queue` knows them; none outlives an early end."""
        kind: Any = import_module("submitit.slurm.slurm").SlurmJob
        patience = property(lambda job: self._queue.patience_s(job.job_id))
        with replaced(kind, watcher=self._queue, _results_timeout_s=patience), super().waiting(has_begun, in_order):
            try:
                yield
            except BaseException:
                self._queue.cancel()
                raise

    def stop(self) -> None:
        """Cancel the jobs that wait for a machine."""
        self._queue.is_stopped = True
        self._queue.cancel("--state=PENDING")


def _said(call: Sequence[str]) -> str | None:
    """Return what a program of Slurm prints; None if it fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(call, capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout
    return None


def _why(stderr: str) -> str:
    """Return the line of what sbatch says that tells most: that of a fatal error, or the first."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in stderr.splitlines() if line.strip()]
    fatal = [line.removeprefix("fatal: ") for line in lines if line.startswith("fatal: ")]
    return one_line([*fatal, *lines, "it gives no reason"][0], MOST_TEXT)
