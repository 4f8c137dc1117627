"""Parts that the consumer's compiled loops share: their exits and state, and functions to pop records and to wait.

A loop returns to Python if only Python can go on: to sample or pack a batch, to write recorded rows to a file, or to
feed back results. Python then enters the loop again. `LoopArrays.state` keeps the loop's state in between. Times are
CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.batching.batch import FlushReason
from launchopt.batching.order import Order
from launchopt.batching.step_buckets import StepBuckets
from launchopt.batching.step_policy import steps_stalled
from launchopt.devices.feedback.landing import QUIET_NS, FeedbackArrays, in_flight, land
from launchopt.native import compiled, cpu_pause, load_acquire, monotonic_ns
from launchopt.queue.ring import has_record, is_closed, pop_words
from launchopt.queue.segment import CLOSED_BIT, HeaderWord, RingWords
from launchopt.types import Int, Table, Words

POLLS = 16  # polls of the ring between two readings of the clock
FAR_NS = 1 << 40  # 18 minutes: a time at which nothing is due yet


class LoopExit(enum.IntEnum):
    """Reasons why a loop returns to Python. Only functions inside a loop return GO_ON."""

    GO_ON = -1  # the loop goes on
    DRAINED = 0  # the ring is closed and empty, and every command was launched
    STOPPED = 1  # the parent asked both children to stop
    IDLE = 2  # no record came for SPIN_NS: Python sleeps
    SPECIAL = 3  # Python must launch the batch or the commands that `state` describes
    FAILED = 4  # a launch returned STATUS
    UNKNOWN = 5  # the record at NEXT cannot be taken
    SPOOL = 6  # the recorder must write rows to its files (`Recorder.spool`)
    ENDED = 7  # ENDS steps ended: their results must be fed back
    QUIET = 8  # steps in flight made no progress for QUIET_NS: Python checks the device for errors


class LoopWord(enum.IntEnum):
    """Words of `LoopArrays.state`."""

    COUNT = 0  # records of the current block
    NEXT = 1  # index of the first record of the block that was not taken yet
    NOW_NS = 2  # time at which the block was popped or found
    LAUNCHES_LEFT = 3  # launches that the loop may make before Python must make one
    BUCKET = 4  # bucket of the batch flushed last; for whole steps its number of rows (ROWS)
    SIZE = 5  # number of commands of that batch; for whole steps its number of requests
    REASON = 6  # FlushReason of that batch
    FLUSH_NS = 7  # time at which that batch was flushed
    STATUS = 8  # status of the launch that failed, or KindCode of the record that has a fault
    ENDS = 9  # steps that end with the batch launched last
    RING_PLACE = 10  # index in the ring of the block's first record; only for a loop over steps
    FLUSHES = 11  # first of one word per FlushReason: number of flushed batches


ROWS = LoopWord.BUCKET
STATE_WORDS = LoopWord.FLUSHES + len(FlushReason)


class SettingWord(enum.IntEnum):
    """Words of `LoopArrays.settings`."""

    SPIN_NS = 0  # length of a spin before a sleep
    SLEEP_NS = 1  # length of a sleep
    PACK_BYTES_PER_LAUNCH = 2  # bytes that the device copies in the time of one launch
    AT_ONCE = 3  # largest number of records in a block


class LoopArrays(NamedTuple):
    """The arrays of one loop."""

    settings: Table  # [SettingWord]
    state: Table  # [STATE_WORDS]


LoopFields = tuple[Table, Table]  # the fields of LoopArrays, as Python passes them


@compiled
def refill(ring: RingWords, block: Words, state: Table) -> None:
    """Pop the next block of records, and write its size and time to `state`."""
    state[LoopWord.COUNT], state[LoopWord.NEXT] = pop_words(ring.header, ring.data, block), 0
    state[LoopWord.NOW_NS] = monotonic_ns()


@compiled
def is_stopped(ring: RingWords) -> bool:
    """Return whether the parent asked the children to stop."""
    return bool(load_acquire(ring.header, HeaderWord.STOP) != np.uint64(0))


@compiled
def is_drained(ring: RingWords) -> bool:
    """Return whether the producer has closed the ring, and every record was popped."""
    head, tail = load_acquire(ring.header, HeaderWord.HEAD), load_acquire(ring.header, HeaderWord.TAIL)
    return bool(head == tail | np.uint64(CLOSED_BIT))


@compiled
def _steps_stalled(steps: StepBuckets | None) -> bool:
    if steps is None:
        return False
    return steps_stalled(steps.counts)


@compiled
def wait(
    ring: RingWords,
    due_ns: Int,
    feedback: FeedbackArrays | None,
    order: Order | None,
    steps: StepBuckets | None,
    loop: LoopArrays,
) -> bool:
    """Spin until a record comes, the ring is closed, a stall begins, or `due_ns`; return False if it is time to sleep.

    Steps that the device completes meanwhile land. feedback, order, steps: as in `land`.
    """
    state, settings = loop.state, loop.settings
    until_ns = state[LoopWord.NOW_NS] + settings[SettingWord.SPIN_NS]
    if due_ns <= until_ns + settings[SettingWord.SLEEP_NS]:
        until_ns = due_ns  # a sleep would end after `due_ns`
    look_ns = until_ns  # time at which the spin is interrupted
    if in_flight(feedback):
        look_ns = min(until_ns, state[LoopWord.NOW_NS] + QUIET_NS)
    while True:
        for _ in range(POLLS):
            if has_record(ring.header, ring.data):
                return True
            land(feedback, order, steps)
            if _steps_stalled(steps):
                return True  # the last request that could have issued a step has ended
            cpu_pause()
        if is_closed(ring.header):
            return True
        if monotonic_ns() >= look_ns:
            return bool(look_ns < until_ns or until_ns >= due_ns or in_flight(feedback))
