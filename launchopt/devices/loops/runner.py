"""Run a compiled loop of the consumer to the end of the workload, and do the work that the loop leaves to Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from launchopt.batching.batch import Batch
from launchopt.batching.batcher import Batcher
from launchopt.command import COMMAND_DTYPE, WORDS, as_words
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.loops.batches import pump_batches
from launchopt.devices.loops.commands import pump_commands
from launchopt.devices.loops.state import STATE_WORDS, LoopExit, LoopWord, SettingWord
from launchopt.errors import Interrupted
from launchopt.queue.ring import MOST_AT_ONCE, Ring
from launchopt.queue.segment import HEADER_WORDS, HeaderWord, RingArrays
from launchopt.recording.recorder import Recorder
from launchopt.timing.sampling import Sampler
from launchopt.types import ShapeIndices, Table, Words

BATCH = slice(int(LoopWord.BUCKET), int(LoopWord.FLUSH_NS) + 1)  # words of `state` that describe the batch flushed last
_NEXT, _COUNT, _NOW_NS = int(LoopWord.NEXT), int(LoopWord.COUNT), int(LoopWord.NOW_NS)
_LAUNCHES_LEFT = int(LoopWord.LAUNCHES_LEFT)


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings of a loop: how it waits, and when it packs a batch."""

    spin_ns: int  # length of a spin before each sleep
    sleep_ns: int  # length of a sleep
    pack_bytes_per_launch: int = 0  # bytes that the device copies in the time of one launch; 0: no batch is packed


@dataclass(frozen=True, slots=True)
class Launcher:
    """The tables that a loop launches with, and the functions with which Python launches for it."""

    tables: tuple[Table, Table, Table]  # the fields of LaunchTables
    recorder: Recorder
    sampler: Sampler
    # Launches a batch that the loop may not launch. Arguments: the batch, and the time of its flush in ns.
    submit: Callable[[Batch, int], None]
    # Launches records one by one. Arguments: the records, their shapes, and the time in ns at which they were popped.
    submit_each: Callable[[Words, ShapeIndices, int], None]
    check: Callable[[int], None]  # raises the error for the status of a failed launch
    slot_bytes: Sequence[int] = ()  # [shapes]: bytes that packing one command copies; 0: the shape is never packed
    is_compiled: bool = True  # False: Python makes every launch

    def lend(self, state: Table) -> None:
        """Write to `state` how many launches the loop may make before Python must make one."""
        state[_LAUNCHES_LEFT] = self.sampler.left if self.is_compiled else 0

    def take_back(self, state: Table) -> None:
        """Read from `state` how many of these launches are left."""
        if self.is_compiled:
            self.sampler.left = int(state[_LAUNCHES_LEFT])


@dataclass(frozen=True, slots=True)
class Feedback:
    """The functions with which results of steps are fed back."""

    flights: Flights
    feed_back: Callable[[Flights, int], None]  # submits the feedback of the first n steps of `flights.ended`
    check_alive: Callable[[], None]  # raises an error if the device is lost


def stopped_ring() -> RingArrays:
    """Return an empty ring whose STOP word is set: a compiled loop returns at once."""
    header = np.zeros(HEADER_WORDS, np.uint64)
    header[HeaderWord.STOP] = 1
    return header, np.zeros((2, WORDS), np.uint64)


class ConsumerLoop:
    """The loop of one run. A subclass enters its compiled loop, and makes the launches that this leaves to Python."""

    def __init__(self, recorder: Recorder, settings: LoopSettings, at_once: int, feedback: Feedback | None) -> None:
        self._recorder, self._feedback, self._sleep_s = recorder, feedback, settings.sleep_ns * 1e-9
        self._state = np.zeros(STATE_WORDS, np.int64)
        self._settings = np.zeros(len(SettingWord), np.int64)
        self._settings[SettingWord.SPIN_NS], self._settings[SettingWord.SLEEP_NS] = settings.spin_ns, settings.sleep_ns
        self._settings[SettingWord.PACK_BYTES_PER_LAUNCH] = settings.pack_bytes_per_launch
        self._settings[SettingWord.AT_ONCE] = at_once

    def run(self) -> None:
        """Run until the ring is drained, every command is launched and the driver is notified of every step."""
        special, idle, spool, ended = (
            int(code) for code in (LoopExit.SPECIAL, LoopExit.IDLE, LoopExit.SPOOL, LoopExit.ENDED)
        )
        self._begin(time.monotonic_ns())
        while (code := self._enter()) != LoopExit.DRAINED:
            if code == special:
                self._launch()
            elif code == ended:
                self._feed_back(int(self._state[LoopWord.ENDS]))
            elif code == idle:
                time.sleep(self._sleep_s)
            elif code == spool:
                self._recorder.spool()
            elif code == LoopExit.QUIET:
                assert self._feedback is not None
                self._feedback.check_alive()
            elif code == LoopExit.STOPPED:
                raise Interrupted("stopped by the parent")
            else:
                self._fail(code)
        self._end()

    def _feed_back(self, count: int) -> None:
        assert self._feedback is not None
        self._feedback.feed_back(self._feedback.flights, count)

    def _begin(self, now_ns: int) -> None:
        """Begin the run at `now_ns`."""

    def _enter(self) -> int:
        """Enter the compiled loop; return its LoopExit."""
        raise NotImplementedError

    def _launch(self) -> None:
        """Make the launch that the loop left to Python (SPECIAL)."""
        raise NotImplementedError

    def _fail(self, code: int) -> None:
        """Raise the error for the LoopExit `code`, UNKNOWN or FAILED."""
        raise NotImplementedError

    def _end(self) -> None:
        """End the run: every command was launched."""


