"""The recorder: it keeps a row for every launch call and every command, in memory that does not grow with the run.

`row_writer.note` writes one row of `launches` per launch call, and one row of `commands` per command. The rows are in
the order of execution, in ring buffers that are allocated before the clock starts. A command that is posted to the
persistent kernel (`Strategy.resident`) is no launch call: several posted commands share a row.

Between two blocks of commands `spool` appends the buffers to unnamed files. After the run `chunks`
reads all rows back. Times are CLOCK_MONOTONIC ns; `summary` turns them into times since the start barrier.

No row is lost: after a call of `spool` at most half of each buffer is in use. Until the next call at most `margin`
launches and `margin` commands are recorded, and they fit in the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launchopt.errors import RunError
from launchopt.recording.launch_rows import (
    COMMAND_COLUMNS,
    CURSOR_WORDS,
    LAUNCH_COLUMNS,
    CommandColumn,
    CursorWord,
    Facts,
    LaunchColumn,
    RecordingArrays,
    Strategy,
)
from launchopt.recording.row_writer import must_spool, note
from launchopt.recording.spool import Rows, SpooledRows
from launchopt.types import Words

# Buffers of 1.7 MB fit in a core's cache. The time to write half of them to a file is shorter than the time for which a
# full launch queue keeps a GPU busy.
LEAST_ROWS = 16_384
CHUNK_LAUNCHES, CHUNK_COMMANDS = 65_536, 262_144  # rows of a chunk: 5 and 8 MB


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive launch calls, and the commands that they ran."""

    first_launch: int  # number of the first of these launch calls in the run
    launches: Rows  # [launches, LAUNCH_COLUMNS]
    commands: Rows  # [commands, COMMAND_COLUMNS], in the order of execution

    @property
    def of_launch(self) -> NDArray[np.int64]:
        """The launch of each command, an index into `launches`, [commands]."""
        return np.repeat(np.arange(len(self.launches)), self.launches[:, LaunchColumn.SIZE])


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of the recorded commands that belong to the workload."""

    distinct: int  # commands that were recorded at least once
    known: int  # rows of these commands


class Recorder:
    """Records a run of `commands` commands.

    margin: largest number of launches, and of commands, that are recorded between two calls of `spool`. folder: the
    folder of the files (None: that of temporary files). The files take up to 80 bytes per launch and 32 bytes per
    command.
    least_rows: smallest number of rows of each buffer.
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

    @property
    def arrays(self) -> RecordingArrays:
        """The fields of a Recording, for compiled loops."""
        return self.launches, self.commands, self.cursor

    def note(self, words: Words, part: slice, facts: Facts, start_ns: int, end_ns: int) -> None:
        """Record one launch call that submitted words[part], as `row_writer.note` does."""
        note(self.arrays, words, part.start, part.stop, facts, start_ns, end_ns)

    def reset(self) -> None:
        """Drop all rows, before the clock starts. This also loads the machine code that `spool` calls."""
        self.cursor.fill(0)
        self.spool()

    def close(self) -> None:
        """Close the files, which deletes them."""
        self._launch_rows.close()
        self._command_rows.close()

    def spool(self) -> None:
        """Append the buffers to the files if more than half of one is in use.

        Raise RunError if a launch call was not recorded, because a buffer was full.
        """
        if must_spool(self.arrays):
            self._require_all()
            launches, commands = self.launch_count, self.command_count
            self._launch_rows.spool(int(self.cursor[CursorWord.SPOOLED_LAUNCHES]), launches)
            self._command_rows.spool(int(self.cursor[CursorWord.SPOOLED_COMMANDS]), commands)
            self.cursor[CursorWord.SPOOLED_LAUNCHES], self.cursor[CursorWord.SPOOLED_COMMANDS] = launches, commands

    def _require_all(self) -> None:
        if lost := int(self.cursor[CursorWord.LOST_LAUNCHES]):
            raise RunError(f"{lost} launch calls were not recorded: a buffer of the recorder was full")

    @property
    def launch_count(self) -> int:
        """Number of launch calls recorded so far."""
        return int(self.cursor[CursorWord.NEXT_LAUNCH])

    @property
    def command_count(self) -> int:
        """Number of commands recorded so far."""
        return int(self.cursor[CursorWord.NEXT_COMMAND])

    def next_batch(self, count: int = 1) -> int:
        """Reserve numbers for `count` batches; return the first number."""
        first = int(self.cursor[CursorWord.NEXT_BATCH])
        self.cursor[CursorWord.NEXT_BATCH] = first + count
        return first

    def mark_sample(self, first_launch: int, sample: int) -> None:
        """Mark launch calls from `first_launch` on as timed on the device, by pair of events `sample`.

        Call this before the next `spool`.
        """
        if first_launch < self.cursor[CursorWord.SPOOLED_LAUNCHES]:
            raise RunError(f"launch call {first_launch} can no longer be marked: it is in the file")
        rows = np.arange(first_launch, self.launch_count) & (len(self.launches) - 1)
        self.launches[rows, LaunchColumn.SAMPLE] = sample

    def mark_packed(self, packed_bytes: int, extra_calls: int) -> None:
        """Record that the last launch copied `packed_bytes` to and from scratch memory, in `extra_calls` calls."""
        self.launches[(self.launch_count - 1) & (len(self.launches) - 1), LaunchColumn.PACKED_BYTES] = packed_bytes
        self.cursor[CursorWord.EXTRA_CALLS] += extra_calls

    def count_more(self, calls: int) -> None:
        """Count API calls that submitted work and have no row."""
        self.cursor[CursorWord.EXTRA_CALLS] += calls

    @property
    def launch_calls(self) -> int:
        """Number of API calls that submitted work: launch calls, copies for packing, and other calls without a row."""
        return self.launch_count + int(self.cursor[CursorWord.EXTRA_CALLS])

    def launch_chunks(self, most: int = CHUNK_LAUNCHES) -> Iterator[tuple[int, Rows]]:
        """Yield (number of the first row, rows) of all launch calls, up to `most` rows at a time."""
        self._require_all()
        for first in range(0, self.launch_count, most):
            stop = min(first + most, self.launch_count)
            yield first, self._launch_rows.read(first, stop, int(self.cursor[CursorWord.SPOOLED_LAUNCHES]))

    def chunks(self, most_launches: int = CHUNK_LAUNCHES, most_commands: int = CHUNK_COMMANDS) -> Iterator[Chunk]:
        """Yield all rows, in chunks of at most `most_launches` launch calls and `most_commands` commands.

        A launch call with more commands has a chunk of its own.
        """
        ran = 0
        for first, rows in self.launch_chunks(most_launches):
            ends, start = np.cumsum(rows[:, LaunchColumn.SIZE]), 0
            while start < len(rows):
                before = int(ends[start] - rows[start, LaunchColumn.SIZE])
                stop = max(start + 1, int(np.searchsorted(ends, before + most_commands, "right")))
                until = ran + int(ends[stop - 1]) - before
                commands = self._command_rows.read(ran, until, int(self.cursor[CursorWord.SPOOLED_COMMANDS]))
                yield Chunk(first + start, rows[start:stop], commands)
                ran, start = until, stop

    def commands_by_strategy(self) -> dict[str, int]:
        """Return the number of commands of each strategy, by its name, without strategies that launched none."""
        counts = np.zeros(len(Strategy), np.int64)
        for _, rows in self.launch_chunks():
            np.add.at(counts, rows[:, LaunchColumn.STRATEGY], rows[:, LaunchColumn.SIZE])
        return {each.name: int(counts[each]) for each in Strategy if counts[each]}

    def counted(self) -> Counted:
        """Count the recorded commands of the workload. This needs one byte of memory per command of the workload."""
        ran, known = self.ran()
        return Counted(int(np.count_nonzero(ran)), known)

    def ran(self) -> tuple[NDArray[np.bool_], int]:
        """Return which commands of the workload were recorded, [commands], and the rows of these commands."""
        seen, known = np.zeros(self._commands, np.bool_), 0
        for chunk in self.chunks():
            seqs = chunk.commands[:, CommandColumn.SEQ].view(np.uint64)
            seqs = seqs[seqs < self._commands]
            seen[seqs.astype(np.intp)] = True
            known += len(seqs)
        return seen, known

    def faults(self, counted: Counted | None = None, expected: int | None = None) -> Sequence[str]:
        """Return one sentence per fault in the counts of commands; none if each command ran exactly once.

        expected: commands that this recorder should have; None: all.
        """
        counted, expected, found = counted or self.counted(), self._commands if expected is None else expected, []
        if missing := expected - counted.distinct:
            found.append(f"{missing} of {expected} commands never ran")
        if repeated := counted.known - counted.distinct:
            found.append(f"{repeated} commands ran twice")
        if strangers := self.command_count - counted.known:
            found.append(f"{strangers} commands were not of this stream")
        return found
