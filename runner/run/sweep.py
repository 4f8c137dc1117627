"""A sweep: its jobs, how each ended, and `sweep.json`, which records this for other programs.

    {"schema_version": 1, "status": "failed", "exit_code": 1, "started_utc": ..., "ended_utc": ..., "overrides": [...],
     "counts": {"ok": 2, "failed": 1}, "jobs": [{"job": 0, "folder": "0", "overrides": [...], "config_hash": ...,
     "status": "ok", "error": null, "exit_code": 0, "same_as": null, "objective": 0.84}, ...]}

objective: the median wall time of the mode over that of its base, or without a base in ms; null without results.

Status of a job: `running`; `ok`; `failed` (its manifest says more); `refused` (its config cannot work, or its folder
holds a finished run of another config); `skipped` (finished before, with `resume=true`); `same` (its mode ignores the
settings in which it differs from job `same_as`, which stands for it; such a job has no results); `interrupted`;
`not run` (the sweep ended first; such a job has no folder). Status of a sweep: `running`; `ok`; `failed` (a job failed,
was refused or was not run); `interrupted`.

The file is replaced as each job begins. So a killed process leaves the status `running`, which the next start changes
to `killed` (`leftovers.tidy`), for the sweep and for the job that was under way. Jobs that did not begin are added at
the end.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from launchopt.errors import ConfigError, Interrupted, LaunchoptError, RunError
from launchopt.files import write_atomically
from launchopt.messages import say
from launchopt.reading.ownership import SWEEP
from runner.config.composed import without_hydra
from runner.config.typed.required import required
from runner.config.typed.words import check_settings
from runner.run.resume import newest_sweep, without_passing

SCHEMA_VERSION = 1
NOT_RUN, SAME = "not run", "same"
STATUSES = ("ok", "failed", "refused", "skipped", SAME, "interrupted", NOT_RUN)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _sweep_folder(shown: str) -> str:
    """Return the setting that names the sweep's folder, quoted for Hydra and for the shell."""
    is_plain = all(each.isalnum() or each in " ./-_" for each in shown)
    escaped = shown.replace("\\", "\\\\").replace("'", "\\'")
    return shlex.quote(f"hydra.sweep.dir={shown}" if is_plain else f"hydra.sweep.dir='{escaped}'")