class _PoppingLoop(ConsumerLoop):
    """A loop that pops blocks of commands and gives them to a batcher."""

    def __init__(
        self,
        ring: Ring,
        batcher: Batcher,
        launcher: Launcher,
        settings: LoopSettings,
        feedback: Feedback | None = None,
    ) -> None:
        at_once = min(ring.capacity, MOST_AT_ONCE)
        super().__init__(launcher.recorder, settings, at_once, feedback)
        self._batcher, self._launcher = batcher, launcher
        self._records = np.zeros(at_once, COMMAND_DTYPE)
        self._block: Words = as_words(self._records)
        self._arguments = self._arguments_of(ring)
        self._load()

    def _arguments_of(self, ring: Ring) -> tuple[Any, ...]:
        """Return the arguments of the compiled loop."""
        raise NotImplementedError

    def _load(self) -> None:
        """Load all machine code before a clock starts: enter the compiled loop with a ring that is stopped."""
        raise NotImplementedError

    def _begin(self, now_ns: int) -> None:
        self._batcher.start(now_ns)

    def _fail(self, code: int) -> None:
        if code == LoopExit.FAILED:
            self._launcher.check(int(self._state[LoopWord.STATUS]))
        raise self._batcher.unknown_at(self._records[: self._state[_COUNT]], int(self._state[_NEXT]))

    def _end(self) -> None:
        for reason, count in enumerate(self._state[LoopWord.FLUSHES :].tolist()):
            self._batcher.flushes[reason] += count


class BatchLoop(_PoppingLoop):
    """Runs `pump_batches`. With `feedback` the batcher keeps order, and results of steps are fed back."""

    def _arguments_of(self, ring: Ring) -> tuple[Any, ...]:
        launcher, feedback = self._launcher, self._feedback
        slot_bytes = np.array(launcher.slot_bytes, np.int64)
        fed_back = None
        if feedback is not None:
            flights = feedback.flights
            fed_back = (flights.back.arrays, flights.ended, flights.arrays)
        launching = (launcher.tables, launcher.recorder.arrays, slot_bytes)
        loop = (self._settings, self._state)
        return (ring.arrays, self._block, self._batcher.arrays, self._batcher.order, launching, fed_back, loop)

    def _load(self) -> None:
        pump_batches(stopped_ring(), *self._arguments[1:])
        if self._feedback is not None:
            self._feedback.flights.collect(self._block[:0])

    def _enter(self) -> int:
        self._launcher.lend(self._state)
        code = int(pump_batches(*self._arguments))
        self._launcher.take_back(self._state)
        return code

    def _launch(self) -> None:
        bucket, size, reason, flush_ns = self._state[BATCH].tolist()
        batch = self._batcher.left(bucket, size, reason)
        self._launcher.submit(batch, flush_ns)
        if self._feedback is not None and (count := self._feedback.flights.collect(batch.words)):
            self._feed_back(count)


class CommandLoop(_PoppingLoop):
    """Runs `pump_commands`: one launch per command, in arrival order."""

    def _arguments_of(self, ring: Ring) -> tuple[Any, ...]:
        self._shape_of = np.zeros(len(self._block), np.int32)
        launcher, loop = self._launcher, (self._settings, self._state)
        shapes = self._batcher.arrays[0]
        return (ring.arrays, self._block, self._shape_of, shapes, launcher.tables, launcher.recorder.arrays, loop)

    def _load(self) -> None:
        pump_commands(stopped_ring(), *self._arguments[1:])

    def _enter(self) -> int:
        self._launcher.lend(self._state)
        code = int(pump_commands(*self._arguments))
        self._launcher.take_back(self._state)
        return code

    def _launch(self) -> None:
        """Launch one command, which is sampled, or all popped commands if Python makes every launch."""
        state, launcher = self._state, self._launcher
        first = int(state[_NEXT])
        stop = first + 1 if launcher.is_compiled else int(state[_COUNT])
        launcher.submit_each(self._block[first:stop], self._shape_of[first:stop], int(state[_NOW_NS]))
        state[_NEXT] = stop
