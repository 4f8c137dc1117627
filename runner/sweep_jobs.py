"""The jobs of a sweep: each is run, skipped or refused, and the others run whatever becomes of it.

`fail` prints an error and keeps its exit code.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from launchopt.errors import LaunchoptError
from launchopt.files import reason
from launchopt.messages import say
from runner.config.against import settled
from runner.config.composed import typed
from runner.ending.signals import signals
from runner.run.executing import Fail, execute_into, note_refusal, objective_in, objective_of, shown_path, unforeseen
from runner.run.folder_lock import FolderError, FolderLock
from runner.run.resume import OUTPUTS, config_hash, is_done, plain, require_own, work_key
from runner.run.sweep import Sweep, SweepJob

if TYPE_CHECKING:
    from runner.plan.plan import Plan

SWEEP_KEY = "hydra.sweep.dir"


def run_in_sweep(sweep: Sweep, job: SweepJob, composed: DictConfig, folder: Path, fail: Fail) -> float:
    """Run one job of a sweep, and return its objective. SystemExit if a signal ended it."""
    with _ending(sweep, job, folder, fail):
        signals.check()  # Ctrl-C during a repeat that failed
        _run_in_sweep(sweep, job, settled(composed), folder, fail)
    if job.status == "interrupted":
        raise SystemExit(job.exit_code)
    return job.objective


def refuse_in_sweep(sweep: Sweep, composed: DictConfig, error: OSError, fail: Fail) -> None:
    """Refuse a job of a sweep whose folder cannot be made. The other jobs run."""
    folder = Path(composed.hydra.runtime.output_dir)
    job = SweepJob(composed.hydra.job.num, typed(composed.hydra))
    with _ending(sweep, job, folder, fail):
        signals.check_lost()
        sweep.add(job, folder)
        raise FolderError(SWEEP_KEY, Path(shown_path(folder)), f"cannot be made as a folder ({reason(error)})")


@contextlib.contextmanager
def _ending(sweep: Sweep, job: SweepJob, folder: Path, fail: Fail) -> Iterator[None]:
    """Record a job that is refused or that fails, and remove its folder if it is empty."""
    try:
        yield
    except LaunchoptError as error:
        signals.check_lost()
        job.ended("refused", error)
        sweep.fail_once(error, fail)
        say(f"{sweep.label(job)}: {job.status}")
    except Exception as error:  # a mistake of this program; the other jobs still run
        signals.check_lost()
        job.ended("failed", unforeseen(folder, error, fail))
    finally:
        with contextlib.suppress(OSError):  # usually: it is not empty
            folder.rmdir()


def _run_in_sweep(sweep: Sweep, job: SweepJob, composed: DictConfig, folder: Path, fail: Fail) -> None:
    """Skip or run a job, and record how it ended. Raises a LaunchoptError for a job that is refused."""
    shown = Path(shown_path(folder))
    sweep.add(job, folder)
    from runner.auto.resolving import resolved

    task, notices = resolved(composed)
    config = plain(task)
    job.config_hash = config_hash(config) if config else None
    require_own(SWEEP_KEY, shown, OUTPUTS, force=bool(config.get("force")))
    if config.get("resume") and is_done(shown, config, SWEEP_KEY, notices):
        job.ended("skipped")
        job.objective = objective_in(shown)
        if sweep.varies_batching:
            sweep.remember(job, work_key(plan_of(composed)))
        say(sweep.skipped(job))
        return
    sweep.save()
    with contextlib.ExitStack() as locks:
        with signals.held():
            locks.enter_context(FolderLock(shown, SWEEP_KEY))
        try:
            plan = plan_of(composed)
        except LaunchoptError as error:
            note_refusal(folder, job.overrides, error)
            raise
        key = work_key(plan) if sweep.varies_batching else None
        if twin := sweep.twin_of(key):
            job.is_like(twin)
            say(f"{sweep.label(job)}: the same work as job {twin.job}, which stands for it")
        else:
            sweep.remember(job, key)
            _run_job(plan, sweep, job, folder, fail)


def _run_job(plan: Plan, sweep: Sweep, job: SweepJob, folder: Path, fail: Fail) -> None:
    """Run a job of a sweep, and print a line about it."""
    began_s = time.monotonic()
    rows, failure = execute_into(plan, folder, job.overrides, fail, sweep.name(job), sweep.printed)
    job.ended("failed" if failure else "ok", failure)
    job.objective = objective_of(rows, plan.config.against)
    from runner.run.screens.sweep_results import job_line

    text = job_line(rows) if failure is None else job.status
    say(f"{sweep.label(job)}: {text}; took {time.monotonic() - began_s:.1f} s")


def plan_of(composed: DictConfig) -> Plan:
    """Return the plan of a settled config. The modules of the plan are loaded here: --help needs none of them."""
    from runner.auto.resolving import plan_of_job

    return plan_of_job(composed)
