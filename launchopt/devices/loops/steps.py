"""The consumer's loop for batches of whole steps: ring -> step batcher -> a mode's `submit`, on any device.

Between two batches no Python runs. `submit(batch, flush_ns)` launches one; then `feed_back` gets the ends of its steps,
as with `chain_pump`, and the compiled loop goes on: it tells whoever issued a step when the device is done with it,
gathers records, and comes back with the next batch (FLUSH). What leaves, and when, is the batcher's to say; of the
settings only those that say how to wait are used here. Where records may come early the loop says when (`ring.LEFT`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.batching import step_buckets as sb
from launchopt.batching.order import REQUEST_SHIFT
from launchopt.batching.step_batcher import StepBatch, StepBatcher
from launchopt.command import COMMAND_DTYPE, W_SLOT_C_REQUEST
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.loops import commands as lp
from launchopt.devices.loops import requests as lc
from launchopt.devices.loops.admission import Admission, admit, look
from launchopt.devices.loops.commands_runner import PumpSettings
from launchopt.errors import Interrupted, RunError
from launchopt.native import compiled, cpu_pause, load_acquire, monotonic_ns, store_release
from launchopt.queue.ring import HEADER_WORDS, HeaderWord, Ring, has_record, is_closed, ready_words, release_words
from launchopt.recording.recorder import CursorWord, Recorder, wants_room
from launchopt.types import Int, Table

FLUSH, WRONG = lp.SPECIAL, lp.UNKNOWN  # why the loop came back, beside lt_pump's: a batch; a record that is wrong
MOST_AT_ONCE = 512  # records popped in one go: 32 KiB stay in a core's nearest cache until they are gathered
MOST_EARLY = 64  # the same where records come while a step runs: between two looks whether it is done
# Words of `state` behind those of lt_pump. CODE: what is wrong; FIRST: where in the ring those are that are being read.
CODE, FIRST = range(lp.STATE_WORDS, lp.STATE_WORDS + 2)
STATE_WORDS = lp.STATE_WORDS + 2
# A batch is told of by ROWS in place of a bucket, SIZE (requests), REASON and FLUSH_NS.
ROWS = lp.BUCKET
# Words of `settings`.
SPIN_NS, SLEEP_NS, AT_ONCE = range(3)


@compiled
def _land(back: Any, flights: Any, batcher: Any) -> None:
    """Tell of every step that the device has finished, and let the batcher know."""
    rows, places, done, cursor = flights
    landed = cursor[lc.FIRST]
    lc.land(back, rows, places, done, cursor)
    while landed != cursor[lc.FIRST]:
        sb.land_step(np.intp(rows[landed & (len(places) - 1), W_SLOT_C_REQUEST] >> REQUEST_SHIFT), batcher)
        landed += 1


@compiled
def _wait(ring: Any, back: Any, flights: Any, batcher: Any, settings: Table, state: Table) -> Int:
    """Until there is something to do or see to, or (False) as long as to spin for it with nothing under way."""
    header, data = ring
    cursor, kinds, counts = flights[3], batcher[3], batcher[6]
    due_ns = sb.next_due_ns(state[lp.NOW_NS] + lp.UNLIMITED, kinds, counts)
    until_ns = state[lp.NOW_NS] + settings[SPIN_NS]
    if due_ns <= until_ns + settings[SLEEP_NS]:
        until_ns = due_ns  # a sleep would overshoot it
    look_ns = until_ns  # when to look around
    if cursor[lc.FIRST] != cursor[lc.STOP_AT]:
        look_ns = min(until_ns, state[lp.NOW_NS] + lc.QUIET_NS)
    while not (has_record(header, data) or is_closed(header)):
        _land(back, flights, batcher)
        if sb.steps_stalled(counts):
            return True  # the last one that could have come was told that it is finished
        if monotonic_ns() >= look_ns:
            return look_ns < until_ns or until_ns >= due_ns or cursor[lc.FIRST] != cursor[lc.STOP_AT]
        cpu_pause()
    return True


@compiled
def refill(header: NDArray[np.uint64], data: NDArray[np.uint64], most: Int, state: Table) -> None:
    """Give back what was read, and look for more: records are gathered from where they lie in the ring."""
    if state[lp.COUNT] > 0:
        release_words(header, state[lp.COUNT])
    state[FIRST], state[lp.NEXT] = header[HeaderWord.TAIL] & np.uint64(len(data) - 1), 0
    state[lp.COUNT] = ready_words(header, data, most)
    state[lp.NOW_NS] = monotonic_ns()


@compiled
def _let_early(header: NDArray[np.uint64], batcher: Any, state: Table) -> None:
    """A batch has left: where nothing is held any more, say that the next steps of all that left may come early."""
    counts = batcher[6]
    if counts[sb.EARLY] != 0:
        if counts[sb.HELD] == 0:
            store_release(header, HeaderWord.STEPS_LEFT, header[HeaderWord.TAIL] + np.uint64(state[lp.NEXT]))
        sb.stamp_left(state[lp.SIZE], state[ROWS], batcher)


@compiled
def pump_steps(
    ring: Any,
    back: Any,
    batcher: Any,
    flights: Any,
    records: Any,
    settings: Table,
    state: Table,
    admission: Any,
) -> Int:
    """Until there is a batch (FLUSH), or why the loop cannot go on."""
    header, data = ring
    cursor = flights[3]
    while True:
        _land(back, flights, batcher)
        if wants_room(records):
            return lp.SPOOL
        if state[lp.NEXT] == state[lp.COUNT]:
            refill(header, data, settings[AT_ONCE], state)
            if load_acquire(header, HeaderWord.STOP) != np.uint64(0):
                return lp.STOPPED
        drained = lp.is_drained(header)
        words = data[state[FIRST] : state[FIRST] + state[lp.COUNT]]
        state[lp.NEXT], kind, reason = sb.next_kind(words, state[lp.NEXT], state[lp.NOW_NS], drained, batcher)
        if kind < sb.NO_KIND:
            state[CODE] = kind
            return WRONG
        if kind != sb.NO_KIND:
            state[lp.FLUSH_NS] = monotonic_ns()
            state[lp.SIZE], state[ROWS] = sb.let_go(kind, batcher)
            state[lp.REASON] = reason
            if admission is not None:
                admit(state[ROWS], state[lp.SIZE], batcher, flights, admission)
            _let_early(header, batcher, state)
            return FLUSH
        if state[lp.COUNT] > 0:
            continue
        if drained and cursor[lc.FIRST] == cursor[lc.STOP_AT]:
            return lp.DRAINED
        if lc.is_quiet(state[lp.NOW_NS], records[2][CursorWord.NEXT_LAUNCH], cursor):
            return lc.QUIET
        if admission is not None:
            look(batcher, admission)
        if not _wait(ring, back, flights, batcher, settings, state):
            return lp.IDLE


class StepPump:
    """One run's loop. `submit` launches a batch, and is told when it left; `feed_back` submits what follows its ends;
    `check_alive` raises for a lost device.

    At most the batcher's limit times its rows of commands are noted in `recorder` between two `make_room`.
    admission: of a mode whose launches may wait for their batch; `submit` comes after that. arguments: of `pump_steps`.
    """

    def __init__(
        self,
        ring: Ring,
        back: Ring,
        batcher: StepBatcher,
        flights: Flights,
        submit: Callable[[StepBatch, int], None],
        feed_back: Callable[[Flights, int], None],
        check_alive: Callable[[], None],
        recorder: Recorder,
        settings: PumpSettings,
        admission: Admission | None = None,
    ) -> None:
        self._batcher, self._flights, self._recorder = batcher, flights, recorder
        self._submit, self._feed_back, self._check_alive = submit, feed_back, check_alive
        self._sleep_s = settings.sleep_ns * 1e-9
        self._state = np.zeros(STATE_WORDS, np.int64)
        self.arguments: tuple[Any, ...] = (
            ring.arrays,
            back.arrays,
            batcher.arrays,
            flights.arrays,
            recorder.arrays,
            np.array([settings.spin_ns, settings.sleep_ns, MOST_EARLY if batcher.ahead else MOST_AT_ONCE], np.int64),
            self._state,
            None if admission is None else admission.arrays,
        )
        self._load()

    def _load(self) -> None:
        """Have all machine code at hand before a clock starts: a look at a ring that says stop."""
        stopped = np.zeros(HEADER_WORDS, np.uint64), np.zeros((2, 8), np.uint64)
        stopped[0][HeaderWord.STOP] = 1
        pump_steps(stopped, *self.arguments[1:])
        self._flights.collect(stopped[1][:0])

    @property
    def flushes(self) -> list[int]:
        """Batches that left, by reason."""
        return self._batcher.flushes

    def run(self) -> None:
        """Until the ring is drained, every step launched and told of."""
        state, arguments, flights = self._state, self.arguments, self._flights
        told = state[ROWS : lp.FLUSH_NS + 1]
        left, submit, collect, feed_back = self._batcher.left, self._submit, flights.collect, self._feed_back
        while True:
            code = pump_steps(*arguments)
            if code == FLUSH:
                rows, size, reason, flush_ns = told.tolist()
                batch = left(reason, size, rows)
                submit(batch, flush_ns)
                feed_back(flights, collect(batch.words[-size:]))
            elif code == lp.DRAINED:
                break
            elif code == lp.IDLE:
                time.sleep(self._sleep_s)
            elif code == lp.SPOOL:
                self._recorder.make_room()
            elif code == lc.QUIET:
                self._check_alive()
            elif code == WRONG:
                record = arguments[0][1][state[FIRST] + state[lp.NEXT]].view(COMMAND_DTYPE)[0]
                raise self._batcher.wrong(int(state[CODE]), record)
            else:
                raise Interrupted("stopped by the parent")
        if partial := self._batcher.partial:
            raise RunError(f"{partial} steps were never asked for to their end")
