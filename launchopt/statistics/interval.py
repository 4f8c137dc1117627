"""Intervals, the exact interval of a median, and the verdict that a ratio of times allows.

    median_interval([9.1, 9.0, 9.3, 9.2, 9.0], unit=" ms")        # 9.10 ms [9.00, 9.30]
    median_interval([9.1, 9.0, 9.3], unit=" ms")                  # 9.10 ms (9.00 to 9.30)

The interval of a median lies between two of the samples and inverts the sign test (Hollander, Wolfe and Chicken,
Nonparametric Statistical Methods, 2014, section 3.6). It covers the median at least as often as it says for samples of
any distribution: 93.75% at five repeats, which is the most that five can give, and at least 95% from six on. Below
FEWEST_REPEATS there is no interval: three repeats cover 75% at most. The range of the samples stands in its place.

`shift` has the interval of a factor between two arms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

FEWEST_REPEATS = 5
SMALLEST_EFFECT = 0.01
CONFIDENCE = 0.95
_EXACT_UP_TO = 1000  # samples; above, the normal approximation of the rank is within one sample


class Verdict(StrEnum):
    """The conclusion that a ratio of times allows about the candidate."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95% bounds, in `unit`. The bounds are None where none were shown to cover.

    range: the smallest and the largest sample; None for one. Bounds stand in [] in a text, the range in ().
    """

    value: float
    low: float | None
    high: float | None
    repeats: int = 0
    unit: str = "x"
    range: tuple[float, float] | None = None

    def __str__(self) -> str:
        decimals = _decimals(self.value)
        value = f"{self.value:.{decimals}f}{self.unit}"
        if self.low is not None and self.high is not None:
            return f"{value} [{self.low:.{decimals}f}, {self.high:.{decimals}f}]"
        if self.range is None:
            return f"{value} ({self.repeats} repeat{'' if self.repeats == 1 else 's'})"
        return f"{value} ({self.range[0]:.{decimals}f} to {self.range[1]:.{decimals}f})"


def median_interval(samples: ArrayLike, *, unit: str = "") -> Interval:
    """Return the median of `samples` (in `unit`) with its exact interval by the sign test.

    Fewer than FEWEST_REPEATS samples give no bounds. ValueError: there are no samples, or one is not finite.
    """
    values = np.sort(np.asarray(samples, np.float64), axis=None)
    if not values.size:
        raise ValueError("no samples")
    if not np.isfinite(values).all():
        raise ValueError(f"samples must be finite: {values.tolist()}")
    median, spread = float(np.median(values)), (float(values[0]), float(values[-1]))
    if values.size < FEWEST_REPEATS:
        return Interval(median, None, None, values.size, unit, spread if values.size > 1 else None)
    rank = _sign_rank(values.size)
    return Interval(median, float(values[rank - 1]), float(values[-rank]), values.size, unit, spread)


def verdict(ratio: Interval, smallest_effect: float = SMALLEST_EFFECT) -> Verdict:
    """Return the conclusion from `ratio` (baseline time / candidate time).

    Ratios within `smallest_effect` of 1 count as the same (0.01: 1%).
    """
    if ratio.low is None or ratio.high is None:
        return Verdict.UNDECIDED
    if ratio.low > 1 + smallest_effect:
        return Verdict.FASTER
    if ratio.high < 1 - smallest_effect:
        return Verdict.SLOWER
    if ratio.low >= 1 - smallest_effect and ratio.high <= 1 + smallest_effect:
        return Verdict.SAME
    return Verdict.UNDECIDED


@cache
def _sign_rank(samples: int) -> int:
    """Return the 1-based rank, from either end, of the sample that bounds the interval: the ends where no other can."""
    tail = (1 - CONFIDENCE) / 2
    if samples > _EXACT_UP_TO:
        return math.floor(samples / 2 + NormalDist().inv_cdf(tail) * math.sqrt(samples) / 2)
    ways, rank = 1, 0  # ways: number of the 2**samples choices of signs with at most `rank` below the median
    while ways <= tail * 2**samples:
        rank += 1
        ways += math.comb(samples, rank)
    return max(1, rank)


def _decimals(value: float) -> int:
    """Return how many decimals show three significant digits of `value`: at least two below 10."""
    if value == 0:
        return 2
    return min(9, max(0, 2 - math.floor(math.log10(abs(value)))))
