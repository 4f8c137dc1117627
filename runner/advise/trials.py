"""Runs rounds of trials within a budget. A round is one run: its arms are interleaved in one process.

Each round corrects the estimated cost of the next one. A round that would end after the budget is not begun, and
`job_timeout_s` ends one that takes longer than expected; its finished repeats count. What a run compiled before it was
ended is kept for the next one. An arm that breaks is dropped, and the others run again without it.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hydra import compose

from launchopt.errors import ArenaMemoryError, ConfigError, Interrupted, LaunchoptError, VerificationError, one_line
from launchopt.files import read_json
from launchopt.recording import results
from launchopt.recording.results import Row
from runner.advise.cost import FILLED, FIRST_CHECK, UNKNOWN, Cost, Phases, cost_of
from runner.advise.question import Question
from runner.calling.caller import call
from runner.calling.words import words_of
from runner.config.loading import hydra_of
from runner.plan.plan import plan_of

BEFORE_JOB = 0.5  # share of a start that comes before the job, and its limit, begin
LATE_ENDING_S = 6.0  # the same, of a process that still compiles or fills operands
ENDING_S = 1.0  # in which a run that its limit ends saves its rows


class Outcome(NamedTuple):
    """How a round ended. error: what broke it; None if nothing did, or if only its time was over."""

    rows: list[Row]
    error: LaunchoptError | None = None
    phases: Phases = Phases()


def require_memory(question: Question, labels: Sequence[str]) -> None:
    """Raise ArenaMemoryError if the operands of a run with these arms do not fit."""
    base, *others = labels
    words = words_of({**question.settings, "mode": base, "against": others, "repeats": 1})
    with contextlib.suppress(ConfigError), hydra_of():  # an arm that cannot run: the round drops it
        plan_of(compose("config", words))


@dataclass
class Trials:
    """The rounds so far. spent_s: of --budget-s, for other things. cost: the estimate for the next round."""

    folder: Path
    budget_s: float
    clock: Callable[[], float] = time.monotonic
    spent_s: float = 0.0
    dropped: dict[str, str] = field(default_factory=dict)  # arm -> reason why it is not among the answers
    rounds: int = 0
    cost: Cost = UNKNOWN

    def __post_init__(self) -> None:
        self._until_s = self.clock() + self.budget_s

    @property
    def left_s(self) -> float:
        """Seconds until the budget ends."""
        return self._until_s - self.clock()

    @property
    def last(self) -> Path:
        """The folder of the last round."""
        return self.folder / f"round_{self.rounds}"

    def job_s(self, repeats: int) -> float:
        """Return the seconds of a job of a sweep of one stack: each job starts, as a round does."""
        return self.cost.of(1, repeats) + ENDING_S

    def require_memory(self, question: Question, labels: Sequence[str]) -> None:
        """Raise ArenaMemoryError if the operands of a round with these arms do not fit."""
        require_memory(question, labels)

    def run(self, question: Question, labels: Sequence[str], repeats: int, share: float = 1.0) -> list[Row]:
        """Run the arms interleaved and return their rows. Empty if none ended within a share of the seconds left.

        An arm that cannot run, breaks, or computes wrong numbers is dropped, with the reason. Raises a LaunchoptError
        if the first arm, the base, is such an arm.
        """
        until_s = self.clock() + share * self.left_s
        while True:
            able = [label for label in labels if label not in self.dropped]
            if len(able) == 1 < len(labels):
                return []  # no arm is left beside the base
            began_s = self.clock()
            rows, error, phases = self._round(question, able, repeats, until_s - began_s)
            if error is not None:
                found = self._broken(error, able)
                if not found:
                    found = self._halved(question, able, error, until_s)
                self.dropped |= found
                if found:
                    continue
            if rows:
                self.cost = cost_of(rows, phases, len(able), self.clock() - began_s, self.cost)
                self.dropped |= {
                    str(row["mode"]): one_line(f"failed its check: {row['status']}", 200)
                    for row in rows
                    if row["mode"] != labels[0] and not (row["status"] == "ok" and row["verified"])
                }
            return rows

    def sweep(self, question: Question, label: str, grid: Mapping[str, Sequence[object]], repeats: int) -> list[Row]:
        """Run one arm with every combination of the grid's settings, as one sweep; return the rows."""
        jobs = math.prod(len(values) for values in grid.values())
        settings = {key: value for key, value in question.settings.items() if key not in grid}
        settings |= {"mode": label, "against": [], "repeats": repeats}
        settings |= {"job_timeout_s": round(max(1.0, self.left_s / jobs - ENDING_S), 1)}
        axes = [f"{key}={','.join(map(str, values))}" for key, values in grid.items()]
        self.rounds += 1
        return self._called(["-m", *words_of(settings, self.last), *axes]).rows

    def _round(self, question: Question, labels: Sequence[str], repeats: int, most_s: float) -> Outcome:
        ending_s = ENDING_S if self.cost != UNKNOWN else LATE_ENDING_S
        limit_s = round(most_s - BEFORE_JOB * self.cost.start_s - ending_s, 1)
        if limit_s < 1.0 and self.cost != UNKNOWN:
            return Outcome([])
        self.rounds += 1
        arms: dict[str, object] = {"mode": list(labels)} if len(labels) > 1 else {"mode": labels[0], "against": []}
        limit_s = max(1.0, limit_s)
        settings = {**question.settings, **arms, "repeats": repeats, "job_timeout_s": limit_s}
        began_s = self.clock()
        outcome = self._called(words_of(settings, self.last))
        return outcome._replace(error=None) if self.clock() - began_s >= limit_s else outcome

    def _called(self, words: Sequence[str]) -> Outcome:
        error: LaunchoptError | None = None
        try:
            call(words, is_quiet=True)
        except Interrupted:
            raise
        except LaunchoptError as raised:
            error = raised
        if not any(self.last.rglob("summary.parquet")):
            return Outcome([], error)
        rows = results.read_summaries([self.last])
        return Outcome(rows, None if isinstance(error, VerificationError) else error, self._phases())

    def _phases(self) -> Phases:
        """Return the phases of the last round, over its jobs."""
        seconds, compared = dict[str, float](), 0
        for path in self.last.rglob("manifest.json"):
            manifest = read_json(path)
            checks = [run["check_seconds"]["operands"] for run in manifest["runs"] if "check_seconds" in run]
            phases = manifest.get("seconds", {}) | {
                FILLED: manifest.get("set_up_seconds", {}).get("operands", 0.0),
                FIRST_CHECK: max(checks, default=0.0) - (min(checks) if len(checks) > 1 else 0.0),
            }
            for phase, each_s in phases.items():
                seconds[phase] = seconds.get(phase, 0.0) + each_s
            compared += len({str(run.get("compared_run")) for run in manifest["runs"]})
        return Phases(seconds, compared)

    def _broken(self, error: LaunchoptError, labels: Sequence[str]) -> dict[str, str]:
        """Return the arm that an error names, with the reason; empty if it names none. Raises it if that is the base.

        Raises an error of a setting, of a file, or of all arms, too.
        """
        base, *others = labels
        if isinstance(error, ConfigError):
            wrong = str(error.value)
            if error.key not in ("mode", "against") or wrong not in others:
                raise error
            return {wrong: error.allowed}
        named = [label for label in labels if re.search(rf"(?<![\w+-]){re.escape(label)}(?![\w+-])", str(error))]
        if not others or named == [base] or (error.exit_code == 2 and not named):
            raise error
        why = {label: one_line(f"broke: {error}", 200) for label in others}
        if len(others) == 1:
            return why
        return {named[-1]: why[named[-1]]} if named and named[-1] != base else {}

    def _halved(
        self, question: Question, labels: Sequence[str], error: LaunchoptError, until_s: float
    ) -> dict[str, str]:
        """Return the arms without which a round does not break, whose error named none: each half runs on its own."""
        base, *others = labels
        half, before = len(others) // 2, set(self.dropped)
        for part in (others[:half], others[half:]):
            if until_s - self.clock() > self.cost.start_s and not isinstance(error, ArenaMemoryError):
                self.run(question, [base, *part], 1, max(0.0, until_s - self.clock()) / max(1e-6, self.left_s))
        return {label: why for label, why in self.dropped.items() if label not in before}
