"""Rows of launch calls and of commands, and the compiled functions that write them.

A recorder (`launchopt/recording/recorder.py`) owns the arrays. `note` adds one row per launch call and one row per
command of the call. Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.command import W_ELIGIBLE, W_ENQUEUE, W_SEQ
from launchopt.native import compiled
from launchopt.records import join_halves, request_of, step_of
from launchopt.types import Int, Table, Words

NOT_SAMPLED = -1  # in place of the number of a pair of GPU events


class LaunchColumn(enum.IntEnum):
    """Columns of `launches`, int64, one row per launch call."""

    BATCH = 0  # number of the batch
    SHAPE = 1  # index of the commands' shape; -1: they have several shapes
    SIZE = 2  # number of commands
    STRATEGY = 3  # Strategy
    REASON = 4  # FlushReason
    FLUSH_NS = 5  # time at which the batch was flushed
    SUBMIT_START_NS = 6  # time before the launch call
    SUBMIT_END_NS = 7  # time after the launch call
    SAMPLE = 8  # number of the pair of GPU events around the call; NOT_SAMPLED: none
    PACKED_BYTES = 9  # bytes copied to and from scratch memory


class CommandColumn(enum.IntEnum):
    """Columns of `commands`, int64, one row per command."""

    SEQ = 0  # number of the command in the workload
    ENQUEUE_NS = 1  # time of arrival
    REQUEST_STEP = 2  # request << 32 | step
    ELIGIBLE_NS = 3  # time at which the command became eligible; 0: when it was flushed


class CursorWord(enum.IntEnum):
    """Words of `cursor`, int64. Rows are numbered from the start of the run."""

    NEXT_LAUNCH = 0  # number of the next row of `launches`
    NEXT_COMMAND = 1  # number of the next row of `commands`
    SPOOLED_LAUNCHES = 2  # rows of `launches` that are in the file
    SPOOLED_COMMANDS = 3  # rows of `commands` that are in the file
    NEXT_BATCH = 4  # number of the next batch
    EXTRA_CALLS = 5  # API calls without a row, minus rows without an API call
    LOST_LAUNCHES = 6  # launch calls that were not recorded, because a buffer was full


LAUNCH_COLUMNS, COMMAND_COLUMNS, CURSOR_WORDS = len(LaunchColumn), len(CommandColumn), len(CursorWord)


class LaunchFacts(NamedTuple):
    """The values of a launch call in columns BATCH, SHAPE, STRATEGY, REASON and FLUSH_NS."""

    batch: Int
    shape: Int
    strategy: Int
    reason: Int
    flush_ns: Int


class Recording(NamedTuple):
    """The arrays of a recorder, for compiled code."""

    launches: Table  # [a power of two, LaunchColumn]
    commands: Table  # [a power of two, CommandColumn]
    cursor: Table  # [CursorWord]


RecordingArrays = tuple[Table, Table, Table]  # the fields of a Recording, as Python passes them: four times faster
Facts = tuple[int, int, int, int, int]  # the fields of LaunchFacts, likewise


class Strategy(enum.IntEnum):
    """Kinds of launch calls. The documentation of launches.parquet explains each (`columns.LAUNCH_COLUMNS`)."""

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
    recording: RecordingArrays, words: Words, first: Int, stop: Int, facts: Facts, start_ns: Int, end_ns: Int
) -> None:
    """Record one launch call that submitted words[first:stop] between `start_ns` and `end_ns`.

    recording: a Recording or its fields. facts: a LaunchFacts or its fields.
    """
    launches, commands, cursor = recording
    launch_facts = LaunchFacts(*facts)
    launch, command = cursor[CursorWord.NEXT_LAUNCH], cursor[CursorWord.NEXT_COMMAND]
    after = command + stop - first
    spooled, spooled_commands = cursor[CursorWord.SPOOLED_LAUNCHES], cursor[CursorWord.SPOOLED_COMMANDS]
    if launch - spooled >= len(launches) or after - spooled_commands > len(commands):
        cursor[CursorWord.LOST_LAUNCHES] += 1  # `make_room` raises
        return
    row = launches[launch & (len(launches) - 1)]
    row[LaunchColumn.BATCH], row[LaunchColumn.SHAPE] = launch_facts.batch, launch_facts.shape
    row[LaunchColumn.SIZE], row[LaunchColumn.STRATEGY] = stop - first, launch_facts.strategy
    row[LaunchColumn.REASON], row[LaunchColumn.FLUSH_NS] = launch_facts.reason, launch_facts.flush_ns
    row[LaunchColumn.SUBMIT_START_NS], row[LaunchColumn.SUBMIT_END_NS] = start_ns, end_ns
    row[LaunchColumn.SAMPLE], row[LaunchColumn.PACKED_BYTES] = NOT_SAMPLED, 0
    mask = len(commands) - 1
    for i in range(first, stop):
        ran = commands[(command + i - first) & mask]
        ran[CommandColumn.SEQ], ran[CommandColumn.ENQUEUE_NS] = np.int64(words[i, W_SEQ]), np.int64(words[i, W_ENQUEUE])
        ran[CommandColumn.REQUEST_STEP] = np.int64(join_halves(step_of(words, i), request_of(words, i)))
        ran[CommandColumn.ELIGIBLE_NS] = np.int64(words[i, W_ELIGIBLE])
    cursor[CursorWord.NEXT_LAUNCH], cursor[CursorWord.NEXT_COMMAND] = launch + 1, after
    if launch_facts.strategy == POSTED:
        cursor[CursorWord.EXTRA_CALLS] -= 1


@compiled
def wants_room(recording: RecordingArrays) -> bool:
    """Return whether `Recorder.make_room` must run before the next block of commands.

    It must if more than half of a buffer is in use, or if a launch call was not recorded.
    """
    launches, _, cursor = recording
    used_launches = cursor[CursorWord.NEXT_LAUNCH] - cursor[CursorWord.SPOOLED_LAUNCHES]
    used_commands = cursor[CursorWord.NEXT_COMMAND] - cursor[CursorWord.SPOOLED_COMMANDS]
    return bool(2 * max(used_launches, used_commands) > len(launches) or cursor[CursorWord.LOST_LAUNCHES] > 0)
