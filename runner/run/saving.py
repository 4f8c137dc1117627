"""A job's folder and the results in it so far.

Its files are replaced after repeats, so often that it takes a tenth of the time at most, and at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from launchopt.analysis.several_gpus import gpu_lines
from launchopt.analysis.tables.bandwidth import unsteady
from launchopt.files import Reserve
from launchopt.recording import results
from launchopt.recording.impossible import remove_ceilings, settle
from launchopt.recording.manifest import Manifest
from launchopt.timing.laps import Laps
from runner.config.groups import Verify
from runner.plan.plan import Plan
from runner.plan.sharing import Sharing
from runner.run.leftovers import remove_unfinished
from runner.run.notices import (
    audited_check,
    forwarded_lines,
    left_out_lines,
    long_checks,
    sampled_check,
    split_loops,
    unfused_lines,
)
from runner.run.repeats import Rounds
from runner.run.screens.terminal import throttled_repeats

SAVES_SHARE = 0.1  # of the time of a run
SUMMARY, HISTOGRAMS, GPUS = "summary.parquet", "histograms.parquet", "gpus.parquet"
FILES = (SUMMARY, HISTOGRAMS, GPUS, "manifest.json")


@dataclass
class Run:
    """A job's folder and the results in it so far."""

    plan: Plan
    folder: Path
    rounds: list[Rounds]  # of each process so far
    notices: list[str]  # printed before the run
    reserve: Reserve  # disk space that is freed for the final manifest, so that it fits on a full disk
    rows: list[results.Row] = field(default_factory=list)
    manifest: Manifest = field(default_factory=dict)
    histograms: list[results.Row] = field(default_factory=list)
    gpus: list[results.Row] = field(default_factory=list)
    has_ended: bool = False  # True: saved for the last time
    laps: Laps = field(default_factory=Laps)
    sharing: Sharing = field(init=False)
    clock: Callable[[], float] = time.monotonic
    next_save_s: float = 0.0

    def __post_init__(self) -> None:
        self.sharing = Sharing(self.plan.info.kind)

    def save_if_due(self) -> None:
        """Save a run under way, unless saves would take over SAVES_SHARE of its time. Files grow with each repeat."""
        if (began_s := self.clock()) >= self.next_save_s:
            self.save("running")
            ended_s = self.clock()
            self.next_save_s = ended_s + (ended_s - began_s) / SAVES_SHARE

    def save(self, status: str) -> None:
        """Replace summary, histograms and manifest."""
        self.manifest |= {"status": status, "repeats_done": len(self.rows), "repeats": self.repeats()}
        self.manifest["seconds"] = self.laps.seconds()
        if "held" in self.manifest:
            self.manifest["held"]["until_utc"] = now()
        self.manifest["notices"] = [*self.notices, *self.late_notices()]
        if self.rows:
            config = self.plan.composed
            results.write_rows(self.folder / SUMMARY, results.SUMMARY, self.rows, config)
            results.write_rows(self.folder / HISTOGRAMS, results.HISTOGRAMS, self.histograms, config)
            if self.gpus:
                results.write_rows(self.folder / GPUS, results.GPUS, self.gpus, config)
        results.write_manifest(self.folder, self.manifest)
        self.reserve.grow(2 * sum(path.stat().st_size for path in map(self.folder.joinpath, FILES) if path.is_file()))

    def repeats(self) -> Manifest:
        """Return the manifest's entry on repeats: of the process that runs, with the number taken by all."""
        taken = {"taken": sum(each.taken for each in self.rounds), "processes": len(self.rounds)}
        return self.rounds[-1].as_dict() | taken

    @property
    def runs(self) -> int:
        """Minimum number of runs of the job, over all arms and processes."""
        left = self.plan.config.processes - len(self.rounds)
        return sum(each.runs for each in self.rounds) + left * self.new_rounds().runs

    def new_rounds(self) -> Rounds:
        """Return the rounds of the next process. Its repeats count on from those of the process before."""
        config, process = self.plan.config, len(self.rounds)
        modes = [arm.label for arm in self.plan.arms]
        first = max((row["repeat"] + 1 for row in self.rows), default=0)
        return Rounds(config.rounds, config.repeats_limit_s, modes, config.seed + process, first=first)

    def end(self, status: str) -> None:
        """Save for the last time, with the reserved disk space. The children no longer write."""
        self.reserve.release()
        remove_unfinished(self.folder)  # unfinished tables of a killed child
        if shared := self.sharing.so_far():
            self.manifest["shared"] = shared
            for row in self.rows:
                remove_ceilings(row)
        self.save(status)

    def late_notices(self) -> list[str]:
        """Return notices that follow from the repeats."""
        modes = dict.fromkeys(row["mode"] for row in self.rows)
        throttled = ((mode, throttled_repeats([row for row in self.rows if row["mode"] == mode])) for mode in modes)
        throttling = [f"{mode}: repeats throttled: {text}" for mode, text in throttled if text]
        is_full = self.plan.config.verify is Verify.full
        sampled = audited_check(self.rows, is_full) if self.plan.stream.has_steps else sampled_check(self.rows)
        ends = dict.fromkeys(text for each in self.rounds for text in each.notices())
        shared = self.sharing.so_far()
        changed = [f"shared {shared}, so no rate is compared with a ceiling"] if shared else []
        changed += [why] if not shared and (why := unsteady(self.rows)) else []
        runs = self.manifest["runs"]
        launched = [*left_out_lines(runs), *unfused_lines(runs), *forwarded_lines(runs), *split_loops(self.rows)]
        sampled += long_checks(self.laps.seconds(), self.plan.stream.has_steps, self.plan.config.verify_budget_s)
        return [*ends, *gpu_lines(self.rows, self.gpus), *launched, *throttling, *sampled, *changed]

    def settle(self, about: Manifest, rows: Sequence[results.Row]) -> None:
        """Add what was measured behind the last repeat of a process to the manifest and to the rows of that process."""
        if "ceilings_change" in about and len(self.plan.consumers) == 1:
            self.manifest |= {name: about[name] for name in ("ceilings_after", "ceilings_change")}
            for row in rows:
                settle(row, about["ceilings_change"])


def now() -> str:
    """Return the time in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
