"""Push a stream's blocks: as fast as the ring takes them (closed loop), or each command when it is due (open loop).

In an open loop the schedule is absolute: `enqueue_ns` is when a command was due. So a slow consumer, or a producer that
falls behind, shows as latency instead of slowing the arrivals down.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.command import as_words
from launchopt.errors import Interrupted
from launchopt.native import compiled, cpu_pause, monotonic_ns
from launchopt.producing.driver import Driver, Tokens
from launchopt.queue.ring import HeaderWord, Ring, push_words
from launchopt.queue.waiter import Waiter
from launchopt.statistics.histogram import LogHistogram
from launchopt.types import Int, Words
from launchopt.workloads.stream import Block

SLEEP_SLACK_NS = 200_000  # time.sleep overshoots by up to this: the rest is spun
POLL_NS = 50_000_000  # longest sleep between two looks whether to stop

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Production:
    """What the producer did in one run."""

    pushed: int
    blocked_ns: int  # waited for room in the ring
    late_p99_ns: float | None  # after they were due; None in a closed loop
    late_max_ns: int | None
    tokens: Tokens | None = None


@compiled
def push_due(header: Words, data: Words, words: Words, due_ns: Times, first: Int, late_ns: Times) -> Int:
    """Push words[first:], each when it is due; return the first that was not pushed.

    Return when the ring is full, and when the next command is not due for SLEEP_SLACK_NS.
    """
    while first < len(words):
        now_ns = monotonic_ns()
        if due_ns[first] > now_ns:
            if due_ns[first] - now_ns > SLEEP_SLACK_NS:
                return first
            cpu_pause()
            continue
        stop = first + 1
        while stop < len(words) and due_ns[stop] <= now_ns:
            stop += 1
        count = push_words(header, data, words[first:stop], False)
        for i in range(first, first + count):
            late_ns[i] = now_ns - due_ns[i]
        first += count
        if first < stop:
            return first
    return first


class _Production:
    """One run under way."""

    def __init__(self, ring: Ring, waiter: Waiter) -> None:
        self._ring, self._waiter = ring, waiter
        self.pushed, self.blocked_ns, self.late = 0, 0, LogHistogram()

    def push(self, block: Block) -> None:
        """As soon as there is room."""
        first = 0
        while first < len(block.records):
            count = self._ring.push(block.records[first:], stamp=True)
            if count == 0:
                self._await_room()
            first += count
        self.pushed += first

    def push_on_time(self, block: Block, due_ns: Times) -> None:
        """Each when it is due, CLOCK_MONOTONIC."""
        words, late_ns, first = as_words(block.records), np.zeros(len(due_ns), np.int64), 0
        block.records["enqueue_ns"] = due_ns
        while (first := int(push_due(*self._ring.arrays, words, due_ns, first, late_ns))) < len(words):
            left_ns = int(due_ns[first]) - time.monotonic_ns()
            if left_ns <= 0:
                self._await_room()
            elif left_ns > SLEEP_SLACK_NS:
                time.sleep(min(left_ns - SLEEP_SLACK_NS, POLL_NS) * 1e-9)
            if self._ring.word(HeaderWord.STOP):
                raise Interrupted("stopped while waiting for the next arrival")
        self.pushed += first
        self.late.add(late_ns)

    def _await_room(self) -> None:
        before_ns = time.monotonic_ns()
        self._waiter.wait()
        self.blocked_ns += time.monotonic_ns() - before_ns
        if self._ring.word(HeaderWord.STOP):
            raise Interrupted("stopped while waiting for room in the ring")


def produce(blocks: Iterable[Block], ring: Ring, waiter: Waiter) -> Production:
    """Push every block, then close the ring. The start barrier's time is published as START_NS first."""
    start_ns = time.monotonic_ns()
    ring.set_word(HeaderWord.START_NS, start_ns)
    run = _Production(ring, waiter)
    for block in blocks:
        if block.due_ns is None:
            run.push(block)
        else:
            run.push_on_time(block, start_ns + block.due_ns)
    ring.close()
    return Production(run.pushed, run.blocked_ns, run.late.percentile(99), run.late.max)


def drive(driver: Driver, ring: Ring, back: Ring, open_loop: bool) -> Production:
    """Requests instead of blocks: each step when its request is ready for it."""
    tokens, pushed, blocked_ns = driver.run(ring, back)
    if not open_loop:
        return Production(pushed, blocked_ns, None, None, tokens)
    late = float(np.percentile(tokens.late_ns, 99))
    return Production(pushed, blocked_ns, late, int(tokens.late_ns.max()), tokens)
