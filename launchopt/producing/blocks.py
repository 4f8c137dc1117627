"""The producer of independent commands: it pushes blocks of records into the ring.

In a closed loop it pushes as fast as the ring has free slots. In an open loop it pushes each command when it is due,
and `enqueue_ns` is the time at which the command was due. So if the consumer or the producer falls behind, latency
grows, and arrivals do not slow down.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from launchopt.command import as_words
from launchopt.errors import Interrupted
from launchopt.native import compiled, cpu_pause, monotonic_ns
from launchopt.producing.production import Production, Tokens
from launchopt.queue.ring import Ring, push_words
from launchopt.queue.segment import HeaderWord
from launchopt.queue.waiter import Waiter
from launchopt.statistics.histogram import LogHistogram
from launchopt.streams.stream import Block
from launchopt.types import Int, Words

SLEEP_SLACK_NS = 200_000  # time.sleep overshoots by up to this: the producer spins for the rest
POLL_NS = 50_000_000  # longest sleep between two checks whether to stop

Times = NDArray[np.int64]


@compiled
def push_due(header: Words, data: Words, words: Words, due_ns: Times, first: Int, late_ns: Times) -> Int:
    """Push words[first:], each when it is due, and write its delay to `late_ns`; return the first that was not pushed.

    Return when all are pushed, when the ring is full, or when the next command is not due within SLEEP_SLACK_NS.
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
    """One run of the producer."""

    def __init__(self, ring: Ring, waiter: Waiter) -> None:
        self._ring, self._waiter = ring, waiter
        self.pushed, self.blocked_ns, self.late = 0, 0, LogHistogram()

    def push(self, block: Block) -> None:
        """Push the block's records as soon as the ring has free slots."""
        first = 0
        while first < len(block.records):
            count = self._ring.push(block.records[first:], stamp=True)
            if count == 0:
                self._await_free_slots()
            first += count
        self.pushed += first

    def push_on_time(self, block: Block, due_ns: Times) -> None:
        """Push each record when it is due. due_ns: [records], CLOCK_MONOTONIC."""
        words, late_ns, first = as_words(block.records), np.zeros(len(due_ns), np.int64), 0
        block.records["enqueue_ns"] = due_ns
        while (first := int(push_due(*self._ring.arrays, words, due_ns, first, late_ns))) < len(words):
            left_ns = int(due_ns[first]) - time.monotonic_ns()
            if left_ns <= 0:
                self._await_free_slots()
            elif left_ns > SLEEP_SLACK_NS:
                time.sleep(min(left_ns - SLEEP_SLACK_NS, POLL_NS) * 1e-9)
            if self._ring.word(HeaderWord.STOP):
                raise Interrupted("stopped while waiting for the next arrival")
        self.pushed += first
        self.late.add(late_ns)

    def _await_free_slots(self) -> None:
        before_ns = time.monotonic_ns()
        self._waiter.wait()
        self.blocked_ns += time.monotonic_ns() - before_ns
        if self._ring.word(HeaderWord.STOP):
            raise Interrupted("stopped while waiting for a free slot of the ring")


def produce(blocks: Iterable[Block], ring: Ring, waiter: Waiter) -> Production:
    """Push every block, then close the ring. Before the first push, write the start time to START_NS."""
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


def production_of(driven: tuple[Tokens, int, int], open_loop: bool) -> Production:
    """Return the production of a driver, which issued the steps of requests. driven: what `Driver.run` returned."""
    tokens, pushed, blocked_ns = driven
    if not open_loop:
        return Production(pushed, blocked_ns, None, None, tokens)
    late = float(np.percentile(tokens.late_ns, 99))
    return Production(pushed, blocked_ns, late, int(tokens.late_ns.max()), tokens)
