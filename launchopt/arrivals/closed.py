"""closed: as fast as the ring takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.base import Arrival


@dataclass(slots=True)
class Closed(Arrival):
    """A closed loop: all requests or commands are due at the start."""

    kind: str = "closed"

    is_closed: ClassVar[bool] = True

    def due_ns(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return zeros."""
        return np.zeros(count, np.int64)
