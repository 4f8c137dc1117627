"""The consumer's loop where Python stands between two launches: ring -> batcher -> mode, in place of a compiled one.

It runs where ranges are made between launches, and for modes and devices that have no compiled loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from launchopt.batching.batcher import Batch, Batcher
from launchopt.batching.buckets import FlushReason
from launchopt.command import COMMAND_DTYPE, Records, as_words
from launchopt.devices.loops.commands_runner import PumpSettings
from launchopt.errors import Interrupted
from launchopt.modes.base import Prepared
from launchopt.queue.ring import HeaderWord, Ring
from launchopt.queue.waiter import Waiter
from launchopt.recording.recorder import Recorder
from runner.worker.chains import Chains


class PythonLoop:
    """Of all runs of a consumer. `most`: records popped at once. `check_alive` raises for a lost device."""

    def __init__(
        self,
        ring: Ring,
        waiter: Waiter,
        recorder: Recorder,
        check_alive: Callable[[], None],
        chains: Chains | None,
        most: int,
    ) -> None:
        self._ring, self._waiter, self._recorder, self._chains = ring, waiter, recorder, chains
        self._check_alive = check_alive
        self._buffer, self._shape_of = np.zeros(most, COMMAND_DTYPE), np.zeros(most, np.int32)

    def await_first(self) -> None:
        """Until there is a record; Interrupted where the parent says stop."""
        while not self._ring.await_record(0):
            self._check_stop()
            self._waiter.wait()

    def run(self, batcher: Batcher, prepared: Prepared, settings: PumpSettings, at_once: bool) -> None:
        """Until the ring is drained and all is launched. at_once: commands are launched as they are popped."""
        self._batcher, self._prepared = batcher, prepared
        ring, buffer, chains = self._ring, self._buffer, self._chains
        clock_ns, idle_ns = time.monotonic_ns, settings.idle_ns
        last_ns = clock_ns()
        while True:
            self._recorder.make_room()  # for what is popped here and what the buckets hold
            if chains and batcher.order:
                chains.flights.land(batcher.order)
            count = ring.pop(buffer)
            now_ns = clock_ns()
            if count:
                last_ns = now_ns
                self._check_stop()
                records = buffer[:count]
                if at_once:
                    prepared.submit_each(as_words(records), batcher.classify(records, self._shape_of), now_ns)
                    batcher.flushes[FlushReason.full] += count
                else:
                    self._take(records, now_ns)
            elif ring.drained:
                break
            else:
                self._check_stop()
                if settings.on_stall and (stalled := batcher.stalled()):
                    self._submit(stalled, now_ns)
                    continue
                if chains and chains.flights.count:
                    if chains.flights.is_quiet(now_ns, self._recorder.launch_count):
                        self._check_alive()
                    continue  # the device is about to be done with a step
                deadline_ns = batcher.next_deadline_ns()
                if idle_ns is not None and deadline_ns is not None:
                    if now_ns - last_ns >= idle_ns:
                        for batch in batcher.flush(FlushReason.idle):
                            self._submit(batch, now_ns)
                        continue
                    deadline_ns = min(deadline_ns, last_ns + idle_ns)
                if deadline_ns is None or deadline_ns > now_ns:
                    self._waiter.wait(deadline_ns)
            # By the time of the pop: what aged while a launch blocked gets the chance to be filled up first.
            while (due := batcher.due(now_ns)) is not None:
                self._submit(due, now_ns)
        for batch in batcher.flush(FlushReason.drain):
            self._submit(batch, clock_ns())

    def _check_stop(self) -> None:
        if self._ring.word(HeaderWord.STOP):
            raise Interrupted("stopped by the parent")

    def _take(self, records: Records, now_ns: int) -> None:
        """Records into buckets; launch those that fill up."""
        batches = self._batcher.add(records, now_ns)
        batch = next(batches, None)
        while batch is not None:
            self._launch(batch)
            try:
                batch = batches.send(time.monotonic_ns())  # what waited for it is eligible from now on
            except StopIteration:
                return

    def _submit(self, batch: Batch, now_ns: int) -> None:
        """Launch a batch that is not full, and let in what waited for it."""
        self._launch(batch)
        if self._chains:
            self._take(self._buffer[:0], time.monotonic_ns())

    def _launch(self, batch: Batch) -> None:
        self._prepared.submit(batch, time.monotonic_ns())
        if self._chains:
            self._chains.ended(batch.words)
