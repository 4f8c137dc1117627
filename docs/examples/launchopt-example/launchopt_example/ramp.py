"""ramp: arrivals that come faster and faster, at arrival.rate_per_s on average."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.interface import REQUIRED, Arrival, option


@dataclass(slots=True)
class Ramp(Arrival):
    """Arrivals whose rate grows linearly from 0."""

    kind: str = "ramp"
    rate_per_s: float = option(REQUIRED, "arrivals a second, on average", is_above_zero=True)

    @property
    def asked_rate_per_s(self) -> float:
        """Mean rate of arrivals, per s."""
        return self.rate_per_s

    def due_ns(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return t_i = T sqrt((i + 1) / count), T the time of all: the number of arrivals until t grows as t^2."""
        whole_ns = count * 1e9 / self.rate_per_s
        return (whole_ns * np.sqrt(np.arange(1, count + 1) / count)).astype(np.int64)
