"""constant: evenly spaced, at arrival.rate_per_s."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.base import Arrival, check_rate, in_ns
from launchopt.options import REQUIRED, option


def constant(rate_per_s: float, count: int) -> NDArray[np.int64]:
    """Return t_i = i / rate for i = 0 .. count - 1. Each is rounded on its own, so that errors do not add up.

    Raises ValueError for a rate that is not positive and finite, a count below 1, or times beyond SPAN_NS_MAX.
    """
    check_rate(rate_per_s, count)
    return in_ns(np.arange(count, dtype=np.float64), rate_per_s)


@dataclass(slots=True)
class Constant(Arrival):
    """Evenly spaced arrivals of requests or of independent commands."""

    kind: str = "constant"
    rate_per_s: float = option(REQUIRED, "arrivals a second", is_above_zero=True)

    @property
    def asked_rate_per_s(self) -> float:
        """Rate of arrivals, per s."""
        return self.rate_per_s

    def due_ns(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return evenly spaced due times."""
        return constant(self.rate_per_s, count)
