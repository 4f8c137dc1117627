"""Measures what the consumer pays to post a command to a persistent kernel and record it. Needs no GPU.

Two ways alternate on the same commands. One reads the clock and records once per block, as the consumer's loop does
(`cublaslt.launch.launch_each`). The other does so for each command. Rows go to a temporary file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COMMAND_DTYPE, RecordWord, as_words
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import ContextWord, PlanColumn, PlanKind, ResidentColumn, ShapeColumn
from launchopt.devices.resident import ring as rl
from launchopt.kernels.shared import COMMAND_WORDS
from launchopt.native import compiled
from launchopt.queue.ring import MOST_AT_ONCE
from launchopt.recording.launch_rows import Strategy
from launchopt.recording.recorder import Recorder
from launchopt.types import Int, Table
from runner.bench.figures import Figure, in_turn, ratios

COMMANDS = 100 * MOST_AT_ONCE
BITS = 12  # log2 of the ring's slots: all commands fit, so that none waits
assert 1 << BITS >= MOST_AT_ONCE


class Posting:
    """Commands of one shape, posted to the ring of a kernel that does not run."""

    def __init__(self) -> None:
        capacity = 1 << BITS
        self._ring, self._done = np.zeros((capacity, COMMAND_WORDS), np.int64), np.zeros(capacity, np.int64)
        self._state, self._queue = np.zeros(1, np.int64), np.zeros(rl.QUEUE_WORDS, np.int64)
        nothing = 0  # in place of the address of outputs that come with completions
        addresses = self._ring.ctypes.data, self._done.ctypes.data, nothing, self._state.ctypes.data
        self._queue[: rl.QueueWord.LAST], self._queue[rl.QueueWord.BITS] = addresses, BITS
        shapes, plans = np.zeros((1, len(ShapeColumn)), np.int64), np.zeros((2, len(PlanColumn)), np.int64)
        shapes[0, ShapeColumn.ONE_IS] = Strategy.resident
        plans[1, [ResidentColumn.QUEUE, PlanColumn.KIND]] = self._queue.ctypes.data, PlanKind.RESIDENT
        self.tables = shapes, plans, np.zeros((1, len(ContextWord)), np.int64)

    def run(self, recorder: Recorder, block: int, commands: int) -> int:
        """Return the ns to post `commands`, a multiple of MOST_AT_ONCE, in calls of `block` each."""
        words = as_words(np.zeros(MOST_AT_ONCE, COMMAND_DTYPE))
        words[:, RecordWord.SEQ], shape_of = np.arange(MOST_AT_ONCE), np.zeros(MOST_AT_ONCE, np.int32)
        records, took_ns = recorder.arrays, 0
        for _ in range(commands // MOST_AT_ONCE):
            self._queue[rl.QueueWord.NEXT] = 0
            start_ns = time.perf_counter_ns()
            recorder.spool()
            _post_all(words, shape_of, block, self.tables, records)
            took_ns += time.perf_counter_ns() - start_ns
            words[:, RecordWord.SEQ] += np.uint64(MOST_AT_ONCE)
        return took_ns


@compiled
def _post_all(
    words: NDArray[np.uint64],
    shape_of: NDArray[np.int32],
    block: Int,
    tables: tuple[Table, Table, Table],
    records: tuple[Table, Table, Table],
) -> None:
    for first in range(0, len(words), block):
        lt.launch_each(words, shape_of, first, min(len(words), first + block), tables, records, (first, 0, 0))


def suite(repeats: int) -> Iterator[Figure]:
    """Yield the ns per command of both ways. Needs one core."""
    posting = Posting()

    def ns(block: int) -> float:
        recorder = Recorder(COMMANDS, MOST_AT_ONCE)
        took_ns = posting.run(recorder, block, COMMANDS)
        recorder.close()
        return took_ns / COMMANDS

    together, alone = in_turn(repeats, lambda: ns(MOST_AT_ONCE), lambda: ns(1))
    yield Figure("posting", f"a command, noted in blocks of {lt.MOST_POSTED}", "ns", together)
    yield Figure("posting", "a command, noted alone", "ns", alone)
    yield Figure("posting", "in blocks over alone", "x", ratios(together, alone))
