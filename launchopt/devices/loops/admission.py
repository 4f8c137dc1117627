"""Admit a launch that waits on the GPU for its batch, from the compiled loop that forms batches.

A launch was made for the batch that is likely to come next, and waits for a word of host memory. The loop compares the
batch that left with the expected one. If they are equal it stages the batch's rows for feedback and writes the word: no
Python runs between the last record of a step and the GPU. Otherwise it does nothing, and Python handles the launch.
Records that come early are compared before the last record of the step has come.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.batching.step_buckets import StepArrays, StepBuckets, StepColumn, StepWord
from launchopt.command import W_MN, W_SLOT_A_B
from launchopt.devices.feedback.landing import FlightFields
from launchopt.devices.feedback.stages import FeedbackStages, stage_ends
from launchopt.devices.steps.keys import StepKey, is_key
from launchopt.kernels.shared import TAG_BITS
from launchopt.native import compiled, monotonic_ns, store_fence, store_release
from launchopt.types import Int, Table, Words

TAG_SHIFT = np.uint64(64 - TAG_BITS)  # of the host's word (kernels/megakernel/gate.cuh)


class ExpectedWord(enum.IntEnum):
    """Words of `AdmissionArrays.expected`: the batch for which a launch waits."""

    WAITS = 0  # whether a launch waits
    ROWS = 1
    SIZE = 2  # requests
    MN = 3  # first word of the shape of its first command
    PROBE = 4  # of its StepKey
    PLACE = 5  # which word the launch waits for
    TAG = 6  # of that word
    UNTIL_NS = 7  # CLOCK_MONOTONIC; the launch may give up after that
    ADMITTED = 8  # whether the last launch was admitted
    KNOWN = 9  # number of leading rows that have come and whose slots of the first request are the expected ones


StagingArrays = tuple[Words, Table, Table, Words, Table]  # FeedbackStages.arrays


class AdmissionArrays(NamedTuple):
    """What a loop needs to admit a launch."""

    expected: Table  # [ExpectedWord]
    key: Words  # [words of the longest key]: of the expected batch, as `write_key` writes it
    said: Words  # the host's words, which the GPU reads
    addresses: Table  # [stages]: of the arguments of a launch that feeds back its results
    staging: StagingArrays


AdmissionFields = tuple[
    Table, Words, Words, Table, StagingArrays
]  # the fields of AdmissionArrays, as Python passes them


@compiled
def say(said: Words, place: Int, word: np.uint64) -> None:
    """Let the GPU see word `place`, and before that everything that was stored before it."""
    store_fence()
    store_release(said, place, word)
    store_fence()


@compiled
def look(arrays: StepArrays, admission: AdmissionFields) -> None:
    """Compare what has come of the first request's step with the expected batch, if that is one of all requests.

    arrays: StepBuckets or its fields. admission: AdmissionArrays or its fields.
    """
    batcher, given = StepBuckets(*arrays), AdmissionArrays(*admission)
    expected, key, stride = given.expected, given.key, batcher.counts[StepWord.ROW_STRIDE]
    if expected[ExpectedWord.WAITS] == 0 or expected[ExpectedWord.SIZE] != len(batcher.steps):
        return
    known = expected[ExpectedWord.KNOWN]
    stop = min(batcher.steps[0, StepColumn.FILLED], expected[ExpectedWord.ROWS])
    while known < stop and batcher.store[known * stride, W_SLOT_A_B] == key[known]:
        known += 1
    expected[ExpectedWord.KNOWN] = known


@compiled
def _is_expected(words: Words, size: Int, rows: Int, expected: Table, key: Words) -> bool:
    """Return whether a batch is the one for which a launch waits."""
    if np.int64(words[0, W_MN]) != expected[ExpectedWord.MN]:
        return False
    if not is_key(words, size, rows, expected[ExpectedWord.PROBE], key, expected[ExpectedWord.KNOWN]):
        return False
    return bool(monotonic_ns() <= expected[ExpectedWord.UNTIL_NS])


@compiled
def admit(rows: Int, size: Int, arrays: StepArrays, flights: FlightFields, admission: AdmissionFields) -> bool:
    """Admit the launch that waits for the batch which left last; return False, and do nothing, if none does.

    arrays, admission: as in `look`. flights: FlightArrays or its fields.
    """
    batcher, given = StepBuckets(*arrays), AdmissionArrays(*admission)
    expected = given.expected
    if expected[ExpectedWord.WAITS] == 0:
        return False
    if expected[ExpectedWord.ROWS] != rows or expected[ExpectedWord.SIZE] != size:
        return False
    words = (batcher.store if size == len(batcher.steps) else batcher.out)[: rows * size]
    if not _is_expected(words, size, rows, expected, given.key):
        return False
    stage = stage_ends(words, size, flights, given.staging)
    if stage < 0:
        return False
    word = np.uint64(expected[ExpectedWord.TAG]) << TAG_SHIFT | np.uint64(given.addresses[stage])
    say(given.said, expected[ExpectedWord.PLACE], word)
    expected[ExpectedWord.WAITS], expected[ExpectedWord.ADMITTED] = 0, 1
    return True


class Admission:
    """Admits one launch at a time. said: the host's words, uint64. most: words of the longest key of a batch."""

    def __init__(self, said: Words, stages: FeedbackStages, most: int) -> None:
        self._expected, self._key = np.zeros(len(ExpectedWord), np.int64), np.zeros(most, np.uint64)
        self.arrays: AdmissionFields = self._expected, self._key, said, stages.addresses, stages.arrays

    def expect(self, batch: StepKey, place: int, tag: int, until_ns: int) -> None:
        """A launch of a batch like this waits for word `place` with `tag`, until `until_ns` at least."""
        self._key[: len(batch.words)] = batch.words
        self._expected[:] = (1, batch.rows, batch.size, batch.mn, batch.probe, place, tag, until_ns, 0, 0)

    def forget(self) -> None:
        """No launch waits."""
        self._expected[ExpectedWord.WAITS] = 0

    def was_admitted(self) -> bool:
        """Return whether the last launch was admitted; True once."""
        admitted = bool(self._expected[ExpectedWord.ADMITTED])
        self._expected[ExpectedWord.ADMITTED] = 0
        return admitted
