"""What a comparison found: B against A for each pair of arms, and all pairs of two sides.

A `Comparison` says what its verdict rests on, and how many more samples would decide. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from launchopt.analysis.comparison.arms import Arm
from launchopt.analysis.metric import ONCE_A_PROCESS, RATES
from launchopt.statistics.interval import FEWEST_REPEATS, Interval, Verdict, verdict
from launchopt.statistics.power import AFFORDABLE, FEWEST_FOR_NOISE, FIRST_REPEATS, MOST_NEXT, OVERESTIMATE
from launchopt.statistics.processes import CALIBRATED, FEWEST_PROCESSES
from launchopt.statistics.shift import Factor

LARGEST_EFFECT = 25  # percent: to call arms the same up to more than this tells nothing


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A in one metric. A factor above 1 favours B.

    command: `launchopt compare` with the operands and options that give this comparison, without an effect.
    """

    a: Arm
    b: Arm
    metric: str
    smallest_effect: float
    pairs: int | None  # None: the arms are of different processes
    processes: tuple[int, int]
    medians: tuple[Interval, Interval]
    factor: Factor
    verdict: Verdict
    repeats_needed: int | None  # of processes, if `rests_on_processes`
    detectable_effect: float | None
    overridden: list[str] = field(default_factory=list)  # reasons against the comparison that --force set aside
    notes: list[str] = field(default_factory=list)
    command: str = ""

    @property
    def repeats(self) -> int:
        """Number of pairs, or of repeats of the arm that has fewer."""
        return self.factor.interval.repeats

    @property
    def ratio_of_medians(self) -> float:
        """The ratio of the two medians, above 1 where B is the better."""
        above, below = self.medians[::-1] if self.metric.endswith(tuple(RATES)) else self.medians
        return above.value / below.value

    @property
    def rests_on_processes(self) -> bool:
        """Whether the spread between processes decides, and not that between pairs of repeats."""
        return self.pairs is None or min(self.processes) >= FEWEST_PROCESSES

    @property
    def is_once(self) -> bool:
        """Whether each process measured the metric once, whatever its repeats."""
        return self.metric in ONCE_A_PROCESS

    @property
    def samples(self) -> int:
        """Number of what the verdict rests on: of processes of the arm that has fewer, or of pairs."""
        return min(self.processes) if self.rests_on_processes else self.repeats

    @property
    def setting(self) -> str:
        """The setting that adds samples."""
        return "processes" if self.rests_on_processes else "repeats"

    @property
    def next_samples(self) -> int:
        """Number of samples to take where these leave the verdict open; at least twice as many."""
        if self.pairs is not None and self.samples < FEWEST_REPEATS and not self.rests_on_processes:
            return max(FEWEST_REPEATS, 2 * self.samples)
        first = FEWEST_FOR_NOISE if self.rests_on_processes else FIRST_REPEATS
        twice = 2 * self.samples
        return min(max(self.repeats_needed or first, twice), max(MOST_NEXT, twice))

    @property
    def is_too_noisy(self) -> bool:
        """Whether the verdict is open, and no affordable number of samples would decide."""
        most = max(AFFORDABLE, self.samples) * (OVERESTIMATE if self.samples < FIRST_REPEATS else 1)
        return self.verdict is Verdict.UNDECIDED and self.repeats_needed is not None and self.repeats_needed > most

    @property
    def deciding_effect(self) -> str | None:
        """The smallest larger effect, such as `5%`, with which this interval decides; None: above LARGEST_EFFECT."""
        if self.factor.method == CALIBRATED:  # such noise never shows that there is no difference
            return None
        larger = (each for each in range(1, LARGEST_EFFECT + 1) if each / 100 > self.smallest_effect)
        decides = (each for each in larger if verdict(self.factor.interval, each / 100) is not Verdict.UNDECIDED)
        return next((f"{each}%" for each in decides), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All results of comparing B with A."""

    a: str
    b: str
    metric: str | None  # None: not the same in all comparisons
    smallest_effect: float
    forced: bool
    comparisons: list[Comparison]
    refused: list[str]
    alone: list[str]
