"""How many repeats a comparison needs, and when enough have been taken.

In: times of repeats. Out: numbers of repeats, or whether to stop. Pure, and the same for the same seed.

    repeats_needed([9.1, 9.0, 9.2, 9.1, 9.1], [3.0, 3.0, 3.0, 3.0, 3.1], paired=True)       # 263
    settled({"baseline": [9.1, 9.0, 9.2], "batched": [3.0, 3.1, 3.0]}, "baseline", 0.05)    # True

The number needed rests on the normal approximation of the estimate in `shift`, on log ratios, whose noise is estimated
by the median distance between two of them (Shamos 1976; Park, Kim and Wang, arXiv:1908.00462), as one outlier must not
ask for thousands of repeats. It follows Stein's two-stage rule (Annals of Mathematical Statistics 16, 1945): quantiles
of Student's t with the few degrees of freedom of that noise, so that the number holds although a few repeats tell
little of their noise; more repeats ask for fewer. Simulated from 10 repeats, with 0.5% to 3% of log-normal noise and
3% of outliers, A against A came out as the same in 96 to 100 of 100 at the number asked for, and 2% as a difference in
98 to 100. It never uses the effect that was observed (Hoenig and Heisey,
The American Statistician 55, 2001: power at an observed effect only restates the result).

`settled` stops by the width of intervals, never by what they say of an effect: to stop as soon as a difference
shows would find one too often. Chow and Robbins, Annals of Mathematical Statistics 36, 1965: taken until an interval
of fixed width is reached, its coverage tends to what it states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from launchopt.statistics.interval import (
    FEWEST_REPEATS,
    SMALLEST_EFFECT,
    Interval,
    median_interval,
    ratio_interval,
)
from launchopt.statistics.shift import CONFIDENCE, logarithms, satterthwaite, student_quantile

POWER = 0.99
FEWEST_FOR_NOISE = 5  # of 3 repeats even a safe guess of the noise asks for tens of times too many
FIRST_REPEATS = 10  # what to take where there are too few to say
OUTLIERS = 3  # repeats on top: where few are needed, two or three outliers that nobody has seen yet decide
FEWEST_PAIRS = 6  # for an interval by ranks
FEWEST_UNPAIRED = 4
EFFICIENCY = 3 / math.pi  # of the Hodges-Lehmann estimate, where noise is normal
STOPPING_RESAMPLES = 2000
_SHAMOS = 1 / (math.sqrt(2) * NormalDist().inv_cdf(0.75))
_SHAMOS_DOF = 0.75  # of those of a standard deviation: 0.75 at 5 and 0.83 at 30 repeats, simulated


def settled(
    samples: Mapping[str, Sequence[float]], baseline: str | None, relative_half_width: float, *, seed: int = 0
) -> bool:
    """Whether every arm's median, and every paired ratio over `baseline`, is known within +- `relative_half_width`.

    `samples`: times by arm, sample i of every arm taken in repeat i; the arms that have fewer repeats than
    `interval.FEWEST_REPEATS` are not settled. `baseline` None: no ratios. The bounds are those of 95% bootstrap
    intervals. Raises ValueError for a half-width that is not above 0, a baseline that is not among the arms, samples
    that are not finite and positive, and arms that differ in length where there is a baseline.
    """
    if not relative_half_width > 0:
        raise ValueError(f"relative half-width {relative_half_width:g} is not above 0")
    if baseline is not None and baseline not in samples:
        raise ValueError(f"no arm {baseline!r} among {', '.join(samples)}")
    lengths = {arm: len(times) for arm, times in samples.items()}
    if baseline is not None and len(set(lengths.values())) > 1:
        raise ValueError(f"pairs of arms that differ in length: {lengths}")
    drawn = STOPPING_RESAMPLES
    medians = (median_interval(times, seed=seed, resamples=drawn) for times in samples.values())
    ratios = (
        ratio_interval(samples[baseline], times, paired=True, seed=seed, resamples=drawn)
        for arm, times in samples.items()
        if baseline is not None and arm != baseline
    )
    return all(_is_within(one, relative_half_width) for each in (medians, ratios) for one in each)


def _is_within(interval: Interval, relative_half_width: float) -> bool:
    if interval.low is None or interval.high is None:
        return False
    room = relative_half_width * abs(interval.value)
    return interval.low >= interval.value - room and interval.high <= interval.value + room


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviation of a log ratio from repeat to repeat, and how many degrees of freedom its estimate has."""

    deviation: float
    dof: float


def noise_of(above: Sequence[float], below: Sequence[float], *, paired: bool) -> Noise | None:
    """The noise of one repeat of both arms; None for fewer than `interval.FEWEST_REPEATS`."""
    upper, lower = logarithms(above), logarithms(below)
    if min(upper.size, lower.size) < FEWEST_REPEATS:
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
    """Repeats of each arm, those at hand included, that decide with probability `power`.

    None where there are fewer than `FEWEST_FOR_NOISE`: take `FIRST_REPEATS` and ask again. To decide is to call arms
    SAME that are the same, and FASTER or SLOWER those that differ by twice the `smallest_effect`. What lies closer to
    the smallest effect than that may need any number.
    """
    noise = noise_of(above, below, paired=paired)
    if noise is None or min(len(above), len(below)) < FEWEST_FOR_NOISE:
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
    power: float = POWER,
) -> float | None:
    """The effect (0.03: 3%) that as many repeats as these call FASTER with probability `power`; None: too few."""
    repeats = min(len(above), len(below))
    noise = noise_of(above, below, paired=paired)
    if noise is None or repeats < FEWEST_FOR_NOISE:
        return None
    reach = _quantiles(noise.dof, power) * noise.deviation / math.sqrt(EFFICIENCY * repeats)
    return (1 + smallest_effect) * math.exp(reach) - 1


def _quantiles(dof: float, power: float) -> float:
    return student_quantile((1 + CONFIDENCE) / 2, dof) + student_quantile(power, dof)


def _shamos(values: NDArray[np.float64]) -> float:
    first, second = np.triu_indices(values.size, 1)
    return _SHAMOS * float(np.median(np.abs(values[first] - values[second])))
