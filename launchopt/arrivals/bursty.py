"""bursty: in bursts of arrival.burst_size, at arrival.rate_per_s on average."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.base import Arrival, check_rate, in_ns
from launchopt.errors import ConfigError
from launchopt.options import REQUIRED, option

MOST_BURST = 1 << 20  # maximum arrivals of one burst
_STREAM = 0xB0257  # joined to the run's seed, so that no other user of that seed draws the same numbers


def bursty(rate_per_s: float, burst_size: int, peak_per_s: float | None, count: int, seed: int) -> NDArray[np.int64]:
    """Return bursts that start as a Poisson process of rate rate_per_s / burst_size; overlapping ones are merged.

    Burst b starts at s_b and has the arrivals s_b + j / peak_per_s for j = 0 .. burst_size - 1. If peak_per_s is None,
    all arrive at s_b. The process has no beginning, and the result is its first `count` arrivals from time 0 on. So
    bursts that began before 0 count, too: without them the rate would be too low at the start. The last burst may be
    cut short. With burst_size 1 this is a Poisson process. Memory: about count + burst_size numbers.

    Raises ValueError for a rate that is not positive and finite, a count or burst_size below 1, a peak_per_s below
    the rate, or times beyond SPAN_NS_MAX.
    """
    check_rate(rate_per_s, count)
    if burst_size < 1:
        raise ValueError(f"burst_size is {burst_size}, must be at least 1")
    if peak_per_s is not None and not rate_per_s <= peak_per_s < inf:
        raise ValueError(f"peak_per_s is {peak_per_s}, must be finite and at least the mean rate {rate_per_s}")
    spacing = 0.0 if peak_per_s is None else rate_per_s / peak_per_s
    offsets = np.arange(burst_size) * spacing
    generator = np.random.default_rng([seed, _STREAM])
    gaps = np.empty(0)
    while True:
        gaps = np.append(gaps, generator.standard_exponential(len(gaps) or count // burst_size + 2))
        starts = np.cumsum(gaps) * burst_size - offsets[-1]
        arrivals = np.sort((starts[:, None] + offsets).ravel())
        arrivals = arrivals[np.searchsorted(arrivals, 0.0) :]
        # A burst not drawn yet starts after the last one drawn: everything before that is complete.
        if len(arrivals) >= count and arrivals[count - 1] <= starts[-1]:
            return in_ns(arrivals[:count], rate_per_s)


@dataclass(slots=True)
class Bursty(Arrival):
    """Bursts of `burst_size` arrivals, independent of each other."""

    kind: str = "bursty"
    rate_per_s: float = option(REQUIRED, "arrivals a second, on average", is_above_zero=True)
    burst_size: int = option(8, "arrivals a burst", low=1, high=MOST_BURST)
    peak_per_s: float | None = option(None, "arrivals a second within a burst; null: all at once", is_above_zero=True)

    def __post_init__(self) -> None:
        Arrival.__post_init__(self)
        if self.peak_per_s is not None and self.peak_per_s < self.rate_per_s:
            raise ConfigError("arrival.peak_per_s", self.peak_per_s, f"must be at least rate_per_s={self.rate_per_s}")

    @property
    def asked_rate_per_s(self) -> float:
        """Mean rate of arrivals, per s."""
        return self.rate_per_s

    def due_ns(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return the due times that the seed gives."""
        return bursty(self.rate_per_s, self.burst_size, self.peak_per_s, count, seed)
