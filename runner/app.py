"""The Hydra application. In: a composed config. Out: folders of results.

Hydra calls `Precheck` before it makes a folder. `Precheck` refuses a single run with bad input, and a sweep whose
overrides do not compose or whose folder is in use. If one job of a sweep is refused, it gets a manifest with the
reason, and the other jobs run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from launchopt.errors import ConfigError, Interrupted, LaunchoptError, RunError
from launchopt.recording.manifest import read_manifest, write_manifest
from runner.config.schema import register, settled, to_config
from runner.config.tables import conf_folder
from runner.help import print_help
from runner.importing import uncollected
from runner.run import children
from runner.run.folder_lock import FolderLock, check_writable
from runner.run.resume import clear, config_hash, earlier_run, is_done, is_finished, is_timed, newest_sweep, plain
from runner.run.sweep import Sweep, SweepJob
from runner.worker.child import without_pandas

if TYPE_CHECKING:
    from hydra.conf import HydraConf

    from runner.plan.plan import Plan

RUN_KEY, SWEEP_KEY = "hydra.run.dir", "hydra.sweep.dir"


@dataclass
class Start:
    """The state of one start of the application, from Hydra's first call to the end."""

    exit_code: int = 0  # the highest exit code of all jobs
    plan: Plan | None = None  # plan of a single run; a sweep plans each job later
    sweep: Sweep | None = None
    locks: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def hold(self, folder: Path, key: str) -> FolderLock:
        """Lock the folder against other processes until the end."""
        lock = self.locks.enter_context(FolderLock(folder, key))
        if lock.notice:
            print(lock.notice)
        return lock


_start = Start()


def fail(error: LaunchoptError) -> None:
    """Print an error as one line on standard error. The process later ends with the highest exit code of its errors."""
    _start.exit_code = max(_start.exit_code, error.exit_code)
    print(f"error: {error}", file=sys.stderr)


class Precheck(Callback):
    """Checks of a command line before Hydra makes a folder."""

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        """Plan the run and lock its folder. End the process if that fails, or if the run is finished already."""
        with _refusing():
            choices = config.hydra.runtime.choices
            is_published = any(choices.get(group) for group in ("experiment", "table"))
            self._prepare_run(_without_hydra(config), config.hydra.run, is_published)

    def _prepare_run(self, task: DictConfig, place: DictConfig, is_published: bool) -> None:
        folder = Path(place.dir)
        check_writable(RUN_KEY, folder)
        settings = to_config(task)
        if settings.resume and is_timed(place):
            raise ConfigError("resume", "true", f"a single run is resumed in a folder of its own: give {RUN_KEY}=...")
        if is_there := folder.exists():
            _start.hold(folder, RUN_KEY)
        with uncollected():
            from runner.plan.base import plan_with_base
        _start.plan = plan = _plan(task) if is_published else plan_with_base(settings, task)
        if settings.resume and is_done(folder, plan.composed, RUN_KEY):
            print(f"skipped: finished before, in {folder}")
            raise SystemExit(0)
        if not is_there:
            _start.hold(folder, RUN_KEY)

    def on_multirun_start(self, config: DictConfig, **kwargs: object) -> None:
        """Find the sweep's folder and lock it."""
        with _refusing():
            overrides = _typed(config.hydra)
            if config.resume and is_timed(config.hydra.sweep):
                parent = Path(config.hydra.sweep.dir).parent
                _place_sweep(config, newest_sweep(parent, overrides))
            folder = Path(config.hydra.sweep.dir)
            check_writable(SWEEP_KEY, folder)
            lock = _start.hold(folder, SWEEP_KEY)
            _start.sweep = Sweep(Path.cwd() / folder, overrides, bool(lock.made))


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """End the process on a LaunchoptError: Hydra would only warn of an exception in a callback, and continue."""
    try:
        yield
    except LaunchoptError as error:
        fail(error)
        raise SystemExit(error.exit_code) from None


def _typed(about: DictConfig | HydraConf) -> list[str]:
    """Return the overrides as they were typed, interpolations included."""
    overrides = OmegaConf.to_container(about.overrides.task, resolve=False)
    assert isinstance(overrides, list)
    return list(map(str, overrides))


def _place_sweep(config: DictConfig, folder: Path) -> None:
    """Make Hydra write the sweep and its jobs into `folder`."""
    print(f"resuming {folder}")
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = str(folder)
        config.hydra.overrides.hydra.append(f"{SWEEP_KEY}='{quoted}'")


def _without_hydra(config: DictConfig) -> DictConfig:
    task = config.copy()
    OmegaConf.set_readonly(task, False)
    with open_dict(task):
        task.pop("hydra")
    return task


def run_job(composed: DictConfig) -> None:
    """Run one job for Hydra. It raises no Exception, with which Hydra would end the process after the other jobs."""
    about = HydraConfig.get()
    folder, overrides = Path(about.runtime.output_dir), _typed(about)
    sweep = _start.sweep
    if sweep is None:
        _run(_start.plan or _plan(composed), folder, overrides)
        return
    job = SweepJob(about.job.num, overrides)
    try:
        _run_in_sweep(sweep, job, settled(composed), folder)
    except LaunchoptError as error:
        job.ended("refused", error)
        fail(error)
    except Exception as error:  # a mistake of this program; the other jobs still run
        job.ended("failed", _unforeseen(folder, error))
    if job.status == "interrupted":
        raise SystemExit(Interrupted.exit_code)


