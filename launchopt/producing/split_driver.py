"""The driver for several consumers that split a model: every consumer gets every command, in one order.

The driver runs as for one consumer, with a ring and a second ring in its own memory. `drive_split` copies each record
from there to the rings of all consumers. A step has ended when every consumer has notified the driver of it. Consumers
sample the same token, since they compute the same logits; `Joined.differing` counts tokens for which they did not.

The loops of the driver and of consumers have no additional work for this.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from launchopt.command import NO_TOKEN, WORDS, RecordWord
from launchopt.errors import Interrupted, RunError
from launchopt.native import compiled, load_acquire, monotonic_ns, store_release
from launchopt.producing.continuous import DriverWord
from launchopt.producing.driver import Driver, Entry
from launchopt.producing.driver_loop import DriverExit, drive
from launchopt.producing.production import RunKind, Schedule, Tokens
from launchopt.queue.ring import (
    MOST_AT_ONCE,
    Ring,
    free_slots,
    has_record,
    pop_words,
    push_words,
    ready_words,
    release_words,
)
from launchopt.queue.segment import HEADER_WORDS, HeaderWord, RingArrays
from launchopt.records import request_of, token_of
from launchopt.streams.chains.chain import ChainStream
from launchopt.types import Int, Table, Words

TURN_US = 1.0  # the driver without work spins for this long before records and notifications are looked for again


class Joined(NamedTuple):
    """Notifications of steps that have ended on some consumers, but not yet on all."""

    got: Words  # [records, WORDS]: memory for records of a second ring
    first: Words  # [requests, WORDS]: the first notification of each request's step
    arrived: Table  # [requests]: consumers that have notified
    differing: Table  # [1]: tokens whose ids are not the same on all consumers


JoinedFields = tuple[Words, Words, Table, Table]  # the fields of Joined, as Python passes them


@compiled
def _forward(staged: RingArrays, rings: tuple[RingArrays, ...]) -> Int:
    """Copy records to all rings, as many as each has space for; return their number."""
    header, data = staged
    count: Int = ready_words(header, data, MOST_AT_ONCE)
    for ring in rings:
        if count > 0:
            count = free_slots(ring[0], ring[1], count)
    if count > 0:
        first = np.intp(header[HeaderWord.TAIL] & np.uint64(len(data) - 1))
        for ring in rings:
            push_words(ring[0], ring[1], data[first : first + count], False)
        release_words(header, count)
    return count


@compiled
def _join(backs: tuple[RingArrays, ...], staged: RingArrays, joined: Joined) -> Int:
    """Take the notifications of all consumers, and pass on those that all have sent; return how many were taken."""
    taken = 0
    for back in backs:
        while has_record(back[0], back[1]):
            count = pop_words(back[0], back[1], joined.got)
            taken += count
            for i in range(count):
                request = request_of(joined.got, i)
                if joined.arrived[request] == 0:
                    for w in range(WORDS):
                        joined.first[request, w] = joined.got[i, w]
                elif token_of(joined.got, i) != NO_TOKEN:
                    own, other = joined.first[request, RecordWord.SLOTS_AB], joined.got[i, RecordWord.SLOTS_AB]
                    joined.differing[0] += own != other
                joined.arrived[request] += 1
                if joined.arrived[request] == len(backs):
                    joined.arrived[request] = 0
                    push_words(staged[0], staged[1], joined.first[request : request + 1], False)
    return taken


@compiled
def _let_early(staged: RingArrays, rings: tuple[RingArrays, ...]) -> None:
    """Write to the driver's ring how far all consumers have flushed (`HeaderWord.STEPS_LEFT`)."""
    least = load_acquire(rings[0][0], HeaderWord.STEPS_LEFT)
    for ring in rings:
        least = min(least, load_acquire(ring[0], HeaderWord.STEPS_LEFT))
    store_release(staged[0], HeaderWord.STEPS_LEFT, least)


@compiled
def drive_split(
    driver: Entry, rings: tuple[RingArrays, ...], backs: tuple[RingArrays, ...], fields: JoinedFields, spin_ns: Int
) -> Int:
    """Run the driver and pass on its records and their ends until it is done, or nothing has moved for `spin_ns`.

    Return DONE; or, if nothing has moved, why the driver waits: BLOCKED or IDLE.
    """
    joined, state = Joined(*fields), driver[3][1]
    until_ns = np.int64(monotonic_ns()) + spin_ns
    while True:
        before = state[DriverWord.SEQ]
        code = drive(driver[0], driver[1], driver[2], driver[3])
        moved = state[DriverWord.SEQ] - before + _forward(driver[0], rings) + _join(backs, driver[1], joined)
        _let_early(driver[0], rings)
        if code == DriverExit.DONE:
            return DriverExit.DONE
        now_ns = np.int64(monotonic_ns())
        if moved > 0:
            until_ns = now_ns + spin_ns
        elif now_ns >= until_ns:
            return code


def private_ring(capacity: int) -> RingArrays:
    """Return an empty ring in the memory of this process."""
    return np.zeros(HEADER_WORDS, np.uint64), np.zeros((capacity, WORDS), np.uint64)


class SplitDriver:
    """One run of a workload whose model several consumers split. The arguments are those of `Driver`."""

    def __init__(
        self, stream: ChainStream, schedule: Schedule, spin_us: float, sleep_us: float, kind: RunKind = RunKind.RUN
    ) -> None:
        self._driver = Driver(stream, schedule, TURN_US, sleep_us, kind)
        self._spin_ns, self._sleep_s = int(spin_us * 1e3), sleep_us * 1e-6
        first = np.zeros((stream.requests, WORDS), np.uint64)
        got = np.zeros((MOST_AT_ONCE, WORDS), np.uint64)
        self._joined: JoinedFields = got, first, np.zeros(stream.requests, np.int64), np.zeros(1, np.int64)

    def run(self, rings: Sequence[Ring], backs: Sequence[Ring]) -> tuple[Tokens, int, int]:
        """Issue every step of every request to all rings, then close them. Return the same as `Driver.run`.

        Raise RunError if the consumers did not sample the same tokens.
        """
        driver, blocked_ns, start_ns = self._driver, 0, time.monotonic_ns()
        staged = private_ring(rings[0].capacity), private_ring(backs[0].capacity)
        for ring in rings:
            ring.set_word(HeaderWord.START_NS, start_ns)
        driver.begin(start_ns)
        arrays = tuple(ring.arrays for ring in rings), tuple(back.arrays for back in backs)
        while (code := self._enter(driver.entry(*staged), *arrays)) != DriverExit.DONE:
            if rings[0].word(HeaderWord.STOP):
                raise Interrupted("stopped while requests were under way")
            before_ns = time.monotonic_ns()
            time.sleep(min(self._sleep_s, driver.wake_s(before_ns)))
            blocked_ns += time.monotonic_ns() - before_ns if code == DriverExit.BLOCKED else 0
        for ring in rings:
            ring.close()
        if differing := int(self._joined[3][0]):
            raise RunError(f"{differing} tokens are not the same on all GPUs that split the model")
        return driver.tokens(start_ns), driver.pushed, blocked_ns

    def _enter(self, driver: Entry, rings: tuple[RingArrays, ...], backs: tuple[RingArrays, ...]) -> int:
        return int(drive_split(driver, rings, backs, self._joined, self._spin_ns))
