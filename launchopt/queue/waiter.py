"""Wait for the other side of a ring: spin, then sleep."""

from __future__ import annotations

import time
from collections.abc import Callable


class Waiter:
    """Spins first, because the other side usually needs only nanoseconds. Then it sleeps, to free the core.

    Two processes that only spin would starve each other on a busy machine with two cores. spin: `Ring.await_record` or
    `Ring.await_free_slots`.
    """

    def __init__(self, spin: Callable[[int], bool], spin_us: float, sleep_us: float) -> None:
        self._spin, self._spin_ns, self._sleep_ns = spin, int(spin_us * 1e3), int(sleep_us * 1e3)

    def wait(self, until_ns: int | None = None) -> None:
        """Return when `spin` returns True, at `until_ns` (CLOCK_MONOTONIC), or after one sleep."""
        spin_ns, sleep_ns = self._spin_ns, self._sleep_ns
        if until_ns is not None:
            left_ns = max(0, until_ns - time.monotonic_ns())
            # Spin if the time is closer than the end of a sleep: a sleep overshoots by tens of microseconds.
            spin_ns = left_ns if left_ns <= spin_ns + sleep_ns else spin_ns
        if not self._spin(spin_ns) and (until_ns is None or time.monotonic_ns() < until_ns):
            time.sleep(sleep_ns * 1e-9)
