"""What the consumer's compiled loops have in common: why they come back, their state, refilling and waiting.

A loop comes back to Python where only Python can go on: a batch must be sampled or packed, the recorder must make room,
a result must be fed back. Then the loop is entered again. What it must remember is in `LoopArrays.state`. Times are
CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.batching.buckets import FlushReason
from launchopt.batching.order import Order
from launchopt.batching.step_buckets import StepBuckets
from launchopt.batching.step_policy import steps_stalled
from launchopt.devices.feedback.landing import QUIET_NS, FeedbackArrays, in_flight, land
from launchopt.native import compiled, cpu_pause, load_acquire, monotonic_ns
from launchopt.queue.ring import CLOSED_BIT, HeaderWord, RingWords, has_record, is_closed, pop_words
from launchopt.types import Int, Table, Words

POLLS = 16  # looks for a record between two looks at the clock
FAR_NS = 1 << 40  # 18 minutes: nothing is due before that


class LoopExit(enum.IntEnum):
    """Why a loop came back. GO_ON is for its own functions: it does not come back."""

    GO_ON = -1
    DRAINED = 0  # the ring is closed and empty, and everything was launched
    STOPPED = 1  # the parent says stop
    IDLE = 2  # nothing happened for SPIN_NS: sleep
    SPECIAL = 3  # Python is to launch the batch, or the commands, in `state`
    FAILED = 4  # a launch returned STATUS
    UNKNOWN = 5  # the record at NEXT cannot be taken
    SPOOL = 6  # the recorder must make room
    ENDED = 7  # ENDS steps ended: their results must be fed back
    QUIET = 8  # steps are under way and nothing happened for QUIET_NS: ask whether the device is alive


class LoopWord(enum.IntEnum):
    """Words of `LoopArrays.state`."""

    COUNT = 0  # records of the block that was popped, or that lies in the ring, at NOW_NS
    NEXT = 1  # the first of them that is not dealt with
    NOW_NS = 2
    LAUNCHES_LEFT = 3  # launches that the loop may make before Python must make one
    BUCKET = 4  # of the batch that left last; of whole steps their ROWS
    SIZE = 5  # commands of that batch; of whole steps its requests
    REASON = 6  # FlushReason of that batch
    FLUSH_NS = 7  # when that batch left
    STATUS = 8  # what a launch returned that failed; what is wrong with a record of a step
    ENDS = 9  # steps that ended in the batch launched last
    RING_PLACE = 10  # where in the ring the block of a loop over steps begins
    FLUSHES = 11  # from here: batches that left, by FlushReason


ROWS = LoopWord.BUCKET
STATE_WORDS = LoopWord.FLUSHES + len(FlushReason)


class SettingWord(enum.IntEnum):
    """Words of `LoopArrays.settings`."""

    SPIN_NS = 0  # how long to spin before a sleep
    SLEEP_NS = 1  # how long a sleep lasts
    PACK_BYTES_PER_LAUNCH = 2  # bytes that the device copies in the time of one launch
    AT_ONCE = 3  # most records of a block


class LoopArrays(NamedTuple):
    """What belongs to a loop alone."""

    settings: Table  # [SettingWord]
    state: Table  # [STATE_WORDS]


LoopFields = tuple[Table, Table]  # the fields of LoopArrays, as Python passes them


@compiled
def refill(ring: RingWords, block: Words, state: Table) -> None:
    """Pop the next block."""
    state[LoopWord.COUNT], state[LoopWord.NEXT] = pop_words(ring.header, ring.data, block), 0
    state[LoopWord.NOW_NS] = monotonic_ns()


@compiled
def is_stopped(ring: RingWords) -> bool:
    """Return whether the parent says stop."""
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
    """Spin until there is something to do, or until `due_ns`; return False where the caller is to sleep instead.

    Steps that the device finishes meanwhile land. feedback, order, steps: as in `land`.
    """
    state, settings = loop.state, loop.settings
    until_ns = state[LoopWord.NOW_NS] + settings[SettingWord.SPIN_NS]
    if due_ns <= until_ns + settings[SettingWord.SLEEP_NS]:
        until_ns = due_ns  # a sleep would overshoot it
    look_ns = until_ns  # when to look around
    if in_flight(feedback):
        look_ns = min(until_ns, state[LoopWord.NOW_NS] + QUIET_NS)
    while True:
        for _ in range(POLLS):
            if has_record(ring.header, ring.data):
                return True
            land(feedback, order, steps)
            if _steps_stalled(steps):
                return True  # the last request that could have come has ended
            cpu_pause()
        if is_closed(ring.header):
            return True
        if monotonic_ns() >= look_ns:
            return bool(look_ns < until_ns or until_ns >= due_ns or in_flight(feedback))