def _run_in_sweep(sweep: Sweep, job: SweepJob, composed: DictConfig, folder: Path) -> None:
    """Skip or run a job, and record how it ended. Raises a LaunchoptError for a job that is refused."""
    header, shown = f"job {job.job}: {' '.join(job.overrides)}", Path(_shown(folder))
    try:
        sweep.add(job, folder)
        if children.interrupted():
            raise Interrupted(f"interrupted before job {job.job}")
        config = plain(composed)
        job.config_hash = config_hash(config) if config else None
        is_skipped = config.get("resume") and is_done(shown, config, SWEEP_KEY)
    except LaunchoptError:
        print(f"\n{header}")
        raise
    if is_skipped:
        job.ended("skipped")
        print(f"job {job.job} is skipped, finished before: {sweep.own(job)}")
        return
    print(f"\n{header}")
    sweep.save()
    with FolderLock(shown, SWEEP_KEY):
        try:
            plan = _plan(composed)
        except LaunchoptError as error:
            _note_refusal(folder, job, error)
            raise
        failure = _run(plan, folder, job.overrides)
    job.ended("failed" if failure else "ok", failure)


def _plan(composed: DictConfig) -> Plan:
    alone = settled(composed)
    settings = to_config(alone)
    from runner.plan.plan import make_plan

    return make_plan(settings, alone)


def _note_refusal(folder: Path, job: SweepJob, error: LaunchoptError) -> None:
    """Write a manifest with the reason, unless the folder holds results of a finished run."""
    if not is_finished(folder, earlier_run(folder)):
        clear(folder)
        write_manifest(folder, {"status": "refused", "error": str(error), "overrides": job.overrides})


def _run(plan: Plan, folder: Path, overrides: list[str]) -> LaunchoptError | None:
    """Execute a plan into its folder and print its summary. Return the error of the run; None if it succeeded."""
    children.start_early()  # children import modules while this process does
    with uncollected():
        without_pandas()
        from launchopt.recording import results
        from runner.pager import console
        from runner.run.result_screen import print_results
        from runner.run.run import execute

    shown, failure = _shown(folder), None
    rows: list[results.Row] = []
    try:
        if (folder / "manifest.json").exists():
            print(f"{shown}: the earlier run in there is replaced")
            clear(folder)
        rows = execute(plan, folder, overrides).rows
    except LaunchoptError as error:
        failure = error
        fail(error)
        _settle(folder, error)
        rows = results.read_summaries([folder]) if (folder / "summary.parquet").exists() else []
    except Exception as error:  # a mistake of this program: its traceback goes to the folder
        failure = _unforeseen(folder, error)
    print_results(rows, plan.config.mode.name, shown, console())
    return failure


def _unforeseen(folder: Path, error: Exception) -> LaunchoptError:
    """Write the traceback of a mistake of this program into the folder, and return the error to report."""
    fail(failure := RunError(f"{type(error).__name__}: {error}; see traceback.txt in {_shown(folder)}"))
    with contextlib.suppress(OSError):
        (folder / "traceback.txt").write_text("".join(traceback.format_exception(error)))
    _settle(folder, failure)
    return failure


def _settle(folder: Path, failure: LaunchoptError) -> None:
    """Record the failure in the manifest, unless that says interrupted or refused."""
    with contextlib.suppress(OSError, LaunchoptError):  # on a full disk the line on standard error must suffice
        about = read_manifest(folder) if (folder / "manifest.json").exists() else {}
        if about.get("status") not in ("interrupted", "refused"):
            write_manifest(folder, {"error": str(failure)} | about | {"status": "failed"})


def _shown(folder: Path) -> str:
    """Return the folder as the user would type it."""
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compose and run. Return 0 for success, 1 for a failed run, 2 for bad input, 130 for an interrupt.

    A sweep returns the highest code of its jobs.
    """
    global _start
    _start = Start()
    register()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if (code := print_help(words)) is not None:
        return code
    folder = conf_folder()
    sys.argv = [sys.argv[0], *words]
    where = str(folder) if folder else "pkg://runner.conf"
    try:
        hydra.main(version_base="1.3", config_path=where, config_name="config")(run_job)()
    except KeyboardInterrupt:
        if _start.sweep is not None:
            _start.sweep.stop()
        raise
    finally:
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
            try:
                sweep.end()
            finally:  # also if a full disk made `end` fail
                print("\n" + "\n".join(sweep.lines(_shown(sweep.folder))))
        elif sweep is not None and sweep.is_new:
            (sweep.folder / "multirun.yaml").unlink(missing_ok=True)  # Hydra's file; the sweep did not compose
    except LaunchoptError as error:
        fail(error)
    finally:
        _start.locks.close()
