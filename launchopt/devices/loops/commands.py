"""The consumer's compiled loop for modes that take commands as they arrive: ring -> launches -> recorder."""

from __future__ import annotations

import numpy as np

from launchopt.batching.batch import FlushReason
from launchopt.batching.buckets import classify_words
from launchopt.devices.cublaslt.launch import OK, Flush, launch_each
from launchopt.devices.cublaslt.launch_tables import LaunchTables, TableArrays
from launchopt.devices.loops.state import (
    FAR_NS,
    LoopArrays,
    LoopExit,
    LoopFields,
    LoopWord,
    is_drained,
    is_stopped,
    refill,
    wait,
)
from launchopt.native import compiled
from launchopt.queue.segment import RingArrays, RingWords
from launchopt.recording.launch_rows import CursorWord, Recording, RecordingArrays
from launchopt.recording.row_writer import must_spool
from launchopt.types import Int, ShapeIndices, Words


@compiled
def _loop(
    ring: RingWords,
    block: Words,
    shape_of: ShapeIndices,
    shapes: Words,
    tables: LaunchTables,
    recording: Recording,
    loop: LoopArrays,
) -> Int:
    """Run until Python is needed; return the LoopExit."""
    state, cursor = loop.state, recording.cursor
    while True:
        if state[LoopWord.NEXT] == state[LoopWord.COUNT]:
            if must_spool(recording):
                return LoopExit.SPOOL
            refill(ring, block, state)
            if is_stopped(ring):
                return LoopExit.STOPPED
            if state[LoopWord.COUNT] == 0:
                if is_drained(ring):
                    return LoopExit.DRAINED
                if not wait(ring, state[LoopWord.NOW_NS] + FAR_NS, None, None, None, loop):
                    return LoopExit.IDLE
                continue
            known = classify_words(block[: state[LoopWord.COUNT]], shapes, shape_of)
            if known < state[LoopWord.COUNT]:
                state[LoopWord.NEXT] = known
                return LoopExit.UNKNOWN
            state[LoopWord.FLUSHES + FlushReason.full] += state[LoopWord.COUNT]
        if state[LoopWord.LAUNCHES_LEFT] <= 0:
            return LoopExit.SPECIAL
        first = state[LoopWord.NEXT]
        stop = min(state[LoopWord.COUNT], first + state[LoopWord.LAUNCHES_LEFT])
        flush = Flush(cursor[CursorWord.NEXT_BATCH] - first, np.int64(FlushReason.full), state[LoopWord.NOW_NS])
        cursor[CursorWord.NEXT_BATCH] += stop - first
        status = launch_each(block, shape_of, first, stop, tables, recording, flush)
        if status != OK:
            state[LoopWord.STATUS] = status
            return LoopExit.FAILED
        state[LoopWord.LAUNCHES_LEFT] -= stop - first
        state[LoopWord.NEXT] = stop


@compiled
def pump_commands(
    ring: RingArrays,
    block: Words,
    shape_of: ShapeIndices,
    shapes: Words,
    tables: TableArrays,
    recording: RecordingArrays,
    loop: LoopFields,
) -> Int:
    """Run until Python is needed; return the LoopExit, as an integer.

    Arguments are the fields of RingWords, LaunchTables, Recording and LoopArrays. block: memory for popped records.
    shape_of: memory for their shape indices. shapes: `Buckets.shapes`.
    """
    arrays = RingWords(*ring), LaunchTables(*tables), Recording(*recording), LoopArrays(*loop)
    return np.int64(_loop(arrays[0], block, shape_of, shapes, arrays[1], arrays[2], arrays[3]))
