"""A stream's blocks into the ring: as fast as it takes them (closed loop) or each when it is due (open loop).

In an open loop the schedule is absolute: `enqueue_ns` is when a command was due, so a slow consumer, or a
producer that falls behind, shows as latency instead of slowing the arrivals down.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from launchopt.errors import Interrupted
from launchopt.ring import START_NS, STOP, Ring, Waiter
from launchopt.workloads.stream import Block

SLEEP_SLACK_NS = 200_000  # time.sleep overshoots by up to this: the rest is spun
POLL_NS = 50_000_000  # longest sleep between two looks at STOP


@dataclass(frozen=True, slots=True)
class Production:
    """What the producer did in one run."""

    pushed: int
    blocked_ns: int  # waited for room in the ring
    late_p99_ns: int | None  # blocks pushed after they were due; None in a closed loop


def produce(blocks: Iterable[Block], ring: Ring, waiter: Waiter) -> Production:
    """Push every block, then close the ring. The start barrier's time is published as START_NS first."""
    start_ns = time.monotonic_ns()
    ring.set_word(START_NS, start_ns)
    pushed, blocked_ns = 0, 0
    late_ns: list[int] = []
    for block in blocks:
        if block.due_ns is not None:
            due_ns = start_ns + block.due_ns
            _wait_until(due_ns, ring)
            late_ns.append(time.monotonic_ns() - due_ns)
            block.records["enqueue_ns"] = due_ns
        first = 0
        while first < len(block.records):
            count = ring.push(block.records[first:], stamp=block.due_ns is None)
            if count == 0:
                before_ns = time.monotonic_ns()
                waiter.wait()
                blocked_ns += time.monotonic_ns() - before_ns
                if ring.word(STOP):
                    raise Interrupted("stopped while waiting for room in the ring")
            first += count
        pushed += len(block.records)
    ring.close()
    return Production(pushed, blocked_ns, int(np.percentile(late_ns, 99)) if late_ns else None)


def _wait_until(due_ns: int, ring: Ring) -> None:
    while (left_ns := due_ns - time.monotonic_ns()) > 0:
        if left_ns > SLEEP_SLACK_NS:
            time.sleep(min(left_ns - SLEEP_SLACK_NS, POLL_NS) * 1e-9)
        if ring.word(STOP):
            raise Interrupted("stopped while waiting for the next arrival")
