"""A sweep as a whole: which jobs it has had, how each ended, and `sweep.json`, which says so to programs.

    {"schema_version": 1, "status": "failed", "exit_code": 1, "started_utc": ..., "ended_utc": ..., "overrides": [...],
     "counts": {"ok": 2, "failed": 1}, "jobs": [{"job": 0, "folder": "0", "overrides": [...], "config_hash": ...,
     "status": "ok", "error": null, "exit_code": 0}, ...]}

A job's status is `running`, `ok`, `failed` (it ran: its manifest says more), `refused` (its config cannot work, or its
folder holds a finished run of another config), `skipped` (`resume=true`: finished before), `interrupted` or `not run`
(the sweep ended before it was reached; such a job has no folder). The sweep's is `running`, `ok`, `failed` (some job
failed, was refused or was not run) or `interrupted`. It is written anew as each job begins, so that what a killed
process leaves says `running`; jobs that were not reached are added at the end.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from launchopt.errors import ConfigError, Interrupted, LaunchoptError, RunError
from launchopt.files import write_atomically
from runner.run.resume import SWEEP, asked

SCHEMA_VERSION = 1
NOT_RUN = "not run"
STATUSES = ("ok", "failed", "refused", "skipped", "interrupted", NOT_RUN)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def planned(overrides: Sequence[str]) -> list[list[str]]:
    """Overrides of each job of a sweep, in order, as Hydra's sweeper makes them from what was typed.

    Empty where only Hydra can tell (`glob`).
    """
    choices: dict[str, list[str]] = {}
    try:
        for each in OverridesParser.create().parse_overrides(list(overrides)):
            key = each.get_key_element()
            is_sweep = each.is_sweep_override()
            values = each.sweep_string_iterator() if is_sweep else [each.get_value_element_as_str()]
            choices[key] = [f"{key}={value}" for value in values]
    except HydraException:
        return []
    return [list(each) for each in itertools.product(*choices.values())]


@dataclass(slots=True)
class SweepJob:
    """One job, and how it ended."""

    job: int
    overrides: list[str]
    folder: str = ""  # below the sweep's
    config_hash: str | None = None
    status: str = "running"
    error: str | None = None
    exit_code: int = 0

    def ended(self, status: str, error: LaunchoptError | None = None) -> None:
        """Note how; an interruption is one, whatever the caller expected."""
        self.status = "interrupted" if isinstance(error, Interrupted) else status
        if error is not None:
            self.error, self.exit_code = str(error), error.exit_code


@dataclass(slots=True)
class Sweep:
    """What was asked for, and the jobs so far."""

    folder: Path
    overrides: list[str]  # as typed: a setting with its values
    is_new: bool  # its folder was not there before
    was_stopped: bool = False
    jobs: list[SweepJob] = field(default_factory=list)
    started_utc: str = field(default_factory=_now)

    def add(self, job: SweepJob, folder: Path) -> None:
        """The next job, in `folder`; ConfigError where it would write over an earlier one of this sweep."""
        job.folder = os.path.relpath(folder, self.folder)
        taken = {".", *(each.folder for each in self.jobs)}
        self.jobs.append(job)
        if job.folder in taken:
            wanted = "holds another job of this sweep: give each its own, as ${hydra.job.num} does"
            raise ConfigError("hydra.sweep.subdir", job.folder, wanted)

    @property
    def status(self) -> str:
        """How it ended."""
        found = {job.status for job in self.jobs}
        if self.was_stopped or "interrupted" in found:
            return "interrupted"
        return "failed" if found & {"failed", "refused", NOT_RUN} else "ok"

    def stop(self) -> None:
        """It was interrupted, and with it the job that still runs."""
        self.was_stopped = True
        for job in self.jobs:
            if job.status == "running":
                job.ended("interrupted", Interrupted("interrupted"))

    def end(self) -> None:
        """No job begins any more: what was not reached joins the others, and `sweep.json` says how it went."""
        left = planned(self.overrides)
        try:
            for job in self.jobs:
                left.remove(job.overrides)
        except ValueError:  # not the jobs that these overrides would have: then it is not known which are left
            left = []
        self.jobs += [SweepJob(number, each, status=NOT_RUN) for number, each in enumerate(left, len(self.jobs))]
        self.save(ended=True)

    def save(self, ended: bool = False) -> None:
        """Write `sweep.json`; RunError where that fails."""
        ends = (Interrupted.exit_code * self.was_stopped, RunError.exit_code * (NOT_RUN in self.counts()))
        about = {
            "schema_version": SCHEMA_VERSION,
            "status": self.status if ended else "running",
            "exit_code": max(*ends, *(job.exit_code for job in self.jobs)),
            "started_utc": self.started_utc,
            "ended_utc": _now() if ended else None,
            "overrides": asked(self.overrides),
            "counts": self.counts(),
            "jobs": [asdict(job) for job in self.jobs],
        }
        text = json.dumps(about, indent=2) + "\n"
        try:
            write_atomically(self.folder / SWEEP, lambda temporary: temporary.write_text(text))
        except OSError as error:
            raise RunError(f"{self.folder / SWEEP}: {error.strerror or error}") from None

    def counts(self) -> dict[str, int]:
        """How many jobs ended how; only what occurs."""
        found = Counter(job.status for job in self.jobs)
        return {status: found[status] for status in STATUSES if found[status]}

    def own(self, job: SweepJob) -> str:
        """What it was asked for and not all jobs were."""
        return " ".join(each for each in asked(job.overrides) if each not in self.overrides)

    def lines(self, shown: str) -> list[str]:
        """What the user reads at the end; `shown` is the folder as they would type it."""
        counts = ", ".join(f"{count} {status}" for status, count in self.counts().items())
        bad = [job for job in self.jobs if job.status not in ("ok", "skipped", NOT_RUN)]
        lines = [f"sweep: {counts} in {shown}"]
        for job in bad:
            lines.append(f"job {job.job} {job.status} ({self.own(job)}): {job.error}")
        if self.counts().keys() & {"failed", "interrupted", NOT_RUN}:
            lines.append(f"finish it: the same command with hydra.sweep.dir={shown} resume=true")
        return lines
