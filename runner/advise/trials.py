"""Runs rounds of trials within a budget. A round is one run: its arms are interleaved in one process.

A round costs about what the round before did for each repeat of an arm; the first one is small. A round that would end
after the budget is not begun, and `job_timeout_s` ends one that takes longer than expected. Its finished repeats count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launchopt.errors import ConfigError, Interrupted, LaunchoptError
from launchopt.recording import results
from launchopt.recording.results import Row
from runner.advise.question import Question
from runner.calling.caller import call
from runner.calling.words import words_of

LEAST_S = 3.0  # less does not even start a run


@dataclass
class Trials:
    """The rounds so far. each_s: what a repeat of an arm took in the last round, its share of the start included."""

    folder: Path
    budget_s: float
    clock: Callable[[], float] = time.monotonic
    dropped: dict[str, str] = field(default_factory=dict)  # arm -> reason why it ran in no round
    rounds: int = 0
    each_s: float = 0.0

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
        return self.left_s >= max(LEAST_S, arms * repeats * self.each_s)

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
            self.each_s = (self.clock() - began_s) / (len(able) * repeats)
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
        settings = {**question.settings, **arms, "repeats": repeats, "job_timeout_s": max(1.0, round(most_s, 1))}
        return self._called(words_of(settings, self.last), most_s)

    def _called(self, words: Sequence[str], most_s: float) -> list[Row]:
        began_s = self.clock()
        try:
            call(words, is_quiet=True)
        except (ConfigError, Interrupted):
            raise
        except LaunchoptError:
            if not any(self.last.rglob("summary.parquet")):
                if self.clock() - began_s < most_s:
                    raise  # it was not the time
                return []
        return results.read_summaries([self.last])
