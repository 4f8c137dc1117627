"""In which order the runs of a job are taken, and when it is enough of them.

In: how many repeats were asked for, and the wall time of each run. Out: (arm, repeat) one after the other.

    for arm, repeat in rounds:
        rounds.took(arm, wall_ms)

A round is every arm once, in random order, so that what slows the machine for a while does not fall on one arm alone.
With `repeats=auto` rounds go on until the 95% bootstrap interval of every arm's median, and of every ratio over the
arm it is compared with, lies within HALF_WIDTH of its value (`analysis.power.settled`). Fewer than LEAST_ROUNDS bound
nothing; more than MOST_ROUNDS, or rounds that begin after `repeats_limit_s`, are not taken, and a notice says that the
noise was not met. The rule never looks at whether a difference shows. Looking after every round makes an interval
cover a little less often than it says: the smaller the half-width, the less so.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from launchopt.statistics.interval import SMALLEST_EFFECT
from launchopt.statistics.power import settled

LEAST_ROUNDS = 5  # at which the widest interval covers the median 94% of the time: see `analysis.interval`
MOST_ROUNDS = 50
HALF_WIDTH = SMALLEST_EFFECT  # relative: what a verdict takes for the same
AUTO = "auto"


class Rounds:
    """The runs of one job. `asked` None is auto; `limit_s` counts from the first run on, checks of outputs included."""

    def __init__(
        self,
        asked: int | None,
        limit_s: float,
        modes: Sequence[str],
        seed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._asked, self._limit_s, self._modes, self._seed = asked, limit_s, list(modes), seed
        self._clock = clock
        self._wall_ms: list[list[float]] = [[] for _ in modes]
        self._begun = 0
        self._stopped_by: str | None = None

    @property
    def taken(self) -> int:
        """Rounds that every arm has finished."""
        return min(map(len, self._wall_ms))

    @property
    def runs(self) -> int:
        """Runs there will be, as far as is known: of auto the least, and then the round under way."""
        return len(self._modes) * (self._asked or max(LEAST_ROUNDS, self._begun))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        shuffle, start_s = random.Random(self._seed), self._clock()
        while not self._enough(self._clock() - start_s):
            arms = list(range(len(self._modes)))
            shuffle.shuffle(arms)
            self._begun += 1
            for arm in arms:
                yield arm, self._begun - 1

    def took(self, arm: int, wall_ms: float) -> None:
        """A run of `arm` was finished."""
        self._wall_ms[arm].append(wall_ms)

    def label(self, arm: int, repeat: int) -> str:
        """What the user reads while it runs."""
        of = f"/{self._asked}" if self._asked else f" ({AUTO}: {LEAST_ROUNDS} to {MOST_ROUNDS})"
        return f"{self._modes[arm]} {repeat + 1}{of}"

    def as_dict(self) -> dict[str, Any]:
        """For the manifest; `stopped_by`: number, noise, most or time, None where the run was cut short."""
        return {
            "asked": self._asked or AUTO,
            "taken": self.taken,
            "stopped_by": self._stopped_by,
            "half_width": None if self._asked else HALF_WIDTH,
        }

    def notices(self) -> list[str]:
        """Where the noise did not end it: what did."""
        ends = {"most": "the most there are", "time": f"by repeats_limit_s={self._limit_s:g}"}
        if self._stopped_by not in ends:
            return []
        why = ends[self._stopped_by]
        return [f"repeats=auto: ended after {self.taken} rounds, {why}; noise still above {HALF_WIDTH:.0%}"]

    def _enough(self, elapsed_s: float) -> bool:
        if self._asked is not None:
            self._stopped_by = "number" if self.taken >= self._asked else None
        elif self.taken < LEAST_ROUNDS:
            self._stopped_by = None
        elif self._is_settled():
            self._stopped_by = "noise"
        elif self.taken >= MOST_ROUNDS:
            self._stopped_by = "most"
        elif elapsed_s >= self._limit_s:
            self._stopped_by = "time"
        return self._stopped_by is not None

    def _is_settled(self) -> bool:
        """The arms are compared with `baseline`, or with the first where that is none of them."""
        over = self._modes.index("baseline") if "baseline" in self._modes else 0
        samples = {str(arm): times for arm, times in enumerate(self._wall_ms)}
        return settled(samples, str(over) if len(samples) > 1 else None, HALF_WIDTH)
