"""The consumer's loop for batches of whole steps: ring -> step batcher -> a mode's `submit_steps`, on any device.

`submit(batch, flush_ns)` launches one batch. Then Python feeds back the results of its steps and enters the compiled
loop. The loop notifies the driver of completed steps, gathers records, and returns with the next batch. If records of
the next step may come early, the loop tells the driver so by the ring's word `HeaderWord.STEPS_LEFT`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from launchopt.batching.batch import StepBatch
from launchopt.batching.step_batcher import StepBatcher
from launchopt.batching.step_buckets import KindCode, StepArrays, StepBuckets, StepWord
from launchopt.batching.step_policy import let_go, next_due_ns, next_kind, stamp_left
from launchopt.command import COMMAND_DTYPE
from launchopt.devices.feedback.landing import (
    FeedbackArrays,
    FeedbackFields,
    FlightArrays,
    feedback_quiet,
    in_flight,
    land,
)
from launchopt.devices.loops.admission import Admission, AdmissionFields, admit, look
from launchopt.devices.loops.runner import BATCH, ConsumerLoop, Feedback, LoopSettings, stopped_ring
from launchopt.devices.loops.state import (
    FAR_NS,
    ROWS,
    LoopArrays,
    LoopExit,
    LoopFields,
    LoopWord,
    SettingWord,
    is_drained,
    is_stopped,
    wait,
)
from launchopt.errors import RunError
from launchopt.native import compiled, monotonic_ns, store_release
from launchopt.queue.ring import Ring, ready_words, release_words
from launchopt.queue.segment import HeaderWord, RingArrays, RingWords
from launchopt.recording.launch_rows import CursorWord, Recording, RecordingArrays
from launchopt.recording.recorder import Recorder
from launchopt.recording.row_writer import must_spool
from launchopt.types import Int, Table, Words

MOST_AT_ONCE = 512  # records of a block: 32 KiB fit in a core's L1 cache
MOST_EARLY = 64  # records of a block if records come early: the loop polls for completed steps between two blocks


@compiled
def look_for_more(ring: RingWords, most: Int, state: Table) -> None:
    """Release the current block in the ring, and find the next block. The loop reads records in place, in the ring."""
    header, data = ring.header, ring.data
    if state[LoopWord.COUNT] > 0:
        release_words(header, state[LoopWord.COUNT])
    state[LoopWord.RING_PLACE] = header[HeaderWord.TAIL] & np.uint64(len(data) - 1)
    state[LoopWord.NEXT], state[LoopWord.COUNT] = 0, ready_words(header, data, most)
    state[LoopWord.NOW_NS] = monotonic_ns()


@compiled
def _let_early(header: Words, batcher: StepBuckets, state: Table) -> None:
    """After a flush, let the driver push records of the next steps early (`HeaderWord.STEPS_LEFT`).

    Do so only if the batcher holds no step any more.
    """
    if batcher.counts[StepWord.EARLY] != 0:
        if batcher.counts[StepWord.HELD] == 0:
            store_release(header, HeaderWord.STEPS_LEFT, header[HeaderWord.TAIL] + np.uint64(state[LoopWord.NEXT]))
        stamp_left(state[LoopWord.SIZE], state[ROWS], batcher)


@compiled
def _leave(
    kind: Int,
    reason: Int,
    batcher: StepBuckets,
    flights: FlightArrays,
    admission: AdmissionFields | None,
    state: Table,
) -> None:
    """Flush a bucket: write its batch to `state`, and admit the launch that waits for this batch."""
    state[LoopWord.FLUSH_NS] = monotonic_ns()
    state[LoopWord.SIZE], state[ROWS] = let_go(kind, batcher)
    state[LoopWord.REASON] = reason
    if admission is not None:
        admit(state[ROWS], state[LoopWord.SIZE], batcher, flights, admission)


@compiled
def _look(batcher: StepBuckets, admission: AdmissionFields | None) -> None:
    if admission is not None:
        look(batcher, admission)


@compiled
def _loop(
    ring: RingWords,
    batcher: StepBuckets,
    feedback: FeedbackArrays,
    recording: Recording,
    loop: LoopArrays,
    admission: AdmissionFields | None,
) -> Int:
    """Run until Python is needed; return the LoopExit."""
    state = loop.state
    while True:
        land(feedback, None, batcher)
        if must_spool(recording):
            return LoopExit.SPOOL
        if state[LoopWord.NEXT] == state[LoopWord.COUNT]:
            look_for_more(ring, loop.settings[SettingWord.AT_ONCE], state)
            if is_stopped(ring):
                return LoopExit.STOPPED
        drained, now_ns = is_drained(ring), state[LoopWord.NOW_NS]
        words = ring.data[state[LoopWord.RING_PLACE] : state[LoopWord.RING_PLACE] + state[LoopWord.COUNT]]
        state[LoopWord.NEXT], kind, reason = next_kind(words, state[LoopWord.NEXT], now_ns, drained, batcher)
        if kind < KindCode.NONE:
            state[LoopWord.STATUS] = kind
            return LoopExit.UNKNOWN
        if kind != KindCode.NONE:
            _leave(kind, reason, batcher, feedback.flights, admission, state)
            _let_early(ring.header, batcher, state)
            return LoopExit.SPECIAL
        if state[LoopWord.COUNT] > 0:
            continue
        if drained and not in_flight(feedback):
            return LoopExit.DRAINED
        if feedback_quiet(now_ns, recording.cursor[CursorWord.NEXT_LAUNCH], feedback):
            return LoopExit.QUIET
        _look(batcher, admission)
        due_ns = next_due_ns(now_ns + FAR_NS, batcher.kinds, batcher.counts)
        if not wait(ring, due_ns, feedback, None, batcher, loop):
            return LoopExit.IDLE


@compiled
def pump_steps(
    ring: RingArrays,
    batcher: StepArrays,
    feedback: FeedbackFields,
    recording: RecordingArrays,
    loop: LoopFields,
    admission: AdmissionFields | None,
) -> Int:
    """Run until a batch was flushed (SPECIAL) or Python is needed otherwise; return the LoopExit, as an integer.

    Arguments are the fields of RingWords, StepBuckets, FeedbackArrays, Recording and LoopArrays, nested likewise.
    admission: `Admission.arrays`, or None if no launch waits for its batch.
    """
    back, ended, flights = feedback
    fed_back = FeedbackArrays(RingWords(*back), ended, FlightArrays(*flights))
    arrays = RingWords(*ring), StepBuckets(*batcher), Recording(*recording), LoopArrays(*loop)
    return np.int64(_loop(arrays[0], arrays[1], fed_back, arrays[2], arrays[3], admission))


# the arguments of pump_steps
Arguments = tuple[RingArrays, StepArrays, FeedbackFields, RecordingArrays, LoopFields, AdmissionFields | None]


class StepLoop(ConsumerLoop):
    """Runs `pump_steps`. `submit` launches a batch of whole steps; its second argument is the time of the flush, ns.

    Between two calls of `Recorder.spool` the commands of at most one batch are recorded. admission: only for a mode
    whose launches may wait for their batch. The loop admits such a launch before it calls `submit`.
    """

    def __init__(
        self,
        ring: Ring,
        batcher: StepBatcher,
        submit: Callable[[StepBatch, int], None],
        feedback: Feedback,
        recorder: Recorder,
        settings: LoopSettings,
        admission: Admission | None = None,
    ) -> None:
        super().__init__(recorder, settings, MOST_EARLY if batcher.ahead else MOST_AT_ONCE, feedback)
        self._batcher, self._submit, self._flights = batcher, submit, feedback.flights
        flights = feedback.flights
        self.arguments: Arguments = (
            ring.arrays,
            batcher.arrays,
            (flights.back.arrays, flights.ended, flights.arrays),
            recorder.arrays,
            (self._settings, self._state),
            None if admission is None else admission.arrays,
        )
        self._load()

    def _load(self) -> None:
        """Load all machine code before a clock starts: enter the compiled loop with a ring that is stopped."""
        stopped = stopped_ring()
        pump_steps(stopped, *self.arguments[1:])
        self._flights.collect(stopped[1][:0])

    @property
    def flushes(self) -> list[int]:
        """Number of flushed batches, by FlushReason."""
        return self._batcher.flushes

    def _enter(self) -> int:
        return int(pump_steps(*self.arguments))

    def _launch(self) -> None:
        rows, size, reason, flush_ns = self._state[BATCH].tolist()
        batch = self._batcher.left(reason, size, rows)
        self._submit(batch, flush_ns)
        self._feed_back(self._flights.collect(batch.words[-size:]))

    def _fail(self, code: int) -> None:
        at = int(self._state[LoopWord.RING_PLACE] + self._state[LoopWord.NEXT])
        record = self.arguments[0][1][at].view(COMMAND_DTYPE)[0]
        raise self._batcher.wrong(int(self._state[LoopWord.STATUS]), record)

    def _end(self) -> None:
        if partial := self._batcher.partial:
            raise RunError(f"the workload ended within {partial} steps, whose last commands never came")
