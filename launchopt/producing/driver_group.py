"""Drivers for several consumers, in one thread: each has a ring of its own, and a second ring for ended steps.

Every driver has the whole workload. A request is routed when it arrives: all of its steps, and the requests that follow
it, go to one consumer. Those that are due at the start are shared out evenly (`at_start`). Later ones go by turns
(round robin), or to the consumer with the fewest requests that have not ended (least outstanding); of equals, to the
one that got the fewest so far. Requests that find tokens of their prompts cached have a consumer before the run.

`drive_in_turn` enters the loops of all drivers again and again. Each returns after TURN_US without work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from launchopt.errors import Interrupted
from launchopt.native import compiled, monotonic_ns
from launchopt.producing.continuous import DriverWord
from launchopt.producing.driver import Entry, RoutedDriver, table_of
from launchopt.producing.driver_loop import DriverExit, drive
from launchopt.producing.production import Routing, RunKind, Schedule, Tokens, at_start
from launchopt.producing.request_steps import FAR_NS
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.types import Int, Table

TURN_US = 1.0  # a driver without work spins for this long before the next one has its turn


@compiled
def drive_in_turn(drivers: tuple[Entry, ...], ended: Int, spin_ns: Int, wake_ns: Int, blocked_ns: Table) -> Int:
    """Run drivers in turn until all have ended (DONE), or Python is needed (IDLE).

    It is needed when more than `ended` drivers have ended, at `wake_ns`, and when nothing has moved for `spin_ns`.
    blocked_ns: [1], to which the time is added in which nothing moved because rings were full.
    """
    before, now_ns = -1, np.int64(monotonic_ns())
    until_ns = now_ns + spin_ns
    while True:
        done, moved, is_blocked = 0, 0, False
        for each in drivers:
            code = drive(each[0], each[1], each[2], each[3])
            state = each[3][1]
            done += code == DriverExit.DONE
            is_blocked = is_blocked or code == DriverExit.BLOCKED
            moved += state[DriverWord.SEQ] + state[DriverWord.FINISHED]
        if done == len(drivers):
            return DriverExit.DONE
        later_ns = np.int64(monotonic_ns())
        if moved != before:
            before, until_ns = moved, later_ns + spin_ns
        elif is_blocked:
            blocked_ns[0] += later_ns - now_ns
        now_ns = later_ns
        if done > ended or now_ns >= min(wake_ns, until_ns):
            return DriverExit.IDLE


class Roots(NamedTuple):
    """The requests that follow no other, in order of arrival: these are routed."""

    requests: Table
    due_ns: Table
    sizes: Table  # requests that follow each, and itself


def roots_of(table: Table) -> Roots:
    """Return the roots of a workload's table, [requests, ChainColumn]."""
    after, root = table[:, ChainColumn.AFTER], np.arange(len(table))
    while np.any(follows := after[root] >= 0):
        root = np.where(follows, after[root], root)
    requests = np.flatnonzero(after < 0)
    requests = requests[np.argsort(table[requests, ChainColumn.DUE_NS], kind="stable")]
    return Roots(requests, table[requests, ChainColumn.DUE_NS], np.bincount(root, minlength=len(table))[requests])


class DriverGroup:
    """One run of a workload for several consumers. The arguments are those of `Driver`."""

    def __init__(
        self, stream: ChainStream, schedule: Schedule, spin_us: float, sleep_us: float, kind: RunKind, routing: Routing
    ) -> None:
        self._arguments = (stream, schedule, TURN_US, sleep_us, kind)
        self._spin_ns, self._sleep_s = int(spin_us * 1e3), sleep_us * 1e-6
        self._fixed = None if stream.prefixes is None else stream.prefixes.consumers
        self._by_turns, self._roots = routing is not Routing.least_outstanding, roots_of(table_of(stream, kind))
        self._next, self._first = 0, np.zeros(0, np.int64)  # the first root that was not routed; consumers at the start

    def run(self, rings: Sequence[Ring], backs: Sequence[Ring]) -> tuple[Tokens, int, int]:
        """Issue every step of every request; close each ring behind its last one. Return the same as `Driver.run`."""
        drivers = [RoutedDriver(*self._arguments) for _ in rings]
        self._first = at_start(int(np.count_nonzero(self._roots.due_ns == 0)), len(rings))
        wake_ns, blocked_ns = self._route(drivers, 0), np.zeros(1, np.int64)
        start_ns, closed = time.monotonic_ns(), 0
        for driver, ring in zip(drivers, rings, strict=True):
            ring.set_word(HeaderWord.START_NS, start_ns)
            driver.begin(start_ns)
        while closed < len(rings):
            entries = tuple(
                driver.entry(ring.arrays, back.arrays) for driver, ring, back in zip(drivers, rings, backs, strict=True)
            )
            code = int(drive_in_turn(entries, closed, self._spin_ns, start_ns + wake_ns, blocked_ns))
            ended = [
                ring for driver, ring in zip(drivers, rings, strict=True) if driver.has_ended and not ring.is_closed
            ]
            for ring in ended:
                ring.close()
            closed += len(ended)
            if rings[0].word(HeaderWord.STOP):
                raise Interrupted("stopped while requests were under way")
            left_s = (start_ns + wake_ns - time.monotonic_ns()) * 1e-9
            if code == DriverExit.IDLE and left_s > 0 and not ended:
                time.sleep(min(self._sleep_s, left_s))
            wake_ns = self._route(drivers, time.monotonic_ns() - start_ns)
        tokens = joined([driver.tokens(start_ns) for driver in drivers])
        return tokens, sum(driver.pushed for driver in drivers), int(blocked_ns[0])

    def _route(self, drivers: Sequence[RoutedDriver], now_ns: int) -> int:
        """Route the requests that are due, or by turns all. Return when the next one is due, ns since the start."""
        roots = self._roots
        while self._next < len(roots.requests):
            due_ns = int(roots.due_ns[self._next])
            if not self._by_turns and due_ns > now_ns:
                return due_ns
            if self._fixed is not None:
                at = drivers[self._fixed[roots.requests[self._next]]]
            elif self._next < len(self._first):
                at = drivers[self._first[self._next]]
            else:
                at = min(drivers, key=lambda driver: (0 if self._by_turns else driver.outstanding, driver.given))
            at.give(int(roots.requests[self._next]), int(roots.sizes[self._next]))
            self._next += 1
        for driver in drivers:
            driver.give_no_more()
        return FAR_NS


def joined(parts: Sequence[Tokens]) -> Tokens:
    """Return the tokens of all consumers. Each token, and each request, belongs to the part that has its latest times.

    The times of the others lie before the start of the run.
    """
    done_ns = np.array([part.done_ns for part in parts])
    owner = done_ns.argmax(axis=0)[None]
    issue_ns, ids = (
        np.take_along_axis(np.array(each), owner, 0)[0]
        for each in ([part.issue_ns for part in parts], [part.ids for part in parts])
    )
    arrived_ns, late_ns = np.max([part.arrived_ns for part in parts], 0), np.max([part.late_ns for part in parts], 0)
    return Tokens(arrived_ns, late_ns, issue_ns, done_ns.max(axis=0), ids)
