"""The end of a step of kernels/megakernel.cu on the host (cuda_on_host): greedy tokens of arbitrary logits.

The list has no instructions. So only the end of the step takes time, and the test chooses the logits.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda_on_host import built_of, can_build, launch
from support.megakernel.kernel_runs import CALL

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.feedback.in_launch import FeedbackLayout, head_of, words_of
from launchopt.devices.feedback.stages import WORDS
from launchopt.devices.megakernel.memory import SLOT_BYTES, fixed_bytes
from launchopt.kernels import source
from launchopt.kernels.shared import FEEDBACK
from launchopt.kernels.shared_megakernel import LAUNCH, WEIGHTS
from launchopt.sampling import Sampling, SamplingKind, sample

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

GREEDY = Sampling(SamplingKind.greedy)
THREADS, SLOTS, HIDDEN, MOST_ROWS = 288, 6, 24, 7
MACROS = {"SLOTS": SLOTS, "COLUMNS": 1, "OPS": 0, "FUSED": 0}


class StepEnd:
    """A program without instructions, and its launches on `blocks` blocks."""

    def __init__(self, blocks: int, vocab: int, dtype: Dtype = Dtype.bf16) -> None:
        self.blocks, self.dtype = blocks, dtype
        embedding = np.random.default_rng(1).standard_normal((vocab, HIDDEN)).astype(np.float32)
        self.embedding = from_float32(embedding, dtype)
        self.counters, self.weights = np.zeros(1, np.uint32), np.zeros(2, WEIGHTS)
        self.ns = np.zeros(1, np.uint64)
        row_bytes = self.embedding.strides[0]
        layout = FeedbackLayout(HIDDEN, vocab, MOST_ROWS, self.embedding.ctypes.data, row_bytes)
        words = words_of(GREEDY, layout, self.ns.ctypes.data)
        self.words = np.zeros(1, LAUNCH)
        self.words["program"]["counters"] = self.counters.ctypes.data
        self.words["program"]["weights"] = self.weights.ctypes.data
        self.words["feedback"] = words.view(FEEDBACK)
        self.kernel = built_of(head_of(GREEDY.kind) + source("megakernel"), CALL, DTYPE=int(dtype), **MACROS)

    def check(self, values: NDArray[np.float32], offset: int = 0) -> list[int]:
        """Launch with one row for each of `values`, `offset` elements past a vector. Check and return the ids."""
        rows, vocab = values.shape
        width = -(-vocab // 16) * 16 + 16
        logits = np.zeros((rows, width), from_float32(values, self.dtype).dtype)
        first = -logits.ctypes.data % 16 // logits.itemsize + offset
        logits[:, first : first + vocab] = from_float32(values, self.dtype)
        targets, ids = np.zeros((rows, HIDDEN), logits.dtype), np.full(MOST_ROWS, -7, np.int32)
        table = np.zeros((WORDS, MOST_ROWS), np.uint64)
        for row in range(rows):
            places = logits[row, first:].ctypes.data, targets[row].ctypes.data, 0, ids[row:].ctypes.data
            table[:, row] = *places, row << 32 | row + 1
        self.words["feedback"]["arguments"], self.words["feedback"]["rows"] = table.ctypes.data, rows
        self.words["number"] += 1
        before, seed = int(self.ns[0]), int(self.words["number"][0])
        shared_bytes = fixed_bytes(1, self.dtype.itemsize) + SLOTS * SLOT_BYTES
        launch(self.kernel, (self.blocks,), THREADS, shared_bytes, self.words.ctypes.data, seed, at_once=self.blocks)
        numbers = np.arange(rows, dtype=np.uint32)
        expected = sample(to_float32(from_float32(values, self.dtype), self.dtype), GREEDY, numbers, numbers)
        assert ids.tolist() == [*expected.tolist(), *[-7] * (MOST_ROWS - rows)]
        assert (targets == self.embedding[np.maximum(expected, 0)]).all()
        assert (int(self.ns[0]) > before) == (rows > 0)
        return expected.tolist()


def logits_of(rows: int, vocab: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, vocab)).astype(np.float32)


@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_rows_of_all_launches(blocks: int) -> None:
    """Launches of one program with fewer rows than blocks, with more, and with none.

    Rows have one logit, or a number of logits that is no whole number of vectors, too.
    """
    for vocab in (1, 7, 1000, 12_296):
        end = StepEnd(blocks, vocab)
        for seed, rows in enumerate((1, 1, 2, 0, 3, MOST_ROWS, 1, 4)):
            end.check(logits_of(rows, vocab, seed), offset=seed % 2)


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
def test_logits_with_ties_and_nans(dtype: Dtype) -> None:
    """Ties and NaNs occur in a block's first pass and in a later one."""
    vocab, end = 36_000, StepEnd(8, 36_000, dtype)
    for offset in (0, 1):
        for places in ([0], [vocab - 1], [20_000, 9000, 9001], [vocab - 1, 5], [17_000, 500, 30_000]):
            values = np.round(logits_of(1, vocab, 2)).clip(-3, 3)
            values[0, places] = 4
            assert end.check(values, offset) == [min(places)]
            values[0, places] = np.inf
            assert end.check(values, offset) == [min(places)]
            values[0, places] = np.nan
            assert end.check(values, offset) == [-1]
        values = np.full((1, vocab), -2.5, np.float32)
        assert end.check(values, offset) == [0]
        values[0, 7000:], values[0, 7001::3] = 0.0, -0.0
        assert end.check(values, offset) == [7000]
        values[0, 7000] = -0.0
        assert end.check(values, offset) == [7000]
        values[0] = -np.inf
        assert end.check(values, offset) == [0]
        values[0, :-1] = np.nan
        assert end.check(values, offset) == [-1]
