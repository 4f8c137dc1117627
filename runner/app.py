"""The Hydra application. In: a composed config. Out: folders of results.

Hydra calls `Precheck` before it makes a folder. It refuses a single run with bad input, and a sweep whose overrides do
not compose or whose folder is in use. A job of a sweep that is refused gets a manifest with the reason; the others run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from launchopt.errors import ConfigError, Interrupted, LaunchoptError
from launchopt.messages import print_error, say
from launchopt.reading.ownership import MULTIRUN, SWEEP
from runner.config.against import settled
from runner.config.composed import has_mode, typed, without_hydra
from runner.config.launchers import LAUNCHER, SWEEPER, check_unused, is_other
from runner.config.loading import start
from runner.config.objects import to_config
from runner.config.tables import require_gpu
from runner.ending.signals import how_stopped, signals, stop_code
from runner.help.settings import print_help
from runner.importing import uncollected
from runner.run import children
from runner.run.executing import execute_into, objective_of, shown_path
from runner.run.folder_lock import FolderLock, check_writable, chosen_folder
from runner.run.resume import OUTPUTS, is_done, is_timed, require_own
from runner.run.sweep import Sweep, SweepJob, checked_params, place_resumed
from runner.sweep_jobs import SWEEP_KEY, plan_of, refuse_in_sweep, run_in_sweep

if TYPE_CHECKING:
    from runner.plan.plan import Plan

RUN_KEY = "hydra.run.dir"


@dataclass
class Start:
    """The state of one start of the application, from Hydra's first call to the end."""

    exit_code: int = 0  # the highest exit code of all jobs
    plan: Plan | None = None  # plan of a single run; a sweep plans each job later
    sweep: Sweep | None = None
    folder: Path | None = None  # of the results, once the settings have named one
    locks: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def hold(self, folder: Path, key: str) -> FolderLock:
        """Lock the folder against other processes until the end."""
        with signals.held():
            lock = self.locks.enter_context(FolderLock(folder, key))
        if lock.notice:
            say(lock.notice)
        return lock


_start = Start()


def folder() -> Path | None:
    """Return the folder of the results of the last start; None if its settings were refused before it had one."""
    return None if _start.folder is None else _start.folder.absolute()


def fail(error: LaunchoptError) -> None:
    """Print an error as one line on standard error. The process later ends with the highest exit code of its errors."""
    _start.exit_code = max(_start.exit_code, error.exit_code)
    print_error(error)


class Precheck(Callback):
    """Checks of a command line before Hydra makes a folder."""

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        """Plan the run and lock its folder. End the process if that fails, or if the run is finished already."""
        with _refusing():
            check_unused(config.hydra)
            is_published = any(config.hydra.runtime.choices.get(group) for group in ("experiment", "table"))
            require_gpu(config, words := typed(config.hydra))
            self._prepare_run(without_hydra(config), config.hydra.run, is_published, has_mode(words))

    def _prepare_run(self, task: DictConfig, place: DictConfig, is_published: bool, names_mode: bool) -> None:
        folder = chosen_folder(RUN_KEY, place.dir)
        check_writable(RUN_KEY, folder)
        settings = to_config(task)
        if settings.resume and is_timed(place):
            raise ConfigError("resume", "true", f"a single run is resumed in a folder of its own: give {RUN_KEY}=...")
        if is_there := folder.exists():
            require_own(RUN_KEY, folder, OUTPUTS, force=settings.force)
            _start.hold(folder, RUN_KEY)
        with uncollected():
            from runner.auto.resolving import plan_of_run
        _start.plan = plan = plan_of_run(task, is_published, names_mode)
        _start.folder = folder
        if settings.resume and is_done(folder, plan.composed, RUN_KEY, plan.notices):
            say(f"skipped: finished before, in {folder}")
            raise SystemExit(0)
        if not is_there:
            _start.hold(folder, RUN_KEY)

    def on_multirun_start(self, config: DictConfig, **kwargs: object) -> None:
        """Find the sweep's folder and lock it."""
        with _refusing():
            overrides = typed(config.hydra)
            chosen_folder(SWEEP_KEY, config.hydra.sweep.dir)
            require_gpu(config, overrides)
            if config.resume and is_timed(config.hydra.sweep):
                place_resumed(config, overrides)
            folder = Path(config.hydra.sweep.dir)
            check_writable(SWEEP_KEY, folder)
            params = checked_params(config, overrides)
            require_own(SWEEP_KEY, folder, (SWEEP, MULTIRUN), force=bool(config.force))
            package = None
            if is_other(LAUNCHER, config.hydra):
                from runner.parallel.launching import reached, watched

                package = _start.locks.enter_context(reached(config.hydra))
            lock, _start.folder = _start.hold(folder, SWEEP_KEY), folder
            (folder / MULTIRUN).unlink(missing_ok=True)  # Hydra would write through a link, or wait for a named pipe
            is_planned = not is_other(SWEEPER, config.hydra)
            _start.sweep = Sweep(Path.cwd() / folder, overrides, bool(lock.made), params, is_planned)
            if package:
                _start.locks.enter_context(watched(package, config, _start.sweep, fail))


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """End the process on a LaunchoptError: Hydra would only warn of an exception in a callback, and continue."""
    try:
        yield
    except LaunchoptError as error:
        signals.check_lost()
        fail(error)
        raise SystemExit(error.exit_code) from None


