"""Admit a launch that waits on the GPU for its batch, from the compiled loop that forms batches.

The megakernel is launched for the batch that is expected next, and waits for a word in host memory. The loop compares
the flushed batch with the expected one. If they are equal it stages the batch for feedback and writes the word: no
Python runs between the last record of a step and the GPU. Otherwise it does nothing, and Python handles the launch.
Records that come early are compared while the loop waits for the last record of the step.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.batching.step_buckets import StepArrays, StepBuckets, StepColumn, StepWord
from launchopt.command import RecordWord
from launchopt.devices.feedback.landing import FlightFields
from launchopt.devices.feedback.stages import FeedbackStages, stage_ends
from launchopt.devices.steps.keys import StepKey, is_key
from launchopt.kernels.shared_megakernel import TAG_BITS
from launchopt.native import compiled, monotonic_ns, store_fence, store_release
from launchopt.types import Int, Table, Words

TAG_SHIFT = np.uint64(64 - TAG_BITS)  # position of the tag in a host word (kernels/megakernel/gate.cuh)


class ExpectedWord(enum.IntEnum):
    """Words of `AdmissionArrays.expected`: the expected batch, for which a launch waits."""

    WAITS = 0  # 1: a launch waits
    ROWS = 1  # rows of the batch
    SIZE = 2  # requests of the batch
    MN = 3  # RecordWord.MN of the batch's first command
    PROBE = 4  # StepKey.probe
    PLACE = 5  # index in `gate_words` of the word that the waiting kernel polls
    TAG = 6  # tag that this word must have
    UNTIL_NS = 7  # CLOCK_MONOTONIC ns; the launch may give up after this time
    ADMITTED = 8  # 1: the last launch was admitted
    KNOWN = 9  # leading rows in the store whose slots of A and B equal the expected ones


StagingArrays = tuple[Words, Table, Table, Words, Table]  # FeedbackStages.arrays


class AdmissionArrays(NamedTuple):
    """The arrays that a loop needs to admit a launch."""

    expected: Table  # [ExpectedWord]
    key: Words  # [words of the longest key]: key of the expected batch, as `write_key` writes it
    gate_words: Words  # words in host memory; the kernel that waits polls one
    addresses: Table  # [stages]: address of each stage of feedback arguments
    staging: StagingArrays


AdmissionFields = tuple[
    Table, Words, Words, Table, StagingArrays
]  # the fields of AdmissionArrays, as Python passes them


@compiled
def store_gate_word(gate_words: Words, place: Int, word: np.uint64) -> None:
    """Store `word` to gate_words[place]. The GPU sees all earlier stores before this one."""
    store_fence()
    store_release(gate_words, place, word)
    store_fence()


@compiled
def look(arrays: StepArrays, admission: AdmissionFields) -> None:
    """Compare the records that have come of request 0's step with the expected batch.

    Do so only if the expected batch has a step of every request. arrays: StepBuckets or its fields. admission:
    AdmissionArrays or its fields.
    """
    batcher, given = StepBuckets(*arrays), AdmissionArrays(*admission)
    expected, key, stride = given.expected, given.key, batcher.counts[StepWord.ROW_STRIDE]
    if expected[ExpectedWord.WAITS] == 0 or expected[ExpectedWord.SIZE] != len(batcher.steps):
        return
    known = expected[ExpectedWord.KNOWN]
    stop = min(batcher.steps[0, StepColumn.FILLED], expected[ExpectedWord.ROWS])
    while known < stop and batcher.store[known * stride, RecordWord.SLOTS_AB] == key[known]:
        known += 1
    expected[ExpectedWord.KNOWN] = known


@compiled
def _is_expected(words: Words, size: Int, rows: Int, expected: Table, key: Words) -> bool:
    """Return whether a batch is the expected one, and the launch still waits for it."""
    if np.int64(words[0, RecordWord.MN]) != expected[ExpectedWord.MN]:
        return False
    if not is_key(words, size, rows, expected[ExpectedWord.PROBE], key, expected[ExpectedWord.KNOWN]):
        return False
    return bool(monotonic_ns() <= expected[ExpectedWord.UNTIL_NS])


@compiled
def admit(rows: Int, size: Int, arrays: StepArrays, flights: FlightFields, admission: AdmissionFields) -> bool:
    """Admit the launch that waits for the batch flushed last. If no launch waits for it, do nothing and return False.

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
    store_gate_word(given.gate_words, expected[ExpectedWord.PLACE], word)
    expected[ExpectedWord.WAITS], expected[ExpectedWord.ADMITTED] = 0, 1
    return True


class Admission:
    """Admits one launch at a time. gate_words: uint64 words in host memory. most: words of a batch's longest key."""

    def __init__(self, gate_words: Words, stages: FeedbackStages, most: int) -> None:
        self._expected, self._key = np.zeros(len(ExpectedWord), np.int64), np.zeros(most, np.uint64)
        self.arrays: AdmissionFields = self._expected, self._key, gate_words, stages.addresses, stages.arrays

    def expect(self, batch: StepKey, place: int, tag: int, until_ns: int) -> None:
        """Record that a launch of this batch polls word `place` for `tag`, at least until `until_ns`."""
        self._key[: len(batch.words)] = batch.words
        self._expected[:] = (1, batch.rows, batch.size, batch.mn, batch.probe, place, tag, until_ns, 0, 0)

    def forget(self) -> None:
        """Record that no launch waits."""
        self._expected[ExpectedWord.WAITS] = 0

    def was_admitted(self) -> bool:
        """Return whether the last launch was admitted, and clear the answer."""
        admitted = bool(self._expected[ExpectedWord.ADMITTED])
        self._expected[ExpectedWord.ADMITTED] = 0
        return admitted
