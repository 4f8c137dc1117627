"""One job executed into its folder, however it ends: rows, and the error that the user reads.

`fail` prints an error and keeps its exit code.
"""

from __future__ import annotations

import contextlib
import math
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from launchopt.errors import DataError, Interrupted, LaunchoptError, RunError
from launchopt.files import write_atomically
from launchopt.messages import say
from launchopt.plugins.found import described
from launchopt.recording.manifest import read_manifest, write_manifest
from runner.ending.signals import how_stopped, signals, stop_code
from runner.importing import uncollected
from runner.run import children
from runner.run.resume import clear, earlier_run
from runner.worker.child import without_pandas

if TYPE_CHECKING:
    from launchopt.recording.manifest import Manifest
    from launchopt.recording.results import Row
    from runner.plan.plan import Plan

Fail = Callable[[LaunchoptError], None]


def execute_into(
    plan: Plan, folder: Path, overrides: list[str], fail: Fail, name: str = "", printed: set[str] | None = None
) -> tuple[list[Row], LaunchoptError | None]:
    """Execute a plan into its folder. Return the rows, and the error of the run; None if it succeeded.

    name: the job's name within a sweep. printed: notices of earlier jobs, which are not printed again.
    """
    failure: LaunchoptError
    try:
        children.start_early()  # children import modules while this process does
        with uncollected():
            without_pandas()
            from runner.run.run import execute
            from runner.screen.pager import Voice
        if (folder / "manifest.json").exists():
            say(f"{shown_path(folder)}: the earlier run in there is replaced")
        with signals.held():
            clear(folder, force=plan.config.force)
        return execute(plan, folder, overrides, Voice(name, set() if printed is None else printed)).rows, None
    except LaunchoptError as error:
        failure = error
        fail(error)
        _settle(folder, error)
    except KeyboardInterrupt as stop:
        fail(failure := _stopped(folder, overrides, stop))
    except Exception as error:
        if signals.is_raised:  # a library made this error of the signal's exception
            fail(failure := _stopped(folder, overrides, signals.stopped()))
        else:  # a mistake of this program: its traceback goes to the folder
            failure = unforeseen(folder, error, fail)
    return _rows(folder), failure


def objective_of(rows: list[Row], against: list[str]) -> float:
    """Return what an optimizer minimizes, as `launchopt.Result.objective`; infinite if there is none."""
    if not rows:
        return math.inf
    from launchopt.analysis.conclusions import modes_of, objective

    base, *others = modes_of(rows, against)
    return objective(rows, others[0], base) if others else objective(rows, base, None)


def objective_in(folder: Path) -> float:
    """Return the same of the finished run in a folder."""
    config = read_manifest(folder).get("config")
    against = config.get("against") if isinstance(config, dict) else None
    return objective_of(_rows(folder), against if isinstance(against, list) else [])


def _rows(folder: Path) -> list[Row]:
    """Return the rows of the finished repeats in the folder; none if the run ended before its first one."""
    if not (folder / "summary.parquet").exists():
        return []
    from launchopt.recording import results

    try:
        return results.read_summaries([folder])
    except DataError:
        return []


def _stopped(folder: Path, overrides: list[str], stop: BaseException) -> Interrupted:
    """Note in the manifest that a signal came before the first repeat or after the last, and return the error."""
    about: Manifest = {"overrides": overrides, "repeats_done": 0}
    with contextlib.suppress(LaunchoptError):
        about = read_manifest(folder) if (folder / "manifest.json").exists() else about
    text = f"{how_stopped(stop)}; {about.get('repeats_done', 0)} finished repeats are in {folder}"
    error = Interrupted(text, stop_code(stop))
    with contextlib.suppress(OSError, LaunchoptError):
        if about.get("status") in (None, "running"):
            write_manifest(folder, about | {"status": "interrupted", "error": str(error)})
    return error


def unforeseen(folder: Path, error: Exception, fail: Fail) -> LaunchoptError:
    """Write the traceback of a mistake of this program or of a plugin into the folder. Return the error to report."""
    fail(failure := RunError(f"{described(error)}; see traceback.txt in {shown_path(folder)}"))
    with contextlib.suppress(OSError):
        text = "".join(traceback.format_exception(error))
        write_atomically(
            folder / "traceback.txt", lambda temporary: temporary.write_text(text, "utf-8", "backslashreplace")
        )
    _settle(folder, failure)
    return failure


def _settle(folder: Path, failure: LaunchoptError) -> None:
    """Record the failure in the manifest, unless its status is already interrupted or refused."""
    with contextlib.suppress(OSError, LaunchoptError):  # on a full disk the line on standard error must suffice
        about = read_manifest(folder) if (folder / "manifest.json").exists() else {}
        if about.get("status") not in ("interrupted", "refused"):
            write_manifest(folder, {"error": str(failure)} | about | {"status": "failed"})


def note_refusal(folder: Path, overrides: list[str], error: LaunchoptError) -> None:
    """Write a manifest with the reason, unless the folder holds results of a finished run."""
    try:
        is_kept = (earlier_run(folder) or {}).get("status") == "ok"
    except DataError:
        is_kept = False  # with force=true a manifest that cannot be read is replaced
    if not is_kept:
        clear(folder)
        write_manifest(folder, {"status": "refused", "error": str(error), "overrides": overrides})


def shown_path(folder: Path) -> str:
    """Return the folder as the user would type it."""
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
