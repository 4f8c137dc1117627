"""Choose the launches that are timed on the device: about one in `every`, with random gaps between them.

With a fixed gap that is a multiple of the launches per layer, the timed launches would all have the same shape.
"""

from __future__ import annotations

import numpy as np

GAPS = 4096  # random gaps, which are used in turn
SAMPLES_LEAST = 32  # fewest timed launches in a run, if it has enough launches
SHORTEST_GAP = 4  # shortest mean gap; with a shorter one, timing would slow the run
NEVER = 1 << 62  # a gap that no run reaches


def sample_gap(every: int, launches: int) -> int:
    """Return the mean gap for a run of `launches`: `every`, or less so that at least SAMPLES_LEAST are timed."""
    return min(every, max(SHORTEST_GAP, launches // SAMPLES_LEAST)) if every else 0


class Sampler:
    """Counts down to the next launch call to time. every: mean gap; 0: none is timed."""

    def __init__(self, every: int, seed: int = 0) -> None:
        generator = np.random.default_rng([seed, 0x5A3])
        self._gaps = generator.integers(1, 2 * every, GAPS).tolist() if every else [NEVER]
        self._next = 0
        self.left = self._gap()  # number of launch calls before the next one to time

    def _gap(self) -> int:
        gap: int = self._gaps[self._next % len(self._gaps)]
        self._next += 1
        return gap - 1

    def passed(self, launches: int) -> None:
        """Count `launches` launch calls that were not timed."""
        self.left -= launches

    def taken(self, last: bool) -> None:
        """Begin the next gap after a timed launch. last: no further launch can be timed."""
        self.left = NEVER if last else self._gap()
