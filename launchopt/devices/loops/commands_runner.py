"""Runs the compiled loop of `lt_pump` to the end of the stream, and does what the loop leaves to Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batcher import Batch, Batcher
from launchopt.batching.buckets import BASE, FlushReason
from launchopt.command import COMMAND_DTYPE, as_words
from launchopt.devices.loops import commands as lp
from launchopt.errors import Interrupted
from launchopt.queue.ring import MOST_AT_ONCE, Ring
from launchopt.timing.sampling import Sampler


@dataclass(frozen=True, slots=True)
class PumpSettings:
    """When the loop flushes, spins and sleeps; ns. `idle_ns` None: never for idleness."""

    timeout_ns: int
    idle_ns: int | None
    spin_ns: int
    sleep_ns: int
    pack_bytes_per_launch: int
    on_stall: bool = True  # chains: also flush when all that is left waits


SubmitEach = Callable[[NDArray[np.uint64], NDArray[np.int32], int], None]  # words, the shape of each, popped at ns


@dataclass(frozen=True, slots=True)
class Launcher:
    """What the loop launches with: tables of lt_launch, the recorder's arrays, and what Python does for it."""

    tables: Any
    records: Any
    sampler: Sampler
    submit: Callable[[Batch, int], None]  # a batch that must be sampled or packed
    submit_one: Callable[[NDArray[np.uint64], NDArray[np.int32], int, int, int], None]  # a command to be sampled
    check: Callable[[int], None]  # raises for a status that is not 0
    make_room: Callable[[], None]  # the recorder's
    compiled: bool = True  # False: Python submits every batch, whether it is sampled or not
    submit_each: SubmitEach | None = None  # and every block of commands

    def lend(self, state: NDArray[np.int64], left: int) -> None:
        """Tell the loop how many launches it may make before one must be sampled."""
        state[left] = self.sampler.left if self.compiled else 0

    def take_back(self, state: NDArray[np.int64], left: int) -> None:
        """What is left of those."""
        if self.compiled:
            self.sampler.left = int(state[left])


class Pump:
    """One run's loop. `slot_bytes`: for each shape the bytes a packed command copies, 0 where packing never pays."""

    def __init__(
        self, ring: Ring, batcher: Batcher, launcher: Launcher, slot_bytes: Sequence[int], settings: PumpSettings
    ) -> None:
        self._ring, self._batcher, self._launcher = ring, batcher, launcher
        most = min(ring.capacity, MOST_AT_ONCE)
        self._records = np.zeros(most, COMMAND_DTYPE)
        self._block = as_words(self._records)
        self._shape_of = np.zeros(most, np.int32)
        self._slot_bytes = np.array(slot_bytes, np.int64)
        self._sleep_s = settings.sleep_ns * 1e-9
        idle_ns = lp.NEVER_IDLE if settings.idle_ns is None else settings.idle_ns
        waits = (settings.timeout_ns, idle_ns, settings.spin_ns, settings.sleep_ns)
        self._settings = np.array([*waits, settings.pack_bytes_per_launch], np.int64)
        self._state = np.zeros(lp.STATE_WORDS, np.int64)
        self._state[lp.LAST_NS] = time.monotonic_ns()

    def run(self, by_batch: bool) -> None:
        """Until the ring is drained and every command launched; in batches, or a command at a time."""
        state, launcher = self._state, self._launcher
        while True:
            launcher.lend(state, lp.LEFT)
            code = self._enter(by_batch)
            launcher.take_back(state, lp.LEFT)
            if code == lp.DRAINED:
                break
            if code == lp.IDLE:
                time.sleep(self._sleep_s)
            elif code == lp.SPECIAL:
                self._special(by_batch)
            elif code == lp.SPOOL:
                self._launcher.make_room()
            else:
                self._fail(code)
        for reason in FlushReason:
            self._batcher.flushes[reason] += int(state[lp.FLUSHES + reason])

    def _enter(self, by_batch: bool) -> int:
        launcher, ring, batcher = self._launcher, self._ring.arrays, self._batcher.arrays
        common = (launcher.tables, launcher.records)
        if by_batch:
            last = (self._slot_bytes, self._settings, self._state)
            return int(lp.pump_batches(ring, self._block, batcher, *common, *last))
        return int(lp.pump_commands(ring, self._block, self._shape_of, batcher, *common, self._settings, self._state))

    def _special(self, by_batch: bool) -> None:
        state, launcher = self._state, self._launcher
        if by_batch:
            bucket, size = int(state[lp.BUCKET]), int(state[lp.SIZE])
            base = int(self._batcher.arrays[1][bucket, BASE])
            batch = self._batcher.batch(bucket, base, size, FlushReason(int(state[lp.REASON])))
            launcher.submit(batch, int(state[lp.FLUSH_NS]))
            return
        at, number, now_ns = int(state[lp.NEXT]), int(state[lp.BATCH0]), int(state[lp.NOW_NS])
        if launcher.submit_each is not None:
            stop = int(state[lp.COUNT])
            launcher.submit_each(self._block[at:stop], self._shape_of[at:stop], now_ns)
            state[lp.NEXT] = stop
            return
        launcher.submit_one(self._block, self._shape_of, at, number, now_ns)
        state[lp.NEXT] = at + 1

    def _fail(self, code: int) -> None:
        if code == lp.FAILED:
            self._launcher.check(int(self._state[lp.STATUS]))
        if code == lp.UNKNOWN:
            raise self._batcher.unknown(self._records[int(self._state[lp.NEXT])])
        raise Interrupted("stopped by the parent")
