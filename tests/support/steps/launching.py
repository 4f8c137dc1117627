"""Functions that write launch calls into a recorder by hand, and read all rows of a recorder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from launchopt.batching.batch import FlushReason
from launchopt.command import COMMAND_DTYPE, as_words
from launchopt.recording.launch_rows import COMMAND_COLUMNS, LAUNCH_COLUMNS, LaunchColumn, Strategy
from launchopt.recording.recorder import Chunk, Recorder
from launchopt.recording.spool import Rows


def launch(
    recorder: Recorder,
    seqs: Sequence[int],
    *,
    shape: int = 0,
    flush_ns: int = 0,
    start_ns: int = 0,
    end_ns: int = 0,
    zero_ns: int = 0,
    batch: int | None = None,
    eligible_ns: Sequence[int] = (),
    strategy: Strategy = Strategy.strided,
) -> None:
    """Record one launch call that ran commands `seqs`. Command i was enqueued 10 i ns after `zero_ns`.

    Command i is step i of request 2**32 - 1 - i. batch: number of the batch; None: the next one. eligible_ns: the time
    of each command.
    """
    records = np.zeros(len(seqs) + 2, COMMAND_DTYPE)
    records["seq"][1:-1] = seqs
    records["enqueue_ns"] = zero_ns + records["seq"].astype(np.int64) * 10
    records["step"] = records["seq"].astype(np.uint32)
    records["request"] = ~records["step"]
    records["slot_c"] = 77
    records["token"] = 0xFFFFFFFF
    if eligible_ns:
        records["turn"][1:-1] = eligible_ns
    number = recorder.next_batch() if batch is None else batch
    what = (number, shape, int(strategy), int(FlushReason.idle), flush_ns)
    recorder.note(as_words(records), slice(1, 1 + len(seqs)), what, start_ns, end_ns)


def recorded(recorder: Recorder) -> Chunk:
    """Return all rows of a recorder as one chunk."""
    chunks = list(recorder.chunks())
    assert [chunk.first_launch for chunk in chunks] == np.cumsum([0, *(len(x.launches) for x in chunks)])[:-1].tolist()
    assert all(len(chunk.commands) == chunk.launches[:, LaunchColumn.SIZE].sum() for chunk in chunks)
    launches: Rows = np.concatenate([np.empty((0, LAUNCH_COLUMNS), np.int64), *(x.launches for x in chunks)])
    commands: Rows = np.concatenate([np.empty((0, COMMAND_COLUMNS), np.int64), *(x.commands for x in chunks)])
    return Chunk(0, launches, commands)
