"""Where the seconds of a run go, beside the runs that it times: into starts, set-up, warm-up, checks and saving."""

from __future__ import annotations

import time
from collections.abc import Callable


class Laps:
    """Seconds by phase. `begin` ends the phase before, so that the phases add up to the whole time.

    laps = Laps()
    laps.begin("starting")
    laps.begin("checks")
    laps.seconds()      # {"starting": 2.51, "checks": 0.0}
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._phase, self._since_s = "", 0.0

    def begin(self, phase: str) -> None:
        """Begin a phase, perhaps again: its times add up."""
        now = self._clock()
        if self._phase:
            self._seconds[self._phase] += now - self._since_s
        self._phase, self._since_s = phase, now
        self._seconds.setdefault(phase, 0.0)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase so far, in the order of their first beginnings."""
        if self._phase:
            self.begin(self._phase)
        return {phase: round(seconds, 3) for phase, seconds in self._seconds.items()}
