"""The factor between two sets of times, with few repeats and some outliers.

Input: times (or rates) of two arms, one per repeat. Output: the typical factor between them with a 95% interval.

    factor([9.1, 9.0, 9.3, 9.2, 9.0, 9.1], [3.0, 2.9, 3.1, 3.0, 3.0, 3.0], paired=True)     # 3.03x [2.97, 3.07]

A factor is a shift of logarithms. The estimate is that of Hodges and Lehmann (Annals of Mathematical Statistics 34,
1963). For pairs it is the median of all averages of two log ratios, so a delay of a whole repeat cancels. Without pairs
it is the median of all differences between the two arms.

From six values an arm on, the interval inverts Wilcoxon's signed-rank or rank-sum test (Hollander, Wolfe and Chicken,
Nonparametric Statistical Methods, 2014, sections 3.3 and 4.3). It covers 95% for any noise that both arms share. With
normal noise this estimate needs 5% more repeats than a mean, and a median needs 57% more. Outliers hardly move it.

Ranks give no 95% interval for five pairs. There Student's t interval on logarithms replaces it (Student, 1908; without
pairs Welch, 1947). An outlier widens it. Fewer than FEWEST_REPEATS values give the range of the ratios in its place.

tests/statistics/test_coverage.py simulates the coverage with log-normal, drifting, heavy-tailed and bimodal noise: at
least 93% at 5, 10 and 20 pairs. `processes` applies the same estimate to the levels of processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from launchopt.statistics.interval import CONFIDENCE, FEWEST_REPEATS, Interval

RANKS = "exact interval by Wilcoxon ranks"
STUDENT = "Student's t interval (too few for ranks)"
FEWEST_FOR_RANKS = 6
_EXACT_UP_TO = 25  # repeats of an arm; above, the normal approximation of the rank statistic is within half a rank

_Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor between two arms and the method of its bounds; the method is None if there are no bounds."""

    interval: Interval
    method: str | None


def factor(above: ArrayLike, below: ArrayLike, *, paired: bool, fewest: int = FEWEST_REPEATS) -> Factor:
    """Return the typical above / below with its 95% interval (Hodges and Lehmann, 1963).

    paired: value i of both comes from repeat i. fewest: number of values of an arm below which there are no bounds.
    ValueError: a value is not finite and positive, or paired arms differ in length.
    """
    upper, lower = logarithms(above), logarithms(below)
    if paired and upper.size != lower.size:
        raise ValueError(f"pairs, but {upper.size} and {lower.size} values")
    ratios = upper - lower if paired else np.subtract.outer(upper, lower).ravel()
    differences = walsh_averages(ratios) if paired else np.sort(ratios)
    repeats = min(upper.size, lower.size)
    value = math.exp(float(np.median(differences)))
    spread = (math.exp(float(ratios.min())), math.exp(float(ratios.max()))) if ratios.size > 1 else None
    if repeats < fewest:
        return Factor(Interval(value, None, None, repeats, range=spread), None)
    if repeats >= FEWEST_FOR_RANKS:
        rank = _signed_rank(upper.size) if paired else _rank_sum(upper.size, lower.size)
        low, high, method = float(differences[rank - 1]), float(differences[-rank]), RANKS
    else:
        (low, high), method = _student(upper, lower, paired), STUDENT
    return Factor(Interval(value, math.exp(low), math.exp(high), repeats, range=spread), method)


def logarithms(values: ArrayLike) -> _Values:
    """Return natural logarithms, flattened. ValueError: there are no values, or one is not finite and positive."""
    checked = np.asarray(values, np.float64).ravel()
    if not checked.size:
        raise ValueError("no values")
    if not np.isfinite(checked).all() or (checked <= 0).any():
        raise ValueError(f"values must be finite and positive: {checked.tolist()}")
    logs: _Values = np.log(checked)
    return logs


@lru_cache(maxsize=256)
def student_quantile(probability: float, dof: float) -> float:
    """Return a quantile of Student's t (Student, 1908) for `dof` >= 1.

    It integrates numerically: t = sqrt(dof) tan(u), where u has a density proportional to cos(u)^(dof - 1).
    """
    angles = np.linspace(0, math.pi / 2, 4_001)
    density = np.cos(angles) ** (dof - 1)
    area = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    wanted = abs(2 * probability - 1) * area[-1]
    return math.copysign(math.sqrt(dof) * math.tan(np.interp(wanted, area, angles)), probability - 0.5)


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of (variance, degrees of freedom) parts.

    Source: Satterthwaite, Biometrics Bulletin 2, 1946.
    """
    total = sum(variance for variance, _ in parts)
    if total == 0:
        return sum(dof for _, dof in parts)
    return total**2 / sum(variance**2 / dof for variance, dof in parts)


def walsh_averages(values: _Values) -> _Values:
    """Return the averages of all pairs of values, a value with itself included, in ascending order (Walsh, 1949)."""
    first, second = np.triu_indices(values.size)
    return np.sort((values[first] + values[second]) / 2)


@lru_cache(maxsize=256)
def _signed_rank(pairs: int) -> int:
    """Return the 1-based rank, from either end, of the average that bounds the interval.

    Source: Wilcoxon's signed-rank test, see the module.
    """
    if pairs > 2 * _EXACT_UP_TO:
        spread = math.sqrt(pairs * (pairs + 1) * (2 * pairs + 1) / 24)
        return _normal_rank(pairs * (pairs + 1) / 4, spread)
    shares = np.ones(1)
    for rank in range(1, pairs + 1):
        without, with_rank = np.pad(shares, (0, rank)), np.pad(shares, (rank, 0))
        shares = (without + with_rank) / 2
    return _count_within_tail(shares)


@lru_cache(maxsize=256)
def _rank_sum(first: int, second: int) -> int:
    """Return the rank of the difference between two arms that bounds the interval.

    Source: Wilcoxon's rank-sum test, see the module.
    """
    if max(first, second) > _EXACT_UP_TO:
        return _normal_rank(first * second / 2, math.sqrt(first * second * (first + second + 1) / 12))
    ways = np.zeros(first * second + 1)  # Gaussian binomial coefficients: product of (1 - q^(second + i)) / (1 - q^i)
    ways[0] = 1
    for i in range(1, first + 1):
        ways[second + i :] -= ways[: -(second + i)].copy()
        for offset in range(i):
            ways[offset::i] = np.cumsum(ways[offset::i])
    return _count_within_tail(ways / ways.sum())


def _count_within_tail(shares: _Values) -> int:
    return int(np.searchsorted(np.cumsum(shares), (1 - CONFIDENCE) / 2, side="right"))


def _normal_rank(centre: float, spread: float) -> int:
    return math.floor(centre - NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * spread)


def _student(upper: _Values, lower: _Values, paired: bool) -> tuple[float, float]:
    centre = float(upper.mean() - lower.mean())
    if paired:
        variance, dof = float((upper - lower).var(ddof=1)) / upper.size, float(upper.size - 1)
    else:
        parts = [(float(arm.var(ddof=1)) / arm.size, arm.size - 1.0) for arm in (upper, lower)]
        variance, dof = sum(part for part, _ in parts), satterthwaite(parts)
    reach = student_quantile((1 + CONFIDENCE) / 2, dof) * math.sqrt(variance)
    return centre - reach, centre + reach
