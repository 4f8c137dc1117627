"""The other process of the ring's tests: importable by name, as `spawn` needs."""

from __future__ import annotations

import numpy as np

from launchopt.command import COMMAND_DTYPE, Records
from launchopt.queue.ring import Ring
from launchopt.queue.waiter import Waiter


def numbered(first: int, count: int) -> Records:
    """Return records whose fields are functions of their number, so that a torn copy shows."""
    records = np.zeros(count, COMMAND_DTYPE)
    numbers = np.arange(first, first + count)
    records["seq"] = numbers
    records["enqueue_ns"] = -numbers
    for field in ("m", "n", "k", "slot_a", "slot_b", "slot_c", "request", "step"):
        records[field] = numbers + len(field) * 1000 + ord(field[-1])
    records["token"] = numbers
    return records


def push_numbered(name: str, capacity: int, total: int, chunk: int) -> None:
    """Push records 0..total-1 in chunks of `chunk`, then close."""
    ring = Ring.attach(name, capacity)
    waiter = Waiter(ring.await_free_slots, spin_us=20, sleep_us=20)
    for first in range(0, total, chunk):
        records = numbered(first, min(chunk, total - first))
        while len(records):
            count = ring.push(records)
            if not count:
                waiter.wait()
            records = records[count:]
    ring.close()
    ring.release()


def attach_and_leave(name: str, capacity: int) -> None:
    """Attach, push one record, and exit."""
    with Ring.attach(name, capacity) as ring:
        assert ring.push(numbered(7, 1)) == 1
