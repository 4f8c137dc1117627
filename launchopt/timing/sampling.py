"""Choice of the submissions that are timed on the device: about one in `every`, at random gaps.

A fixed gap would match the rhythm of the layers (four GEMMs each) and always time the same shape.
"""

from __future__ import annotations

import numpy as np

GAPS = 4096
SAMPLES_LEAST = 32
SHORTEST_GAP = 4  # denser sampling would slow the run it measures
NEVER = 1 << 62


def sample_gap(every: int, launches: int) -> int:
    """Return `every`, or less if fewer than SAMPLES_LEAST of so few launches would be timed."""
    return min(every, max(SHORTEST_GAP, launches // SAMPLES_LEAST)) if every else 0


class Sampler:
    """Counts down to the next launch call that is timed. every: 0 means never."""

    def __init__(self, every: int, seed: int = 0) -> None:
        generator = np.random.default_rng([seed, 0x5A3])
        self._gaps = generator.integers(1, 2 * every, GAPS).tolist() if every else [NEVER]
        self._next = 0
        self.left = self._gap()  # launch calls before the next one that is timed

    def _gap(self) -> int:
        gap: int = self._gaps[self._next % len(self._gaps)]
        self._next += 1
        return gap - 1

    def passed(self, launches: int) -> None:
        """Note `launches` launch calls that were not timed."""
        self.left -= launches

    def taken(self, last: bool) -> None:
        """Begin the next gap after a timed launch. last: there is no room for another sample."""
        self.left = NEVER if last else self._gap()
