"""The order of a job's runs, and the rule that ends them.

    for arm, repeat in rounds:      # indices
        rounds.took(arm, wall_ms)

A round runs every arm once, in random order: a disturbance of the machine then hits no arm alone. With `repeats=auto`
rounds go on until the noise is low (`statistics.power.settled`). That means: the 95% interval of every arm's median,
and of every ratio to the arm that it is compared with, is within HALF_WIDTH of its value.

There are at least MIN_ROUNDS, since fewer give no interval. No round begins after MAX_ROUNDS or `repeats_limit_s`; a
notice then says that the noise is still high. The rule ignores whether a difference shows. A check after every round
lowers the coverage of an interval a little. A smaller half-width lowers it less.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

from launchopt.analysis.tables.rows import BASES_OF_STEPS
from launchopt.statistics.interval import FEWEST_REPEATS, SMALLEST_EFFECT
from launchopt.statistics.power import settled
from runner.config.against import AUTO

MIN_ROUNDS = FEWEST_REPEATS
MAX_ROUNDS = 50
HALF_WIDTH = SMALLEST_EFFECT  # relative; verdicts ignore a smaller difference


class Rounds:
    """The runs of one job. `asked` None means auto. `limit_s` starts with the first run and includes output checks."""

    def __init__(
        self,
        asked: int | None,
        limit_s: float,
        modes: Sequence[str],
        seed: int,
        clock: Callable[[], float] = time.monotonic,
        first: int = 0,
    ) -> None:
        self._asked, self._limit_s, self._modes, self._seed = asked, limit_s, list(modes), seed
        self._clock, self._first = clock, first
        self._wall_ms: list[list[float]] = [[] for _ in modes]
        self._begun = 0
        self._stopped_by: str | None = None

    @property
    def taken(self) -> int:
        """Rounds that every arm has finished."""
        return min(map(len, self._wall_ms))

    @property
    def runs(self) -> int:
        """Minimum number of runs of the job, over all arms.

        With `repeats=auto` it counts MIN_ROUNDS rounds, or all rounds begun if those are more.
        """
        return len(self._modes) * (self._asked or max(MIN_ROUNDS, self._begun))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        shuffle, start_s = random.Random(self._seed), self._clock()
        while not self._enough(self._clock() - start_s):
            arms = list(range(len(self._modes)))
            shuffle.shuffle(arms)
            self._begun += 1
            for arm in arms:
                yield arm, self._first + self._begun - 1

    def took(self, arm: int, wall_ms: float) -> None:
        """Record the wall time of a finished run of `arm`."""
        self._wall_ms[arm].append(wall_ms)

    def label(self, arm: int, repeat: int) -> str:
        """Return the text that the user sees during the run."""
        of = f"/{self._asked}" if self._asked else f" ({AUTO}: {MIN_ROUNDS} to {MAX_ROUNDS})"
        return f"{self._modes[arm]} {repeat - self._first + 1}{of}"

    def as_dict(self) -> dict[str, object]:
        """Return the manifest's entry. `stopped_by` is number, noise, most or time; None if the job ended early."""
        return {
            "asked": self._asked or AUTO,
            "taken": self.taken,
            "stopped_by": self._stopped_by,
            "half_width": None if self._asked else HALF_WIDTH,
        }

    def notices(self) -> list[str]:
        """Return a line that says what ended `repeats=auto`, unless low noise did."""
        ends = {"most": "the maximum", "time": f"by repeats_limit_s={self._limit_s:g}"}
        if self._stopped_by not in ends:
            return []
        why = ends[self._stopped_by]
        return [f"repeats=auto: ended after {self.taken} rounds, {why}; noise still above {HALF_WIDTH:.0%}"]

    def _enough(self, elapsed_s: float) -> bool:
        if self._asked is not None:
            self._stopped_by = "number" if self.taken >= self._asked else None
        elif self.taken < MIN_ROUNDS:
            self._stopped_by = None
        elif self._is_settled():
            self._stopped_by = "noise"
        elif self.taken >= MAX_ROUNDS:
            self._stopped_by = "most"
        elif elapsed_s >= self._limit_s:
            self._stopped_by = "time"
        return self._stopped_by is not None

    def _is_settled(self) -> bool:
        """Return whether the noise is low. It covers the ratio of each arm to the base, or to the first arm."""
        over = next((self._modes.index(base) for base in BASES_OF_STEPS if base in self._modes), 0)
        samples = {str(arm): times for arm, times in enumerate(self._wall_ms)}
        return settled(samples, str(over) if len(samples) > 1 else None, HALF_WIDTH)
