"""The Hydra application: composed config in, folders of results out.

Bad input is refused before a folder is made: a single run in `Precheck`, which Hydra calls before it creates one;
a sweep's job by a manifest that says why, so that the other jobs go on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from launchopt.errors import Interrupted, LaunchoptError, RunError
from runner import children
from runner.help import conf_folder, help_text, mode_lines
from runner.schema import register, to_config

exit_code = 0  # of the process: the worst that a job ended with
_prechecked: dict[str, Any] = {}


def fail(error: LaunchoptError) -> None:
    """One line on standard error; the process will end with the error's exit code."""
    global exit_code
    exit_code = max(exit_code, error.exit_code)
    print(f"error: {error}", file=sys.stderr)


class Precheck(Callback):
    """Refuses a single run's bad input before Hydra makes its folder."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Plan the run; exit where that fails."""
        try:
            _writable("hydra.run.dir", Path(config.hydra.run.dir))
            _prechecked["plan"] = _plan(_without_hydra(config))
        except LaunchoptError as error:
            fail(error)
            raise SystemExit(error.exit_code) from None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check that the sweep's folder can be made."""
        try:
            _writable("hydra.sweep.dir", Path(config.hydra.sweep.dir))
        except LaunchoptError as error:
            fail(error)
            raise SystemExit(error.exit_code) from None


def _without_hydra(config: DictConfig) -> DictConfig:
    task = config.copy()
    OmegaConf.set_readonly(task, False)
    with open_dict(task):
        task.pop("hydra")
    return task


def _writable(key: str, folder: Path) -> None:
    """RunError where `folder` cannot be made or written to."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        problem = "is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        problem = "cannot be written to"
    else:
        return
    error = RunError(f"{key}={folder}: {existing} {problem}; choose another output folder")
    error.exit_code = 2
    raise error


def _plan(composed: DictConfig) -> Any:
    config = to_config(composed)
    from runner.plan import make_plan

    return make_plan(config, composed)


def run_job(composed: DictConfig) -> None:
    """One job, as Hydra calls it."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    overrides = list(HydraConfig.get().overrides.task)
    is_sweep = HydraConfig.get().mode is RunMode.MULTIRUN
    if is_sweep:
        print(f"\njob {HydraConfig.get().job.num}: {' '.join(overrides)}")
    try:
        plan = _prechecked.pop("plan", None) or _plan(composed)
    except LaunchoptError as error:
        from launchopt.results import write_manifest

        write_manifest(folder, {"status": "refused", "error": str(error), "overrides": overrides})
        fail(error)
        return
    children.start_early()  # they import while this process does
    from launchopt import results
    from runner.run import execute
    from runner.terminal import console, summary_table

    out = console()
    try:
        rows = execute(plan, folder, overrides).rows
    except LaunchoptError as error:
        fail(error)
        rows = results.read_summaries([folder]) if (folder / "summary.parquet").exists() else []
        if isinstance(error, Interrupted) and is_sweep:
            raise SystemExit(error.exit_code) from None
    if rows:
        out.print(summary_table(rows))
    out.print(_shown(folder), soft_wrap=True, markup=False)


def _shown(folder: Path) -> str:
    """The folder as the user would type it."""
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compose, run, and say how it went: 0 fine, 1 a run failed, 2 bad input, 130 interrupted."""
    register()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in words or "-h" in words:
        return _help([word for word in words if not word.startswith("-")])
    if "mode=help" in words:
        print("\n".join(["Modes: what one launch means.", *mode_lines()]))
        return 0
    folder = conf_folder()
    sys.argv = [sys.argv[0], *words]
    where = str(folder) if folder else "pkg://runner.conf"
    try:
        hydra.main(version_base="1.3", config_path=where, config_name="config")(run_job)()
    finally:
        children.dismiss()
    return exit_code


def _help(overrides: list[str]) -> int:
    try:
        print(help_text(overrides))
    except HydraException as error:
        print(error, file=sys.stderr)
        return 1
    return 0
