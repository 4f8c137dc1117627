"""Runs the compiled loop of `lt_chain` to the end of a stream of requests, and does what the loop leaves to Python."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batcher import Batcher
from launchopt.batching.buckets import BASE, FlushReason
from launchopt.command import COMMAND_DTYPE, as_words
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.loops import commands as lp
from launchopt.devices.loops import requests as lc
from launchopt.devices.loops.commands_runner import Launcher, PumpSettings
from launchopt.errors import Interrupted, RunError
from launchopt.queue.ring import MOST_AT_ONCE, Ring


class ChainPump:
    """One run's loop. `feed_back` submits what follows the end of steps; `check_alive` raises for a lost device."""

    def __init__(
        self,
        ring: Ring,
        back: Ring,
        batcher: Batcher,
        launcher: Launcher,
        flights: Flights,
        feed_back: Callable[[Flights, int], None],
        check_alive: Callable[[], None],
        settings: PumpSettings,
    ) -> None:
        self._ring, self._back, self._batcher, self._launcher = ring, back, batcher, launcher
        self._flights, self._feed_back, self._check_alive = flights, feed_back, check_alive
        self._records = np.zeros(min(ring.capacity, MOST_AT_ONCE), COMMAND_DTYPE)
        self._block: NDArray[np.uint64] = as_words(self._records)
        self._sleep_s = settings.sleep_ns * 1e-9
        idle_ns = lp.NEVER_IDLE if settings.idle_ns is None else settings.idle_ns
        waits = (settings.timeout_ns, idle_ns, settings.spin_ns, settings.sleep_ns)
        self._settings = np.array([*waits, 1, int(settings.on_stall)], np.int64)
        self._state = np.zeros(lc.STATE_WORDS, np.int64)
        self._state[lp.LAST_NS] = time.monotonic_ns()

    def run(self) -> None:
        """Until the ring is drained, every command launched and every step told of."""
        state, launcher = self._state, self._launcher
        while True:
            launcher.lend(state, lp.LEFT)
            code = self._enter()
            launcher.take_back(state, lp.LEFT)
            if code == lp.DRAINED:
                break
            if code == lp.IDLE:
                time.sleep(self._sleep_s)
            elif code == lc.ENDED:
                self._feed_back(self._flights, int(state[lc.ENDS]))
            elif code == lp.SPECIAL:
                self._special()
            elif code == lc.QUIET:
                self._check_alive()
            elif code == lp.SPOOL:
                launcher.make_room()
            else:
                self._fail(code)
        for reason in FlushReason:
            self._batcher.flushes[reason] += int(state[lp.FLUSHES + reason])

    def _enter(self) -> int:
        order = self._batcher.order
        launcher, flights = self._launcher, self._flights
        return int(
            lc.pump_chains(
                self._ring.arrays,
                self._back.arrays,
                self._block,
                self._batcher.arrays,
                order,
                launcher.tables,
                launcher.records,
                flights.ended,
                flights.arrays,
                self._settings,
                self._state,
            )
        )

    def _special(self) -> None:
        """The batch of `state` through Python, because it is sampled."""
        state = self._state
        bucket, size = int(state[lp.BUCKET]), int(state[lp.SIZE])
        base = int(self._batcher.arrays[1][bucket, BASE])
        batch = self._batcher.batch(bucket, base, size, FlushReason(int(state[lp.REASON])))
        self._launcher.submit(batch, int(state[lp.FLUSH_NS]))
        if ended := self._flights.collect(batch.words):
            self._feed_back(self._flights, ended)

    def _fail(self, code: int) -> None:
        if code == lp.FAILED:
            self._launcher.check(int(self._state[lp.STATUS]))
        if code == lp.UNKNOWN:
            at = int(self._state[lp.NEXT])
            if at < int(self._state[lp.COUNT]):
                raise self._batcher.unknown(self._records[at])
            raise RunError("a command that waited has a shape which the workload did not announce")
        raise Interrupted("stopped by the parent")
