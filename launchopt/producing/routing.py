"""Route independent commands to several rings, one for each consumer.

Round robin: the ring that got the fewest commands so far. Least outstanding: the ring in which the fewest commands
wait; of equals, the one that got the fewest so far. A full ring stops the producer until it has a free slot.

In a closed loop a ring gets as many commands in a row as fill a batch. Their operands are as evenly spaced as those of
one consumer, so a batch can be one strided launch.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from launchopt.command import as_words
from launchopt.errors import Interrupted
from launchopt.native import compiled, cpu_pause, load_acquire, monotonic_ns
from launchopt.producing.blocks import POLL_NS, SLEEP_SLACK_NS
from launchopt.producing.production import Production, Routing
from launchopt.queue.ring import Ring, push_words
from launchopt.queue.segment import HeaderWord, RingArrays
from launchopt.queue.waiter import Waiter
from launchopt.statistics.histogram import LogHistogram
from launchopt.streams.stream import Block
from launchopt.types import Int, Table, Words

Times = NDArray[np.int64]


@compiled
def next_ring(rings: tuple[RingArrays, ...], counts: Table, least: Int) -> Int:
    """Return the index of the ring that gets the next command. counts: commands that each ring got so far."""
    best = 0
    fewest: Int = -1
    for i in range(len(rings)):
        header = rings[i][0]
        waiting: Int = np.int64(header[HeaderWord.HEAD] - load_acquire(header, HeaderWord.TAIL)) if least != 0 else 0
        if fewest < 0 or waiting < fewest or (waiting == fewest and counts[i] < counts[best]):
            best, fewest = i, waiting
    return best


class TurnWord(enum.IntEnum):
    """Words of `turn`: which ring gets the next commands."""

    RING = 0  # index of the ring
    LEFT = 1  # commands that it still gets
    LENGTH = 2  # commands of a turn
    LEAST = 3  # 1: least outstanding


@compiled
def push_routed(
    rings: tuple[RingArrays, ...], words: Words, due_ns: Times, first: Int, late_ns: Times, counts: Table, turn: Table
) -> Int:
    """Push words[first:], each to its ring, and count them in `counts`; return the first that was not pushed.

    due_ns: the time at which each is due; empty: they are pushed at once, and carry the time of the push. Return when
    all are pushed, when the ring is full, or when the next one is not due within SLEEP_SLACK_NS.
    """
    is_timed, now_ns, stop = len(due_ns) > 0, np.int64(0), first
    while first < len(words):
        if is_timed:
            now_ns = np.int64(monotonic_ns())
            if due_ns[first] > now_ns:
                if due_ns[first] - now_ns > SLEEP_SLACK_NS:
                    return first
                cpu_pause()
                continue
        if turn[TurnWord.LEFT] == 0:
            turn[TurnWord.RING] = next_ring(rings, counts, turn[TurnWord.LEAST])
            turn[TurnWord.LEFT] = turn[TurnWord.LENGTH]
        at, stop = turn[TurnWord.RING], min(len(words), first + turn[TurnWord.LEFT])
        pushed = push_words(rings[at][0], rings[at][1], words[first:stop], not is_timed)
        if pushed == 0:
            return first
        if is_timed:  # a turn is one command
            late_ns[first] = now_ns - due_ns[first]
        counts[at] += pushed
        turn[TurnWord.LEFT] -= pushed
        first += pushed
    return first


def produce_routed(
    blocks: Iterable[Block], rings: Sequence[Ring], waiters: Sequence[Waiter], routing: Routing, together: int
) -> Production:
    """Push every command to one of `rings`, then close all. Before the first push, write the start time to START_NS.

    together: commands of a turn in a closed loop. In an open loop each command is routed when it is due.
    """
    start_ns = time.monotonic_ns()
    for ring in rings:
        ring.set_word(HeaderWord.START_NS, start_ns)
    arrays, counts = tuple(ring.arrays for ring in rings), np.zeros(len(rings), np.int64)
    turn, late, blocked_ns, is_open = np.zeros(len(TurnWord), np.int64), LogHistogram(), 0, False
    turn[TurnWord.LEAST], turn[TurnWord.LENGTH] = routing is Routing.least_outstanding, together
    for block in blocks:
        words, first = as_words(block.records), 0
        due_ns = np.empty(0, np.int64) if block.due_ns is None else start_ns + block.due_ns
        late_ns = np.zeros(len(due_ns), np.int64)
        if len(due_ns):
            is_open, block.records["enqueue_ns"], turn[TurnWord.LENGTH] = True, due_ns, 1
        while (first := int(push_routed(arrays, words, due_ns, first, late_ns, counts, turn))) < len(words):
            before_ns = time.monotonic_ns()
            left_ns = int(due_ns[first]) - before_ns if len(due_ns) else 0
            if left_ns <= 0:
                waiters[int(turn[TurnWord.RING])].wait()
                blocked_ns += time.monotonic_ns() - before_ns
            elif left_ns > SLEEP_SLACK_NS:
                time.sleep(min(left_ns - SLEEP_SLACK_NS, POLL_NS) * 1e-9)
            if rings[0].word(HeaderWord.STOP):
                raise Interrupted("stopped while commands were routed")
        late.add(late_ns)
    busy_ns = time.monotonic_ns() - start_ns - blocked_ns
    for ring in rings:
        ring.close()
    delays = (late.percentile(99), late.max) if is_open else (None, None)
    return Production(int(counts.sum()), blocked_ns, *delays, busy_ns=None if is_open else busy_ns)
