"""The factor between two arms whose repeats come from several processes.

Input: times (or rates) of two arms, as one group for each process. Output: a `shift.Factor`.

    same_processes([[9.1, 9.0, 9.3, 9.2, 9.0]], [[3.0, 2.9, 3.1, 3.0, 3.0]])      # pairs of repeats of one process
    separate([[9.1, 9.0]] * 3, [[3.0, 2.9]] * 3)                                  # 3 processes against 3 others

Repeats of one process share its memory, its plans and the state of the machine. Their spread says nothing of the next
process. The level of a process is the pseudo-median of its logarithms (Hodges and Lehmann, 1963), and an interval rests
on the spread between levels. Two arms that one process took in turn have a level in common: that of their log ratio.

Two arms of different processes need FEWEST_PROCESSES a side. With fewer, a `ProcessNoise` that was measured before on
the same machine can stand in for their spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from launchopt.statistics.interval import CONFIDENCE, FEWEST_REPEATS, Interval, median_interval
from launchopt.statistics.shift import Factor, factor, logarithms, satterthwaite, student_quantile, walsh_averages

FEWEST_PROCESSES = 3
CALIBRATED = "Student's t interval with the noise between processes of launchopt doctor"

Groups = Sequence[Sequence[float]]  # the values of one arm, by process


@dataclass(frozen=True, slots=True)
class ProcessNoise:
    """The standard deviation between the levels of processes (0.01: 1%), and the degrees of freedom of its estimate."""

    deviation: float
    dof: float


def levels(groups: Groups) -> list[float]:
    """Return the level of each process: the exponential of the pseudo-median of its logarithms."""
    return [math.exp(float(np.median(walsh_averages(logarithms(group))))) for group in groups]


def ratio_levels(above: Groups, below: Groups) -> list[float]:
    """Return the level of above / below in each process, from pairs of repeats."""
    return levels([list(np.divide(ours, theirs)) for ours, theirs in zip(above, below, strict=True)])


def median_of(groups: Groups, *, unit: str = "") -> Interval:
    """Return the median of all values. Of several processes the bounds are those of the median of their medians."""
    whole = median_interval(np.concatenate(groups), unit=unit)
    if len(groups) == 1:
        return whole
    between = median_interval([float(np.median(group)) for group in groups])
    if between.low is None or between.high is None:
        return replace(whole, low=None, high=None)
    return replace(whole, low=min(between.low, whole.value), high=max(between.high, whole.value))


def process_noise(groups: Groups) -> ProcessNoise | None:
    """Return the noise between processes that did the same work; None for fewer than FEWEST_PROCESSES."""
    if len(groups) < FEWEST_PROCESSES:
        return None
    return ProcessNoise(float(np.log(levels(groups)).std(ddof=1)), len(groups) - 1.0)


def same_processes(above: Groups, below: Groups) -> Factor:
    """Return the factor of two arms that the same processes took in turn: above[p][i] and below[p][i] are a pair.

    From FEWEST_PROCESSES on, the interval rests on one level a process, below that on the pairs.
    """
    pairs = factor(np.concatenate(above), np.concatenate(below), paired=True)
    if len(above) < FEWEST_PROCESSES or pairs.interval.repeats < FEWEST_REPEATS:
        return pairs
    ratios = ratio_levels(above, below)
    found = factor(ratios, np.ones(len(ratios)), paired=True, fewest=FEWEST_PROCESSES)
    interval = replace(found.interval, repeats=pairs.interval.repeats, range=pairs.interval.range)
    return replace(found, interval=interval)


def separate(above: Groups, below: Groups, noise: ProcessNoise | None = None) -> Factor:
    """Return the factor of two arms of different processes.

    noise: measured before; it counts where a side has fewer than FEWEST_PROCESSES processes. None: no interval then.
    """
    upper, lower = np.concatenate(above), np.concatenate(below)
    repeats = min(upper.size, lower.size)
    enough = repeats >= FEWEST_REPEATS
    fewest = FEWEST_PROCESSES if enough else len(above) + len(below)
    found = factor(levels(above), levels(below), paired=False, fewest=fewest)
    if found.method is None and enough and noise is not None:
        found = _calibrated(found, above, below, noise)
    is_one = upper.size == lower.size == 1
    ends = None if is_one else (float(upper.min() / lower.max()), float(upper.max() / lower.min()))
    return replace(found, interval=replace(found.interval, repeats=repeats, range=ends))


def _calibrated(found: Factor, above: Groups, below: Groups, noise: ProcessNoise) -> Factor:
    """Return a factor whose interval takes the noise between processes as measured, and adds that of the repeats."""
    if min(len(group) for group in (*above, *below)) < 2:
        return found
    parts = [(noise.deviation**2 * (1 / len(above) + 1 / len(below)), noise.dof)]
    for groups in (above, below):
        for group in groups:
            parts.append((float(logarithms(group).var(ddof=1)) / len(group) / len(groups) ** 2, len(group) - 1.0))
    reach = student_quantile((1 + CONFIDENCE) / 2, satterthwaite(parts)) * math.sqrt(sum(part for part, _ in parts))
    value = found.interval.value
    bounded = replace(found.interval, low=value * math.exp(-reach), high=value * math.exp(reach))
    return Factor(bounded, CALIBRATED)