def planned(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job in the order of Hydra's sweeper; empty if only Hydra can expand them."""
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


def require_given(config: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError for a required setting that no job of a sweep gives, before the sweep has a folder.

    config: as composed without the values that the sweep varies.
    """
    missing = sorted(map(str, OmegaConf.missing_keys(config)))
    try:
        words = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException:
        return
    given = {word.get_key_element().lstrip("+~") for word in words}
    swept = {word.get_key_element().lstrip("+~") for word in words if word.is_sweep_override()}
    for key in missing:
        if key not in given and not swept & {key.partition(".")[0], "experiment", "table"}:
            raise required(config, key)


def place_resumed(config: DictConfig, overrides: Sequence[str]) -> None:
    """Make Hydra write the sweep and its jobs into the folder of the newest sweep with these overrides."""
    folder = newest_sweep(Path(config.hydra.sweep.dir).parent, overrides)
    say(f"resuming {folder}")
    place_at(config, folder)


def place_at(config: DictConfig, folder: Path) -> None:
    """Make Hydra write the sweep and its jobs into a folder: it composes the config of each job anew, from words."""
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = str(folder)
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{quoted}'")


def checked_params(config: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Return the settings that the experiment sweeps; LaunchoptError for words that no job of the sweep can have."""
    params = [f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items()]
    check_settings([*params, *overrides])
    require_given(without_hydra(config), [*params, *overrides])
    return params


@dataclass(slots=True)
class SweepJob:
    """One job, and how it ended."""

    job: int
    overrides: list[str]
    folder: str = ""  # relative to the sweep's folder
    config_hash: str | None = None
    status: str = "running"
    error: str | None = None
    exit_code: int = 0
    same_as: int | None = None  # the job that stands for this one
    objective: float = math.inf  # what an optimizer minimizes; infinite without usable results

    def ended(self, status: str, error: LaunchoptError | None = None) -> None:
        """Record how the job ended. An `Interrupted` error makes the status `interrupted` instead of `status`."""
        self.status = "interrupted" if isinstance(error, Interrupted) else status
        if error is not None:
            self.error, self.exit_code = str(error), error.exit_code

    def is_like(self, twin: SweepJob) -> None:
        """Record that `twin` stands for this job."""
        self.status, self.same_as, self.objective = SAME, twin.job, twin.objective


@dataclass
class Sweep:
    """The overrides of a sweep, and its jobs so far."""

    folder: Path
    overrides: list[str]  # settings with their values, as the user typed them
    is_new: bool  # True: this start made its folder
    params: list[str] = field(default_factory=list)  # settings that the experiment sweeps
    is_planned: bool = True  # False: a sweeper chooses each job by the results before it
    stop_code: int = 0  # exit code of the signal that stopped it; 0: none did
    jobs: list[SweepJob] = field(default_factory=list)
    started_utc: str = field(default_factory=_now)
    printed: set[str] = field(default_factory=set)  # notices that the user has read
    _folders: set[str] = field(default_factory=lambda: {"."})  # taken by the jobs so far
    _ended: dict[int, str] = field(default_factory=dict)  # JSON of the jobs that have ended, by number
    _work: dict[str, SweepJob] = field(default_factory=dict)  # jobs whose mode ignores batching, by `work_key`

    @cached_property
    def _planned(self) -> list[list[str]]:
        """The overrides of each job, expanded once: a sweep can have 100,000 jobs."""
        return planned([*self.params, *self.overrides]) if self.is_planned else []

    def add(self, job: SweepJob, folder: Path) -> None:
        """Add the next job, in `folder`; ConfigError if an earlier job of this sweep has that folder."""
        job.folder = os.path.relpath(folder, self.folder)
        self.jobs.append(job)
        if job.folder in self._folders:
            wanted = "holds another job of this sweep: give each its own, as ${hydra.job.num} does"
            raise ConfigError("hydra.sweep.subdir", job.folder, wanted)
        self._folders.add(job.folder)

    def replace(self, job: SweepJob) -> None:
        """Add a job that runs elsewhere, or what is newly known of it, in the order of their numbers."""
        self.jobs = sorted([*(each for each in self.jobs if each.job != job.job), job], key=lambda each: each.job)

    def fail_once(self, error: LaunchoptError, fail: Callable[[LaunchoptError], None]) -> None:
        """Call `fail`, unless another job of this sweep was refused for the same reason."""
        if str(error) not in self.printed:
            self.printed.add(str(error))
            fail(error)

    @property
    def status(self) -> str:
        """Status of the sweep, once it has ended."""
        found = {job.status for job in self.jobs}
        if self.stop_code or "interrupted" in found:
            return "interrupted"
        return "failed" if found & {"failed", "refused", NOT_RUN} else "ok"

    def stop(self, error: Interrupted) -> None:
        """Record an interruption of the sweep and of the job that still runs."""
        self.stop_code = error.exit_code
        for job in self.jobs:
            if job.status == "running":
                job.ended("interrupted", error)

    def end(self) -> None:
        """Add the jobs that did not begin, and save `sweep.json` with the final status."""
        begun = Counter(tuple(job.overrides) for job in self.jobs)
        left = []
        for each in self._planned:
            if begun[tuple(each)]:
                begun[tuple(each)] -= 1
            else:
                left.append(each)
        if begun.total():  # other jobs than these overrides give: the remaining ones are unknown
            left = []
        taken = {job.job for job in self.jobs}
        free = [number for number in range(len(taken) + len(left)) if number not in taken]
        self.jobs += [SweepJob(number, each, status=NOT_RUN) for number, each in zip(free, left, strict=False)]
        self.jobs.sort(key=lambda job: job.job)
        self.save(ended=True)

    def save(self, ended: bool = False) -> None:
        """Replace `sweep.json`; RunError if that fails."""
        ends = (self.stop_code, RunError.exit_code * (NOT_RUN in self.counts()))
        about = {
            "schema_version": SCHEMA_VERSION,
            "status": self.status if ended else "running",
            "exit_code": max(*ends, *(job.exit_code for job in self.jobs)),
            "started_utc": self.started_utc,
            "ended_utc": _now() if ended else None,
            "overrides": without_passing(self.overrides),
            "counts": self.counts(),
        }
        jobs = ",\n    ".join(map(self._line, self.jobs))
        text = f'{json.dumps(about, indent=2)[:-2]},\n  "jobs": [\n    {jobs}\n  ]\n}}\n'
        try:
            write_atomically(self.folder / SWEEP, lambda temporary: temporary.write_text(text))
        except OSError as error:
            raise RunError(f"{self.folder / SWEEP}: {error.strerror or error}") from None

    def _line(self, job: SweepJob) -> str:
        """Return a job as JSON, kept once the job has ended: to format 1,000 jobs anew for each one takes 20 ms."""
        if job.job in self._ended:
            return self._ended[job.job]
        objective = job.objective if math.isfinite(job.objective) else None
        line = json.dumps(asdict(job) | {"objective": objective})
        if job.status != "running":
            self._ended[job.job] = line
        return line

    def counts(self) -> dict[str, int]:
        """Return the number of jobs of each status that occurs."""
        found = Counter(job.status for job in self.jobs)
        return {status: found[status] for status in STATUSES if found[status]}

    @cached_property
    def varies_batching(self) -> bool:
        """Whether jobs differ in overrides of `batching`. What a `table` sets there does not count."""
        return (
            len({tuple(each for each in job if each.lstrip("+").startswith("batching")) for job in self._planned}) > 1
        )

    def twin_of(self, key: str | None) -> SweepJob | None:
        """Return the earlier job of the same work that has results; None if there is none. key: `work_key`."""
        first = None if key is None else self._work.get(key)
        return first if first is not None and first.status in ("ok", "skipped") else None

    def remember(self, job: SweepJob, key: str | None) -> None:
        """Let `job` stand for later jobs of the same work, unless an earlier one does. key: `work_key`."""
        if key is not None and self.twin_of(key) is None:
            self._work[key] = job

    def name(self, job: SweepJob) -> str:
        """Return `job 3 (4 of 12)`, or `job 3` where only Hydra knows how many there are."""
        count = len(self._planned)
        return f"job {job.job}" + (f" ({job.job + 1} of {count})" if count > job.job else "")

    def own(self, job: SweepJob) -> str:
        """Return the overrides of a job that not all jobs share."""
        return " ".join(each for each in without_passing(job.overrides) if each not in self.overrides)

    def label(self, job: SweepJob) -> str:
        """Return the job's name with the overrides that not all jobs share: `job 3 (4 of 12): seed=3`."""
        return ": ".join(filter(None, [self.name(job), self.own(job)]))

    def skipped(self, job: SweepJob) -> str:
        """Return the line about a job that was finished before."""
        own = self.own(job)
        return f"job {job.job} is skipped, finished before{f': {own}' if own else ''}"

    def lines(self, shown: str) -> list[str]:
        """Return the lines that the user reads at the end. shown: the sweep's folder, as the user would type it."""
        counts = ", ".join(f"{count} {status}" for status, count in self.counts().items())
        bad: dict[tuple[str, str | None], list[SweepJob]] = {}
        for job in self.jobs:
            if job.status not in ("ok", "skipped", SAME, NOT_RUN):
                bad.setdefault((job.status, job.error), []).append(job)
        lines = [f"sweep: {counts} in {shown}"]
        for (status, error), jobs in bad.items():
            own = f" ({self.own(jobs[0])})" if self.own(jobs[0]) else ""
            first = f"job {jobs[0].job} {status}{own}"
            several = f"jobs {', '.join(str(job.job) for job in jobs)} {status}"
            lines.append(f"{first if len(jobs) == 1 else several}: {error}")
        if self.counts().keys() & {"failed", "interrupted", NOT_RUN}:
            lines.append(f"finish it: the same command with {_sweep_folder(shown)} resume=true")
        return lines