def run_job(composed: DictConfig) -> float:
    """Run one job for Hydra, and return its objective. Errors are printed here: Hydra would show a traceback."""
    about = HydraConfig.get()
    folder, overrides, sweep = Path(about.runtime.output_dir), typed(about), _start.sweep
    if sweep is None and about.mode is not RunMode.MULTIRUN:
        return _run(_start.plan or plan_of(settled(composed)), folder, overrides)
    job = SweepJob(about.job.num, overrides)
    if sweep is not None:
        return run_in_sweep(sweep, job, composed, folder, fail)
    from runner.parallel.worker import handed_on  # this is a worker of a launcher

    return handed_on(job, composed, folder, Path(about.sweep.dir))


def refuse_job(composed: DictConfig, error: OSError) -> None:
    """Refuse a job of a sweep whose folder cannot be made. The other jobs run."""
    assert _start.sweep is not None
    refuse_in_sweep(_start.sweep, composed, error, fail)


def _run(plan: Plan, folder: Path, overrides: list[str]) -> float:
    """Execute the plan of a single run, print its results and return its objective."""
    rows, _ = execute_into(plan, folder, overrides, fail)
    from runner.run.screens.run_results import print_results
    from runner.screen.pager import console

    config = plan.config
    print_results(rows, config.mode.label, shown_path(folder), console(), config.against, has_orders=bool(plan.orders))
    return objective_of(rows, config.against)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compose and run. Return 0 for success, 1 for a failed run, 2 for bad input, 128 + its number for a signal.

    A sweep returns the highest code of its jobs.
    """
    global _start
    _start = Start()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if (code := print_help(words)) is not None:
        return code
    try:
        start(words, run_job, refuse_job)
    except KeyboardInterrupt as stop:
        if _start.sweep is not None:
            _start.sweep.stop(Interrupted(how_stopped(stop), stop_code(stop)))
        raise
    finally:
        with signals.held():
            try:
                _close()
            finally:
                children.dismiss()
    return _start.exit_code


def _close() -> None:
    """Print the results of the sweep, and unlock the folder."""
    sweep = _start.sweep
    try:
        if sweep is not None and sweep.jobs:
            from runner.run.screens.sweep_results import end_sweep

            end_sweep(sweep)
        elif sweep is not None and sweep.is_new:
            (sweep.folder / MULTIRUN).unlink(missing_ok=True)  # of a sweep whose settings did not compose
    except LaunchoptError as error:
        fail(error)
    finally:
        _start.locks.close()
