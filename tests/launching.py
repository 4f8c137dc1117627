"""Launch calls written into a recorder by hand, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from launchopt.batcher import FlushReason
from launchopt.command import COMMAND_DTYPE, as_words
from launchopt.recorder import Recorder, Strategy, note


def launch(
    recorder: Recorder,
    seqs: Sequence[int],
    *,
    shape: int = 0,
    flush_ns: int = 0,
    start_ns: int = 0,
    end_ns: int = 0,
    zero_ns: int = 0,
) -> None:
    """One launch call that ran commands `seqs`, each enqueued 10 ns times its number after `zero_ns`."""
    records = np.zeros(len(seqs) + 2, COMMAND_DTYPE)
    records["seq"][1:-1] = seqs
    records["enqueue_ns"] = zero_ns + records["seq"].astype(np.int64) * 10
    what = (recorder.next_batch(), shape, int(Strategy.strided), int(FlushReason.idle), flush_ns)
    columns = recorder.launches, recorder.commands, recorder.cursor
    note(*columns, as_words(records), 1, 1 + len(seqs), what, start_ns, end_ns)
