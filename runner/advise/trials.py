"""Runs rounds of trials within a budget. A round is one run: its arms are interleaved in one process.

The first round is small, and each round corrects the estimated cost of the next one. A round that would end after the
budget is not begun. `job_timeout_s` ends one that takes longer than expected, and its finished repeats count. Only the
first round has no limit: on a new machine it compiles, and a run that is ended would have to compile again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from launchopt.errors import ConfigError, Interrupted, LaunchoptError
from launchopt.recording import results
from launchopt.recording.results import Row
from runner.advise.question import Question
from runner.calling.caller import call
from runner.calling.words import words_of

LEAST_S = 3.0  # less does not even start a run
# Wall times of a repeat that a repeat takes with its check, and an arm with its warm-up run and its audit run.
OF_REPEAT, OF_ARM = 2.0, 4.0


class Cost(NamedTuple):
    """Estimated seconds of a round: to start it, for each arm, and for each repeat of an arm."""

    start_s: float
    arm_s: float
    repeat_s: float

    def of(self, arms: int, repeats: int) -> float:
        """Return the seconds that a round takes."""
        return self.start_s + arms * (self.arm_s + repeats * self.repeat_s)

    def arms_in(self, seconds: float, repeats: int) -> int:
        """Return the number of arms that can run in some seconds."""
        return max(0, int((seconds - self.start_s) / (self.arm_s + repeats * self.repeat_s)))

    def repeats_in(self, seconds: float, arms: int) -> int:
        """Return the number of repeats of some arms that can run in some seconds."""
        return max(0, int((seconds - self.of(arms, 0)) / (arms * self.repeat_s)))


UNKNOWN = Cost(0.0, 0.0, 0.0)  # before the first round


def cost_of(rows: Sequence[Row], arms: int, repeats: int, took_s: float) -> Cost:
    """Return the cost that a round shows. What its rows do not explain counts as its start."""
    wall_s = median(row["wall_ms"] for row in rows) / 1e3
    arm_s = median(row["setup_ms"] or 0.0 for row in rows) / 1e3 + OF_ARM * wall_s
    known_s = Cost(0.0, arm_s, OF_REPEAT * wall_s).of(arms, repeats)
    return Cost(max(0.0, took_s - known_s), arm_s, OF_REPEAT * wall_s)


@dataclass
class Trials:
    """The rounds so far. cost: the estimate for the next one."""

    folder: Path
    budget_s: float
    clock: Callable[[], float] = time.monotonic
    dropped: dict[str, str] = field(default_factory=dict)  # arm -> reason why it ran in no round
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

    def affords(self, arms: int, repeats: int) -> bool:
        """Return whether a round would end within the budget."""
        return self.left_s >= max(LEAST_S, self.cost.of(arms, repeats))

    def run(self, question: Question, labels: Sequence[str], repeats: int, share: float = 1.0) -> list[Row]:
        """Run the arms interleaved and return their rows. Empty if none ended within a share of the seconds left.

        An arm that cannot run is dropped, with the reason. Raises a LaunchoptError if no arm is left.
        """
        able = [label for label in labels if label not in self.dropped]
        while True:
            began_s = self.clock()
            try:
                rows = self._round(question, able, repeats, self.left_s * share)
            except ConfigError as error:
                wrong = str(error.value)
                if error.key not in ("mode", "against") or wrong not in able or len(able) == 1:
                    raise
                self.dropped[wrong] = error.allowed
                able.remove(wrong)
                continue
            if rows:
                self.cost = cost_of(rows, len(able), repeats, self.clock() - began_s)
            return rows

    def sweep(self, question: Question, label: str, grid: Mapping[str, Sequence[object]], repeats: int) -> list[Row]:
        """Run one arm with every combination of the grid's settings, as one sweep; return the rows."""
        settings = {key: value for key, value in question.settings.items() if key not in grid}
        settings |= {"mode": label, "against": [], "repeats": repeats}
        axes = [f"{key}={','.join(map(str, values))}" for key, values in grid.items()]
        self.rounds += 1
        return self._called(["-m", *words_of(settings, self.last), *axes], self.left_s)

    def _round(self, question: Question, labels: Sequence[str], repeats: int, most_s: float) -> list[Row]:
        self.rounds += 1
        arms: dict[str, object] = {"mode": list(labels)} if len(labels) > 1 else {"mode": labels[0], "against": []}
        settings = {**question.settings, **arms, "repeats": repeats}
        limit_s = math.inf  # the first round goes on to its end: what it compiles is kept for all later ones
        if self.cost != UNKNOWN:
            settings["job_timeout_s"] = limit_s = round(max(1.0, most_s - self.cost.start_s), 1)
        return self._called(words_of(settings, self.last), limit_s)

    def _called(self, words: Sequence[str], limit_s: float) -> list[Row]:
        began_s = self.clock()
        try:
            call(words, is_quiet=True)
        except (ConfigError, Interrupted):
            raise
        except LaunchoptError:
            if not any(self.last.rglob("summary.parquet")):
                if self.clock() - began_s < limit_s:
                    raise  # it was not the time
                return []
        return results.read_summaries([self.last])
