"""kernels/step_loop.cu on the host (cuda_on_host): the end of a step feeds back as the host does, and counts steps."""

from __future__ import annotations

import numpy as np
import pytest
from support.cuda_on_host import built_of, can_build, launch

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.feedback.host import HostFeedback
from launchopt.devices.feedback.in_launch import ARGUMENTS, FeedbackLayout, head_of, loop_source, words_of
from launchopt.devices.feedback.landing import StagedRow
from launchopt.kernels.shared import ROW_DRAW, ROW_HISTORY, ROW_ID, ROW_WORDS, STEP_LOOP
from launchopt.sampling import Sampling, SamplingKind

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

BEGIN = "begin_loop(*(const u64**)arguments, ((u64*)arguments)[1], *(StepLoop*)((u64*)arguments + 2))"
END = "end_step(*(const Feedback*)arguments, *(StepLoop*)((char*)arguments + sizeof(Feedback)))"
ROWS, MOST_ROWS, HIDDEN, VOCAB, STEPS, THREADS = 2, 3, 24, 40, 3, 256


def test_the_words_that_change_are_those_of_staged_rows() -> None:
    assert (ROW_HISTORY, ROW_ID, ROW_DRAW) == (StagedRow.HISTORY, StagedRow.ID, StagedRow.DRAW)


@pytest.mark.parametrize("is_while", [True, False], ids=["while", "device"])
@pytest.mark.parametrize(
    "kind", [SamplingKind.none, SamplingKind.greedy, SamplingKind.top_k], ids=lambda kind: kind.name
)
def test_each_step_is_fed_back_as_on_the_host(is_while: bool, kind: SamplingKind) -> None:
    dtype, sampling = Dtype.bf16, Sampling(kind, 0.8, 7, seed=3)
    samples = kind is not SamplingKind.none
    width = VOCAB if samples else HIDDEN
    generator = np.random.default_rng(1)
    embedding = from_float32(generator.standard_normal((VOCAB, 128)).astype(np.float32), dtype)
    finals = np.zeros((ROWS, width), embedding.dtype)
    targets = np.zeros((ROWS, HIDDEN), embedding.dtype)
    history = np.zeros((ROWS, STEPS, 128), embedding.dtype)
    done = np.full((ROWS, STEPS), 99, np.uint64)
    staged = np.zeros((ROW_WORDS, MOST_ROWS), np.uint64)
    for row in range(ROWS):
        kept = 0 if samples else history[row].ctypes.data
        staged[:, row] = finals[row].ctypes.data, targets[row].ctypes.data, kept, done[row].ctypes.data, row << 32 | 5
    memory, condition = np.zeros(staged.size + 1, np.uint64), np.ones(1, np.uint32)
    loop = np.zeros(1, STEP_LOOP)
    loop["arguments"], loop["words"] = memory.ctypes.data, staged.size
    loop["left"], loop["handle"] = memory[-1:].ctypes.data, condition.ctypes.data
    ns = np.zeros(1, np.uint64)
    feed = words_of(sampling, FeedbackLayout(HIDDEN, width, MOST_ROWS, embedding.ctypes.data, 256), ns.ctypes.data)
    feed[ARGUMENTS] = memory.ctypes.data
    text = loop_source(dtype, head_of(kind), is_while, THREADS)
    begin = np.array([staged.ctypes.data, STEPS, *loop.view(np.int64)], np.int64)
    launch(built_of(text, BEGIN), (1,), THREADS, 0, begin.ctypes.data)
    end = np.concatenate([feed, loop.view(np.int64)])
    numbers = np.arange(ROWS, dtype=np.uint32)
    host = HostFeedback(dtype, sampling, embedding[:, :HIDDEN] if samples else None)
    for step in range(STEPS):
        finals[:] = from_float32(generator.standard_normal(finals.shape).astype(np.float32), dtype)
        assert condition[0] == 1
        launch(built_of(text, END), (ROWS,), THREADS, 0, end.ctypes.data, seed=step)
        inputs, ids = host.advance(finals, numbers, np.full(ROWS, 5 + step, np.uint32))
        assert (targets == inputs).all()
        found = done[:, step].astype(np.uint32).view(np.int32)
        assert found.tolist() == (ids.tolist() if ids is not None else [0] * ROWS)
        assert samples or (history[:, step, :HIDDEN] == finals).all()
        assert memory[-1] == STEPS - 1 - step
    assert condition[0] == (0 if is_while else 1), "only a conditional node has a value"
    assert to_float32(targets, dtype).any()
