"""Compute how many repeats a comparison needs, and decide when to stop taking repeats.

Input: times, one per repeat. Output: numbers of repeats, or whether to stop. The same seed gives the same result.

    repeats_needed([9.1, 9.0, 9.2, 9.1, 9.1], [3.0, 3.0, 3.0, 3.0, 3.1], paired=True)       # 263
    settled({"baseline": [9.1, 9.0, 9.2, 9.1, 9.1], "batched": [3.0, 3.1, 3.0, 3.0, 3.0]}, "baseline", 0.05)    # True

`repeats_needed` uses the normal approximation of the estimate in `shift`, on log ratios. It estimates their noise by
the median distance between two log ratios (Shamos, 1976; Park, Kim and Wang, arXiv:1908.00462), so that one outlier
does not raise the number to thousands.

`repeats_needed` follows Stein's two-stage rule (Annals of Mathematical Statistics 16, 1945). The quantiles are those of
Student's t with the few degrees of freedom of the noise estimate. The number is therefore safe although a few repeats
estimate the noise badly. More repeats give a better estimate and a smaller number.

The rule was simulated from 10 repeats, with 0.5% to 3% of log-normal noise and 3% of outliers. At the number of repeats
that it returned, equal arms came out as SAME in 96 to 100 of 100 cases. A difference of 2% was found in 98 to 100.

The rule never uses the observed effect. Power at an observed effect only restates the result (Hoenig and Heisey, The
American Statistician 55, 2001).

`settled` stops by the width of intervals, never by the effect. Stopping at the first visible difference would find
differences too often. Stopping at a fixed width keeps the stated coverage asymptotically (Chow and Robbins, Annals of
Mathematical Statistics 36, 1965).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from launchopt.statistics.interval import CONFIDENCE, SMALLEST_EFFECT, Interval, median_interval
from launchopt.statistics.shift import factor, logarithms, satterthwaite, student_quantile

POWER = 0.99
FOUND = 0.9  # share of cases in which the difference that a text calls detectable is found
FEWEST_FOR_NOISE = 5  # minimum number of repeats; from 3 repeats the result would be tens of times too large
FIRST_REPEATS = 10  # repeats to take first, when there are too few for an estimate
MOST_NEXT = 50  # repeats to propose at most, unless twice those taken are more: a few repeats overestimate the noise
AFFORDABLE = 1000  # if more than these are needed, no more are proposed: the noise has to fall
OVERESTIMATE = 10  # fewer than FIRST_REPEATS may give a number that is too large by this factor
OUTLIERS = 3  # repeats added to the result: among few repeats, two or three outliers could decide
FEWEST_PAIRS = 6  # minimum for an interval by ranks
FEWEST_UNPAIRED = 3  # minimum per arm, without pairs: `processes.FEWEST_PROCESSES`
EFFICIENCY = 3 / math.pi  # efficiency of the estimate relative to a mean, with normal noise (Hodges and Lehmann, 1963)
_SHAMOS = 1 / (math.sqrt(2) * NormalDist().inv_cdf(0.75))
_SHAMOS_DOF = 0.75  # relative to a standard deviation's degrees of freedom; simulated: 0.75 at 5 repeats, 0.83 at 30


def settled(samples: Mapping[str, Sequence[float]], baseline: str | None, relative_half_width: float) -> bool:
    """Return whether every median, and every paired ratio over `baseline`, is known within +- `relative_half_width`.

    samples: times by arm; sample i of each arm comes from repeat i. An arm with fewer than `interval.FEWEST_REPEATS`
    samples is not settled. baseline: an arm, or None for no ratios. The bounds are those of `median_interval` and
    `shift.factor`. ValueError: the half-width is not above 0, `baseline` is no arm, a sample is not finite and
    positive, or arms differ in length although there is a baseline.
    """
    if not relative_half_width > 0:
        raise ValueError(f"relative half-width {relative_half_width:g} is not above 0")
    if baseline is not None and baseline not in samples:
        raise ValueError(f"no arm {baseline!r} among {', '.join(samples)}")
    lengths = {arm: len(times) for arm, times in samples.items()}
    if baseline is not None and len(set(lengths.values())) > 1:
        raise ValueError(f"pairs of arms that differ in length: {lengths}")
    medians = (median_interval(times) for times in samples.values())
    ratios = (
        factor(samples[baseline], times, paired=True).interval
        for arm, times in samples.items()
        if baseline is not None and arm != baseline
    )
    return all(_is_within(one, relative_half_width) for each in (medians, ratios) for one in each)


def _is_within(interval: Interval, relative_half_width: float) -> bool:
    if interval.low is None or interval.high is None:
        return False
    tolerance = relative_half_width * abs(interval.value)
    return interval.low >= interval.value - tolerance and interval.high <= interval.value + tolerance


@dataclass(frozen=True, slots=True)
class Noise:
    """The standard deviation of a log ratio between repeats, and the degrees of freedom of its estimate."""

    deviation: float
    dof: float


def noise_of(above: Sequence[float], below: Sequence[float], *, paired: bool) -> Noise | None:
    """Return the noise of one repeat of both arms; None for fewer than FEWEST_FOR_NOISE repeats.

    Source: Shamos (1976). Satterthwaite (1946) gives the degrees of freedom of two unpaired arms.
    """
    upper, lower = logarithms(above), logarithms(below)
    if min(upper.size, lower.size) < FEWEST_FOR_NOISE:
        return None
    arms = [upper - lower] if paired else [upper, lower]
    parts = [(_shamos(arm) ** 2, _SHAMOS_DOF * (arm.size - 1)) for arm in arms]
    return Noise(math.sqrt(sum(variance for variance, _ in parts)), satterthwaite(parts))


def repeats_needed(
    above: Sequence[float],
    below: Sequence[float],
    *,
    paired: bool,
    smallest_effect: float = SMALLEST_EFFECT,
    power: float = POWER,
) -> int | None:
    """Return the number of repeats of each arm, including those taken, that decide with probability `power`.

    To decide means: equal arms give SAME, and arms that differ by twice `smallest_effect` give FASTER or SLOWER. Arms
    that differ by less, but are not equal, may need any number. None: there are fewer than `FEWEST_FOR_NOISE` repeats;
    take `FIRST_REPEATS` and call again. Source: Stein (1945), see the module.
    """
    noise = noise_of(above, below, paired=paired)
    if noise is None:
        return None
    reach = _quantiles(noise.dof, (1 + power) / 2) * noise.deviation / math.sqrt(EFFICIENCY)
    fewest = FEWEST_PAIRS if paired else FEWEST_UNPAIRED
    by_noise = (reach / math.log((1 + 2 * smallest_effect) / (1 + smallest_effect))) ** 2
    return max(fewest, math.ceil(by_noise)) + OUTLIERS


def detectable_effect(
    above: Sequence[float],
    below: Sequence[float],
    *,
    paired: bool,
    smallest_effect: float = SMALLEST_EFFECT,
    power: float = FOUND,
) -> float | None:
    """Return the effect (0.03: 3%) that this number of repeats calls FASTER with probability `power`.

    None: there are fewer than `FEWEST_FOR_NOISE` repeats. Source: Stein (1945), see the module.
    """
    repeats = min(len(above), len(below))
    noise = noise_of(above, below, paired=paired)
    if noise is None:
        return None
    reach = _quantiles(noise.dof, power) * noise.deviation / math.sqrt(EFFICIENCY * repeats)
    return (1 + smallest_effect) * math.exp(reach) - 1


def _quantiles(dof: float, power: float) -> float:
    return student_quantile((1 + CONFIDENCE) / 2, dof) + student_quantile(power, dof)


def _shamos(values: NDArray[np.float64]) -> float:
    first, second = np.triu_indices(values.size, 1)
    return _SHAMOS * float(np.median(np.abs(values[first] - values[second])))
