"""Arrivals by a rule rather than from a file: evenly spaced, at random, or in bursts.

In: a mean rate in arrivals a second (lambda below), how many, and a seed where chance is involved.
Out: due times, int64 [count], ns since the start, never decreasing. The first need not be 0.

All count in units of the mean gap 1/lambda, and scale to ns once, at the end. So rounding does not add up, a
sweep over rates draws the same random numbers, and a longer run of the same seed begins with the shorter one.
"""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

SPAN_NS_MAX = 2**62  # 146 years; leaves int64 room for whatever is added to a due time

_POISSON, _BURSTY = 0x901550, 0xB0257  # so that no two users of one seed draw the same numbers


def constant(rate_per_s: float, count: int) -> NDArray[np.int64]:
    """Evenly spaced: t_i = i / lambda for i = 0 .. count - 1, each rounded for itself, so that nothing drifts.

    Raises ValueError for a rate that is not positive and finite, a count below 1, or times beyond SPAN_NS_MAX.
    """
    _check(rate_per_s, count)
    return _due_ns(np.arange(count, dtype=np.float64), rate_per_s)


def poisson(rate_per_s: float, count: int, seed: int) -> NDArray[np.int64]:
    """Independent arrivals: t_i = (E_0 + ... + E_i) / lambda, the E exponential with mean 1.

    Raises ValueError for a rate that is not positive and finite, a count below 1, or times beyond SPAN_NS_MAX.
    """
    _check(rate_per_s, count)
    generator = np.random.default_rng([seed, _POISSON])
    return _due_ns(np.cumsum(generator.standard_exponential(count)), rate_per_s)


def bursty(rate_per_s: float, burst_size: int, peak_per_s: float | None, count: int, seed: int) -> NDArray[np.int64]:
    """Bursts that start as a Poisson process of rate lambda / burst_size; overlapping ones are merged.

    Burst b starts at s_b and has the arrivals s_b + j / peak_per_s for j = 0 .. burst_size - 1; peak_per_s None:
    all at s_b. These are the first `count` arrivals from time 0 on of a process that has been going on for ever:
    the first bursts may have begun before 0, since starting with none under way would start below the mean rate.
    With burst_size 1 this is a Poisson process. The last burst may be cut short. Memory: count + some burst_size.

    Raises ValueError for a rate that is not positive and finite, a count or burst_size below 1, a peak_per_s below
    the rate, or times beyond SPAN_NS_MAX.
    """
    _check(rate_per_s, count)
    if burst_size < 1:
        raise ValueError(f"burst_size is {burst_size}, must be at least 1")
    if peak_per_s is not None and not rate_per_s <= peak_per_s < inf:
        raise ValueError(f"peak_per_s is {peak_per_s}, must be finite and at least the mean rate {rate_per_s}")
    spacing = 0.0 if peak_per_s is None else rate_per_s / peak_per_s
    offsets = np.arange(burst_size) * spacing
    generator = np.random.default_rng([seed, _BURSTY])
    gaps = np.empty(0)
    while True:
        gaps = np.append(gaps, generator.standard_exponential(len(gaps) or count // burst_size + 2))
        starts = np.cumsum(gaps) * burst_size - offsets[-1]
        arrivals = np.sort((starts[:, None] + offsets).ravel())
        arrivals = arrivals[np.searchsorted(arrivals, 0.0) :]
        # A burst not drawn yet starts after the last that was: what comes before that is complete.
        if len(arrivals) >= count and arrivals[count - 1] <= starts[-1]:
            return _due_ns(arrivals[:count], rate_per_s)


def _check(rate_per_s: float, count: int) -> None:
    if not 0 < rate_per_s < inf:
        raise ValueError(f"rate_per_s is {rate_per_s}, must be positive and finite")
    if count < 1:
        raise ValueError(f"count is {count}, must be at least 1")


def _due_ns(mean_gaps: NDArray[np.float64], rate_per_s: float) -> NDArray[np.int64]:
    """Times in units of the mean gap, in ns."""
    if float(mean_gaps[-1]) * 1e9 > rate_per_s * SPAN_NS_MAX:
        raise ValueError(
            f"{len(mean_gaps)} arrivals at {rate_per_s} a second take over 146 years: too far for int64 ns"
        )
    return np.rint(mean_gaps * 1e9 / rate_per_s).astype(np.int64)
