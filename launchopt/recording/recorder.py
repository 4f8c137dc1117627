"""What happened to every launch call and every command, in memory that does not grow with the run.

Compiled launch loops write a row of `launches` a launch call and a row of `commands` a command through `note`, both
in the order of execution, into ring buffers allocated before the clock starts. What is posted to a kernel that runs
already (`Strategy.resident`) is no launch call; it has a row for some commands in a row. Between two blocks of commands
`make_room` appends what is in them to files without a name (`spool`); `chunks` reads everything back after the run.
Times are CLOCK_MONOTONIC nanoseconds; `results` turns them into times since the start barrier.

That no row is lost between two calls of `make_room`: a call leaves at most half of either buffer in use, at most
`margin` launches or commands are noted before the next, and `margin` is no more than the other half.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launchopt.command import W_ELIGIBLE, W_ENQUEUE, W_SEQ, W_SLOT_C_REQUEST, W_STEP
from launchopt.errors import RunError
from launchopt.native import compiled
from launchopt.recording.spool import Rows, SpooledRows
from launchopt.types import Int

# Columns of `launches` (int64).
BATCH, SHAPE, SIZE, STRATEGY, REASON, FLUSH_NS, SUBMIT_START_NS, SUBMIT_END_NS, SAMPLE, PACKED_BYTES = range(10)
LAUNCH_COLUMNS = 10
# Columns of `commands` (int64). REQUEST_STEP: request << 32 | step. ELIGIBLE_NS: 0 where that was when it was flushed.
SEQ, ENQUEUE_NS, REQUEST_STEP, ELIGIBLE_NS = range(4)
COMMAND_COLUMNS = 4
# Words of the cursor (int64). Rows are numbered from the start of the run; those before SPOOLED_* are in the files.
NEXT_LAUNCH, NEXT_COMMAND, SPOOLED_LAUNCHES, SPOOLED_COMMANDS, NEXT_BATCH, EXTRA_CALLS, LOST_LAUNCHES = range(7)
CURSOR_WORDS = 7
NOT_SAMPLED = -1

# 1.7 MB of buffers stay in a core's cache, and half of them is written within the time a GPU's launch queue holds out.
LEAST_ROWS = 16_384
CHUNK_LAUNCHES, CHUNK_COMMANDS = 65_536, 262_144  # 5 and 6 MB
HIGH, LOW = np.uint64(0xFFFF_FFFF_0000_0000), np.uint64(0xFFFF_FFFF)

LaunchFacts = tuple[int, int, int, int, int]  # batch, shape (-1: several), strategy, reason, flush_ns


class Strategy(enum.IntEnum):
    """What a launch call was, or how its operands were addressed."""

    single = 0
    strided = 1
    packed = 2
    pointers = 3
    grouped = 4
    coalesced = 5
    graph = 6
    fused = 7
    kernel = 8
    torch = 9
    triton = 10
    resident = 11
    megakernel = 12


POSTED = int(Strategy.resident)


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
    launch, command = cursor[NEXT_LAUNCH], cursor[NEXT_COMMAND]
    after = command + stop - first
    if launch - cursor[SPOOLED_LAUNCHES] >= len(launches) or after - cursor[SPOOLED_COMMANDS] > len(commands):
        cursor[LOST_LAUNCHES] += 1  # whoever asks next is told
        return
    row = launches[launch & (len(launches) - 1)]
    row[BATCH], row[SHAPE], row[SIZE] = what[0], what[1], stop - first
    row[STRATEGY], row[REASON], row[FLUSH_NS] = what[2], what[3], what[4]
    row[SUBMIT_START_NS], row[SUBMIT_END_NS] = start_ns, end_ns
    row[SAMPLE], row[PACKED_BYTES] = NOT_SAMPLED, 0
    mask = len(commands) - 1
    for i in range(first, stop):
        ran = commands[(command + i - first) & mask]
        seq, enqueue_ns = words[i, W_SEQ], words[i, W_ENQUEUE]
        request_step = (words[i, W_SLOT_C_REQUEST] & HIGH) | (words[i, W_STEP] & LOW)
        ran[SEQ], ran[ENQUEUE_NS], ran[REQUEST_STEP] = np.int64(seq), np.int64(enqueue_ns), np.int64(request_step)
        ran[ELIGIBLE_NS] = np.int64(words[i, W_ELIGIBLE])
    cursor[NEXT_LAUNCH], cursor[NEXT_COMMAND] = launch + 1, after
    if what[2] == POSTED:
        cursor[EXTRA_CALLS] -= 1


@compiled
def wants_room(launches: NDArray[np.int64], commands: NDArray[np.int64], cursor: NDArray[np.int64]) -> Int:
    """More than half of a buffer is in use, or a launch found none: `make_room` must come before the next block."""
    used = max(cursor[NEXT_LAUNCH] - cursor[SPOOLED_LAUNCHES], cursor[NEXT_COMMAND] - cursor[SPOOLED_COMMANDS])
    return 2 * used > len(launches) or cursor[LOST_LAUNCHES] > 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some launch calls in a row, and exactly the commands they ran."""

    first_launch: int  # launch calls of the run before these
    launches: Rows  # [launches, LAUNCH_COLUMNS]
    commands: Rows  # [commands, COMMAND_COLUMNS], in the order of execution

    @property
    def of_launch(self) -> NDArray[np.int64]:
        """The launch of each command, as an index into `launches`."""
        return np.repeat(np.arange(len(self.launches)), self.launches[:, SIZE])


