"""The columns of recorded launch calls and commands, and the strategies of launch calls.

A recorder (`launchopt/recording/recorder.py`) owns the arrays, and `row_writer.note` fills them. Times are
CLOCK_MONOTONIC ns. This module compiles nothing, so that a process that only plans a run can load it without Numba.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from launchopt.types import Int, Table

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
    EXTRA_CALLS = 5  # number of API calls without a row, minus number of rows without an API call
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


RecordingArrays = tuple[Table, Table, Table]  # its fields: Python passes them four times faster than a NamedTuple
Facts = tuple[int, int, int, int, int]  # the fields of LaunchFacts, for the same reason


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
