"""How long the rest of a job takes, from the runs that are finished.

A run counts from the end of the run before it, so its time includes output checks and writing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean


class Pace:
    """The times of a job's finished runs, by arm. Every arm gets the same number of runs."""

    def __init__(self, arms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._took_s: list[list[float]] = [[] for _ in range(arms)]
        self._since_s = clock()

    def begun(self) -> None:
        """Start the clock of the next run."""
        self._since_s = self._clock()

    def finished(self, arm: int) -> None:
        """Add the run that ends now, and start the clock of the next one."""
        self._took_s[arm].append(self._clock() - self._since_s)
        self.begun()

    def place(self, arm: int) -> str:
        """Return `3 of 9, first repeat in about 0:40` for an arm before its warm-up run, if each arm has one."""
        left_s = self.left_s(len(self._took_s))
        left = "" if left_s is None else f", first repeat in about {clock_text(left_s)}"
        return f"{arm + 1} of {len(self._took_s)}{left}"

    def left_s(self, runs: int) -> float | None:
        """Return the seconds until `runs` runs are finished; None before the first one is.

        An arm without a finished run is taken to need the mean of the others.
        """
        means = [fmean(took) if took else None for took in self._took_s]
        known = [mean for mean in means if mean is not None]
        if not known:
            return None
        each = runs / len(means)
        ahead = (each - len(took) for took in self._took_s)
        whole = sum(count * (fmean(known) if mean is None else mean) for count, mean in zip(ahead, means, strict=True))
        return max(0.0, whole - (self._clock() - self._since_s))


def clock_text(seconds: float) -> str:
    """Return a time as `0:07`, `12:30` or `1:02:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