@dataclass(frozen=True, slots=True)
class Counted:
    """Recorded commands of a stream."""

    distinct: int  # each counted once
    known: int  # as often as they are recorded


class Recorder:
    """Records a run of `commands` commands. `margin`: most launches, and commands, noted between two `make_room`.

    The files lie in `folder` (None: where temporary files go) and take up to 80 B a launch and 32 B a command.
    """

    def __init__(
        self, commands: int, margin: int = LEAST_ROWS // 2, folder: Path | None = None, least_rows: int = LEAST_ROWS
    ) -> None:
        rows = 1 << (max(least_rows, 2 * margin) - 1).bit_length()
        self._commands = commands
        self._launch_rows = SpooledRows(rows, LAUNCH_COLUMNS, folder)
        self._command_rows = SpooledRows(rows, COMMAND_COLUMNS, folder)
        self.launches, self.commands = self._launch_rows.buffer, self._command_rows.buffer
        self.cursor = np.zeros(CURSOR_WORDS, np.int64)

    def reset(self) -> None:
        """Forget everything, before the clock: what `make_room` calls is loaded here."""
        self.cursor.fill(0)
        self.make_room()

    def close(self) -> None:
        """Give the files back."""
        self._launch_rows.close()
        self._command_rows.close()

    def make_room(self) -> None:
        """Spool what is in the buffers where they are more than half full; RunError where a launch found no room."""
        if wants_room(self.launches, self.commands, self.cursor):
            self._require_all()
            launches, commands = self.launch_count, self.command_count
            self._launch_rows.spool(int(self.cursor[SPOOLED_LAUNCHES]), launches)
            self._command_rows.spool(int(self.cursor[SPOOLED_COMMANDS]), commands)
            self.cursor[SPOOLED_LAUNCHES], self.cursor[SPOOLED_COMMANDS] = launches, commands

    def _require_all(self) -> None:
        if lost := int(self.cursor[LOST_LAUNCHES]):
            raise RunError(f"{lost} launch calls were not recorded: more at once than the recorder was made for")

    @property
    def launch_count(self) -> int:
        """Launch calls so far."""
        return int(self.cursor[NEXT_LAUNCH])

    @property
    def command_count(self) -> int:
        """Commands that launch calls ran so far."""
        return int(self.cursor[NEXT_COMMAND])

    def next_batch(self, count: int = 1) -> int:
        """Number `count` batches; returns the first number."""
        first = int(self.cursor[NEXT_BATCH])
        self.cursor[NEXT_BATCH] = first + count
        return first

    def mark_sample(self, first_launch: int, sample: int) -> None:
        """Launch calls from `first_launch` on were timed on the device as `sample`; before the next `make_room`."""
        if first_launch < self.cursor[SPOOLED_LAUNCHES]:
            raise RunError(f"launch call {first_launch} is no longer at hand to be marked")
        self.launches[np.arange(first_launch, self.launch_count) & (len(self.launches) - 1), SAMPLE] = sample

    def mark_packed(self, packed_bytes: int, extra_calls: int) -> None:
        """The last launch took `extra_calls` more API calls, to copy this much to and from scratch."""
        self.launches[(self.launch_count - 1) & (len(self.launches) - 1), PACKED_BYTES] = packed_bytes
        self.cursor[EXTRA_CALLS] += extra_calls

    def count_more(self, calls: int) -> None:
        """So many API calls submitted work that has no row."""
        self.cursor[EXTRA_CALLS] += calls

    @property
    def launch_calls(self) -> int:
        """API calls that submitted work: a row of `launches` each that was not posted, those that packed, and more."""
        return self.launch_count + int(self.cursor[EXTRA_CALLS])

    def launch_chunks(self, most: int = CHUNK_LAUNCHES) -> Iterator[tuple[int, Rows]]:
        """All launch calls, up to `most` at a time, each time with the number of those before."""
        self._require_all()
        for first in range(0, self.launch_count, most):
            stop = min(first + most, self.launch_count)
            yield first, self._launch_rows.read(first, stop, int(self.cursor[SPOOLED_LAUNCHES]))

    def chunks(self, most_launches: int = CHUNK_LAUNCHES, most_commands: int = CHUNK_COMMANDS) -> Iterator[Chunk]:
        """Everything noted. A chunk holds no more than this, but for a launch call that has more commands alone."""
        ran = 0
        for first, rows in self.launch_chunks(most_launches):
            ends, start = np.cumsum(rows[:, SIZE]), 0
            while start < len(rows):
                before = int(ends[start] - rows[start, SIZE])
                stop = max(start + 1, int(np.searchsorted(ends, before + most_commands, "right")))
                until = ran + int(ends[stop - 1]) - before
                commands = self._command_rows.read(ran, until, int(self.cursor[SPOOLED_COMMANDS]))
                yield Chunk(first + start, rows[start:stop], commands)
                ran, start = until, stop

    def commands_by_strategy(self) -> dict[str, int]:
        """How many commands were launched how, by the strategies' names; those that launched any."""
        counts = np.zeros(len(Strategy), np.int64)
        for _, rows in self.launch_chunks():
            np.add.at(counts, rows[:, STRATEGY], rows[:, SIZE])
        return {each.name: int(counts[each]) for each in Strategy if counts[each]}

    def counted(self) -> Counted:
        """How many commands of this stream are recorded, read back from what was kept. Takes a byte a command."""
        seen, known = np.zeros(self._commands, np.bool_), 0
        for chunk in self.chunks():
            seqs = chunk.commands[:, SEQ].view(np.uint64)
            seqs = seqs[seqs < self._commands]
            seen[seqs.astype(np.intp)] = True
            known += len(seqs)
        return Counted(int(np.count_nonzero(seen)), known)

    def faults(self, counted: Counted | None = None) -> Sequence[str]:
        """What is wrong with the count of commands: empty when each ran exactly once."""
        counted = counted or self.counted()
        found = []
        if missing := self._commands - counted.distinct:
            found.append(f"{missing} of {self._commands} commands never ran")
        if repeated := counted.known - counted.distinct:
            found.append(f"{repeated} commands ran twice")
        if strangers := self.command_count - counted.known:
            found.append(f"{strangers} commands were not of this stream")
        return found
