"""Which submissions are timed on the device: about one in `every`, at random gaps.

A fixed gap would beat with the layer's rhythm (four GEMMs a layer) and time the same shape for ever.
"""

from __future__ import annotations

import numpy as np

GAPS = 4096
SAMPLES_LEAST = 32
SHORTEST_GAP = 4  # denser sampling would slow the run it measures
NEVER = 1 << 62


def sample_gap(every: int, launches: int) -> int:
    """`every`, or less where so few launches are to come that fewer than SAMPLES_LEAST would be timed."""
    return min(every, max(SHORTEST_GAP, launches // SAMPLES_LEAST)) if every else 0


class Sampler:
    """Counts down to the next launch call to be timed. `every` 0 means never."""

    def __init__(self, every: int, seed: int = 0) -> None:
        generator = np.random.default_rng([seed, 0x5A3])
        self._gaps = generator.integers(1, 2 * every, GAPS).tolist() if every else [NEVER]
        self._next = 0
        self.left = self._gap()  # launch calls before the next timed one

    def _gap(self) -> int:
        gap: int = self._gaps[self._next % len(self._gaps)]
        self._next += 1
        return gap - 1

    def passed(self, launches: int) -> None:
        """`launches` untimed launch calls were made."""
        self.left -= launches

    def taken(self, last: bool) -> None:
        """The timed one was made; after the `last` that there is room for, none follows."""
        self.left = NEVER if last else self._gap()
