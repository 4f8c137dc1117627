"""What happened to every launch call and every command, in columns allocated before the clock starts.

Compiled launch loops write a row of `launches` a launch call and a row of `commands` a command through `note`;
nothing is allocated or logged while a run is on. Times are CLOCK_MONOTONIC nanoseconds; `results` turns them
into times since the start barrier.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from launchopt.command import W_ENQUEUE, W_SEQ
from launchopt.native import compiled

# Columns of `launches` (int64).
BATCH, SHAPE, SIZE, STRATEGY, REASON, FLUSH_NS, SUBMIT_START_NS, SUBMIT_END_NS, SAMPLE, PACKED_BYTES = range(10)
LAUNCH_COLUMNS = 10
# Columns of `commands` (int64).
ENQUEUE_NS, LAUNCH = range(2)
COMMAND_COLUMNS = 2
# Words of the cursor (int64).
NEXT_LAUNCH, NEXT_BATCH, REPEATED, OUT_OF_RANGE, EXTRA_CALLS = range(5)
CURSOR_WORDS = 5
NOT_SAMPLED = -1

LaunchFacts = tuple[int, int, int, int, int]  # batch, shape, strategy, reason, flush_ns


class Strategy(enum.IntEnum):
    """How the operands of a launch call were addressed."""

    single = 0
    strided = 1
    packed = 2


@compiled
def note(
    launches: NDArray[np.int64],
    commands: NDArray[np.int64],
    cursor: NDArray[np.int64],
    words: NDArray[np.uint64],
    first: int,
    stop: int,
    what: LaunchFacts,
    start_ns: int,
    end_ns: int,
) -> None:
    """One launch call that submitted words[first:stop]; `what` as in LaunchFacts."""
    # There are more launches than commands only where commands ran twice: then the last row is the latest.
    launch = min(cursor[NEXT_LAUNCH], len(launches) - 1)
    cursor[NEXT_LAUNCH] = launch + 1
    row = launches[launch]
    row[BATCH], row[SHAPE], row[SIZE] = what[0], what[1], stop - first
    row[STRATEGY], row[REASON], row[FLUSH_NS] = what[2], what[3], what[4]
    row[SUBMIT_START_NS], row[SUBMIT_END_NS] = start_ns, end_ns
    row[SAMPLE], row[PACKED_BYTES] = NOT_SAMPLED, 0
    for i in range(first, stop):
        seq = words[i, W_SEQ]
        if seq >= np.uint64(len(commands)):
            cursor[OUT_OF_RANGE] += 1
            continue
        command = commands[np.intp(seq)]
        if command[LAUNCH] >= 0:
            cursor[REPEATED] += 1
        command[ENQUEUE_NS], command[LAUNCH] = np.int64(words[i, W_ENQUEUE]), launch


class Recorder:
    """Columns for up to `commands` commands, and as many launches."""

    def __init__(self, commands: int) -> None:
        self.launches = np.empty((commands, LAUNCH_COLUMNS), np.int64)
        self.commands = np.empty((commands, COMMAND_COLUMNS), np.int64)
        self.cursor = np.zeros(CURSOR_WORDS, np.int64)
        self.reset()

    def reset(self) -> None:
        """Forget everything. Writes every page, so that no page fault falls into the next run."""
        self.launches.fill(0)
        self.commands.fill(-1)
        self.cursor.fill(0)

    @property
    def launch_count(self) -> int:
        """Launch calls so far."""
        return int(self.cursor[NEXT_LAUNCH])

    def next_batch(self, count: int = 1) -> int:
        """Number `count` batches; returns the first number."""
        first = int(self.cursor[NEXT_BATCH])
        self.cursor[NEXT_BATCH] = first + count
        return first

    def mark_sample(self, first_launch: int, sample: int) -> None:
        """Launch calls from `first_launch` on were timed on the device as `sample`."""
        self.launches[first_launch : self.launch_count, SAMPLE] = sample

    def mark_packed(self, packed_bytes: int, extra_calls: int) -> None:
        """The last launch took `extra_calls` more API calls, to copy this much to and from scratch."""
        self.launches[self.launch_count - 1, PACKED_BYTES] = packed_bytes
        self.cursor[EXTRA_CALLS] += extra_calls

    @property
    def launch_calls(self) -> int:
        """API calls that submitted work: a row of `launches` each, and those that packed."""
        return self.launch_count + int(self.cursor[EXTRA_CALLS])

    def done(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The launch calls so far [launches, LAUNCH_COLUMNS] and all commands [commands, COMMAND_COLUMNS]."""
        return self.launches[: self.launch_count], self.commands

    def missing(self) -> int:
        """Commands no launch call ran."""
        return int(np.count_nonzero(self.commands[:, LAUNCH] < 0))

    def faults(self) -> Sequence[str]:
        """What is wrong with the count of commands: empty when each ran exactly once."""
        found = []
        if missing := self.missing():
            found.append(f"{missing} of {len(self.commands)} commands never ran")
        if repeated := int(self.cursor[REPEATED]):
            found.append(f"{repeated} commands ran twice")
        if strangers := int(self.cursor[OUT_OF_RANGE]):
            found.append(f"{strangers} commands were not of this stream")
        return found
