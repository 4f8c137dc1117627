"""The compiled functions that write recorded rows. `note` adds a row per launch call, and a row per command of it."""

from __future__ import annotations

import numpy as np

from launchopt.command import RecordWord
from launchopt.native import compiled
from launchopt.recording.launch_rows import (
    NOT_SAMPLED,
    POSTED,
    CommandColumn,
    CursorWord,
    Facts,
    LaunchColumn,
    LaunchFacts,
    RecordingArrays,
)
from launchopt.records import join_halves, request_of, step_of
from launchopt.types import Int, Words


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
        cursor[CursorWord.LOST_LAUNCHES] += 1  # the next call of `spool` raises RunError
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
        seq, enqueue_ns = np.int64(words[i, RecordWord.SEQ]), np.int64(words[i, RecordWord.ENQUEUE_NS])
        ran[CommandColumn.SEQ], ran[CommandColumn.ENQUEUE_NS] = seq, enqueue_ns
        ran[CommandColumn.REQUEST_STEP] = np.int64(join_halves(step_of(words, i), request_of(words, i)))
        ran[CommandColumn.ELIGIBLE_NS] = np.int64(words[i, RecordWord.ELIGIBLE_NS])
    cursor[CursorWord.NEXT_LAUNCH], cursor[CursorWord.NEXT_COMMAND] = launch + 1, after
    if launch_facts.strategy == POSTED:
        cursor[CursorWord.EXTRA_CALLS] -= 1


@compiled
def must_spool(recording: RecordingArrays) -> bool:
    """Return whether `Recorder.spool` must run before the next block of commands.

    It must if more than half of a buffer is in use, or if a launch call was not recorded.
    """
    launches, _, cursor = recording
    used_launches = cursor[CursorWord.NEXT_LAUNCH] - cursor[CursorWord.SPOOLED_LAUNCHES]
    used_commands = cursor[CursorWord.NEXT_COMMAND] - cursor[CursorWord.SPOOLED_COMMANDS]
    return bool(2 * max(used_launches, used_commands) > len(launches) or cursor[CursorWord.LOST_LAUNCHES] > 0)
