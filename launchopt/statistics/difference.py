"""The difference between two sets of times that one run took in turn, so that differences in a row add up.

    difference([9.1, 9.0, 9.3, 9.2, 9.0], [3.0, 2.9, 3.1, 3.0, 3.0], unit=" ms")      # 6.12 ms [6.02, 6.22]

The estimate is the mean of the differences of pairs. Of the estimates here only a mean adds up: what A takes beyond B,
and B beyond C, is what A takes beyond C, to the last digit. The interval is Student's t of the differences (Student,
1908). An outlier moves the mean, and widens the interval. `shift.factor` is the estimate to rank two arms by.

tests/statistics/test_coverage.py simulates the coverage with log-normal, drifting, heavy-tailed and bimodal noise: at
least 93% at 5, 10 and 20 pairs. Below FEWEST_REPEATS the range of the differences stands in place of an interval.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from launchopt.statistics.interval import CONFIDENCE, FEWEST_REPEATS, Interval
from launchopt.statistics.shift import student_quantile


def difference(before: ArrayLike, after: ArrayLike, *, unit: str = "", fewest: int = FEWEST_REPEATS) -> Interval:
    """Return the mean of before - after with its 95% interval; value i of both is a pair.

    fewest: number of pairs below which there are no bounds. ValueError: there are no pairs, the two differ in length,
    or a value is not finite.
    """
    first, second = (np.asarray(each, np.float64).ravel() for each in (before, after))
    if first.size != second.size or not first.size:
        raise ValueError(f"pairs, but {first.size} and {second.size} values")
    differences = first - second
    if not np.isfinite(differences).all():
        raise ValueError(f"values must be finite: {first.tolist()}, {second.tolist()}")
    pairs, value = differences.size, float(first.mean() - second.mean())
    spread = (float(differences.min()), float(differences.max())) if pairs > 1 else None
    if pairs < fewest:
        return Interval(value, None, None, pairs, unit, spread)
    reach = student_quantile((1 + CONFIDENCE) / 2, pairs - 1.0) * float(differences.std(ddof=1)) / math.sqrt(pairs)
    return Interval(value, value - reach, value + reach, pairs, unit, spread)
