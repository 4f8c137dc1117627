"""How a side of a ring waits for the other: it spins, then sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable


class Waiter:
    """Spins first, since the other side is usually nanoseconds away; then sleeps, so that the other side gets the core.

    Two processes that only spin starve each other on a busy two-core machine. spin: a ring's `await_record` or
    `await_room`.
    """

    def __init__(self, spin: Callable[[int], bool], spin_us: float, sleep_us: float) -> None:
        self._spin, self._spin_ns, self._sleep_ns = spin, int(spin_us * 1e3), int(sleep_us * 1e3)

    def wait(self, until_ns: int | None = None) -> None:
        """Return when there is what `spin` looks for, at `until_ns` (CLOCK_MONOTONIC), or after one sleep."""
        spin_ns, sleep_ns = self._spin_ns, self._sleep_ns
        if until_ns is not None:
            left_ns = max(0, until_ns - time.monotonic_ns())
            # A deadline within a sleep's reach is spun for: a sleep overshoots by tens of microseconds.
            spin_ns = left_ns if left_ns <= spin_ns + sleep_ns else spin_ns
        if not self._spin(spin_ns) and (until_ns is None or time.monotonic_ns() < until_ns):
            time.sleep(sleep_ns * 1e-9)
