"""poisson: independent of each other, at arrival.rate_per_s on average."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.base import Arrival, check_rate, in_ns
from launchopt.options import REQUIRED, option

_STREAM = 0x901550  # joined to the run's seed, so that no other user of that seed draws the same numbers


def poisson(rate_per_s: float, count: int, seed: int) -> NDArray[np.int64]:
    """Return t_i = (E_0 + ... + E_i) / rate, the E exponential with mean 1.

    Raises ValueError for a rate that is not positive and finite, a count below 1, or times beyond SPAN_NS_MAX.
    """
    check_rate(rate_per_s, count)
    generator = np.random.default_rng([seed, _STREAM])
    return in_ns(np.cumsum(generator.standard_exponential(count)), rate_per_s)


@dataclass(slots=True)
class Poisson(Arrival):
    """Arrivals of a Poisson process: they are independent of each other."""

    kind: str = "poisson"
    rate_per_s: float = option(REQUIRED, "arrivals a second, on average", is_above_zero=True)

    @property
    def asked_rate_per_s(self) -> float:
        """Mean rate of arrivals, per s."""
        return self.rate_per_s

    def due_ns(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return the due times that the seed gives."""
        return poisson(self.rate_per_s, count, seed)
