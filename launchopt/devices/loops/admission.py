"""A launch that waits is admitted by the compiled loop that forms batches, where a batch is what it was made for.

In: what that batch is known by (`step_keys`), and which word of the host the launch waits for (`launch_ahead`). Out:
the word, once the batch is there and its rows are staged (`feedback_stages`): no Python runs between the last record of
a step and the GPU. Where it is another batch nothing is done, and Python sees to it. What comes early of a step is
looked at before the last record has come.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.batching import step_buckets as sb
from launchopt.command import W_MN, W_SLOT_A_B
from launchopt.devices.feedback.stages import FeedbackStages, stage_ends
from launchopt.devices.steps.keys import StepKey, is_key
from launchopt.kernels.shared import TAG_BITS
from launchopt.native import compiled, monotonic_ns, store_fence, store_release
from launchopt.types import Int

TAG_SHIFT = np.uint64(64 - TAG_BITS)  # of the host's word (kernels/megakernel/gate.cuh)
# Words of `expected`. WAITS: whether a launch does; PLACE, TAG: of its word; UNTIL_NS: then it may have given up;
# KNOWN: rows that have come, and are the expected ones as far as the first request tells.
WAITS, ROWS, SIZE, MN, PROBE, PLACE, TAG, UNTIL_NS, ADMITTED, KNOWN = range(10)
EXPECTED_WORDS = 10


@compiled
def say(said: Any, place: Int, word: np.uint64) -> None:
    """Have the GPU see word `place`, and before that all that was stored before it."""
    store_fence()
    store_release(said, place, word)
    store_fence()


@compiled
def look(batcher: Any, admission: Any) -> None:
    """Compare what has come of the first request's step with what is expected, where all requests leave together."""
    expected, key = admission[0], admission[1]
    store, steps, counts = batcher[0], batcher[1], batcher[6]
    if expected[WAITS] == 0 or expected[SIZE] != len(steps):
        return
    known, stop = expected[KNOWN], min(steps[0, sb.FILLED], expected[ROWS])
    while known < stop and store[known * counts[sb.ROW_STEP], W_SLOT_A_B] == key[known]:
        known += 1
    expected[KNOWN] = known


@compiled
def admit(rows: Int, size: Int, batcher: Any, flights: Any, admission: Any) -> Int:
    """Whether the batch that left `batcher` last is what a launch waits for: then that goes on."""
    expected, key, said, addresses, staging = admission
    if expected[WAITS] == 0 or expected[ROWS] != rows or expected[SIZE] != size:
        return False
    words = (batcher[0] if size == len(batcher[1]) else batcher[4])[: rows * size]
    if np.int64(words[0, W_MN]) != expected[MN]:
        return False
    if not is_key(words, size, rows, expected[PROBE], key, expected[KNOWN]):
        return False
    if monotonic_ns() > expected[UNTIL_NS]:
        return False
    stage = stage_ends(words, size, flights, staging)
    if stage < 0:
        return False
    say(said, expected[PLACE], np.uint64(expected[TAG]) << TAG_SHIFT | np.uint64(addresses[stage]))
    expected[WAITS], expected[ADMITTED] = 0, 1
    return True


class Admission:
    """One launch at a time. said: the host's words, uint64; most: words of the longest key of a batch."""

    def __init__(self, said: NDArray[np.uint64], stages: FeedbackStages, most: int) -> None:
        self._expected, self._key = np.zeros(EXPECTED_WORDS, np.int64), np.zeros(most, np.uint64)
        self.arrays: tuple[Any, ...] = self._expected, self._key, said, stages.addresses, stages.arrays

    def expect(self, batch: StepKey, place: int, tag: int, until_ns: int) -> None:
        """A launch of a batch like this waits for word `place` with `tag`, until then at least."""
        self._key[: len(batch.words)] = batch.words
        self._expected[:] = (1, batch.rows, batch.size, batch.mn, batch.probe, place, tag, until_ns, 0, 0)

    def forget(self) -> None:
        """None waits."""
        self._expected[WAITS] = 0

    def was_admitted(self) -> bool:
        """Whether the last one was; asked once."""
        admitted = bool(self._expected[ADMITTED])
        self._expected[ADMITTED] = 0
        return admitted
