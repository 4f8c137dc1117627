"""kernels/feedback.cu on the host (cuda_on_host): ids and next inputs equal the host's own, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda_on_host import built_of, can_build, launch

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.feedback.host import PARTIAL_SUMS, HostFeedback
from launchopt.devices.feedback.in_launch import ARGUMENTS, FeedbackLayout, source_of, words_of
from launchopt.sampling import NO_ID, Sampling, SamplingKind, sample

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

CALL = "feedback(*(const Feedback*)arguments)"
NONE, GREEDY = Sampling(SamplingKind.none), Sampling(SamplingKind.greedy)
TOP_K = Sampling(SamplingKind.top_k, 0.7, 50, seed=3)
TOP_P = Sampling(SamplingKind.top_p, 1.3, top_p=0.9, seed=4)
SAMPLED = [GREEDY, TOP_K, TOP_P, Sampling(SamplingKind.top_k, 2.0, 4500), Sampling(SamplingKind.top_p, 5.0, top_p=0.99)]
HIDDEN = 24


def fed(
    dtype: Dtype,
    sampling: Sampling,
    finals: NDArray[np.generic],
    embedding: NDArray[np.generic],
    ids: NDArray[np.int32],
    threads: int,
) -> NDArray[np.generic]:
    """Return the next inputs. Request r is at token r + 1."""
    rows, hidden = len(finals), embedding.shape[1]
    targets = np.zeros((rows, hidden), finals.dtype)
    table = np.zeros((5, rows), np.uint64)
    for row in range(rows):
        places = finals[row].ctypes.data, targets[row].ctypes.data, 0, ids[row:].ctypes.data
        table[:, row] = *places, row << 32 | row + 1
    layout = FeedbackLayout(hidden, finals.shape[1], rows, embedding.ctypes.data, embedding.strides[0])
    words = words_of(sampling, layout)
    words[ARGUMENTS] = table.ctypes.data
    kernel = built_of(source_of(dtype, sampling.kind, threads), CALL)
    launch(kernel, (rows,), threads, 0, words.ctypes.data, seed=rows)
    return targets


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("threads", [256, PARTIAL_SUMS])
@pytest.mark.parametrize("sampling", SAMPLED, ids=str)
def test_ids_and_next_inputs(dtype: Dtype, sampling: Sampling, threads: int) -> None:
    """Rows are aligned and unaligned, shorter and longer than the number of threads."""
    for vocab in (1, 7, 1000, 8200):
        generator = np.random.default_rng(vocab)
        values = generator.standard_normal((3, vocab)).astype(np.float32) * np.array([[0.01], [1], [20]], np.float32)
        values[1, ::5] = values[1].max()
        check(dtype, sampling, values, threads)


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
def test_ties_infinities_and_not_a_number(dtype: Dtype) -> None:
    values = np.round(np.random.default_rng(5).standard_normal((4, 2056))).astype(np.float32)
    values[0, ::3] = -0.0
    values[1, [5, 700]] = np.inf
    values[2, 2055] = np.nan
    values[3, 1:] = -np.inf
    check(dtype, GREEDY, values, PARTIAL_SUMS)
    numbers = np.arange(4, dtype=np.uint32)
    assert sample(values, GREEDY, numbers, numbers)[2] == NO_ID


def check(dtype: Dtype, sampling: Sampling, values: NDArray[np.float32], threads: int) -> None:
    finals = from_float32(values, dtype)
    rows, vocab = finals.shape
    embedding = from_float32(np.random.default_rng(1).standard_normal((vocab, HIDDEN)).astype(np.float32), dtype)
    ids = np.full(rows, -7, np.int32)
    targets = fed(dtype, sampling, finals, embedding, ids, threads)
    numbers = np.arange(rows, dtype=np.uint32)
    expected = sample(to_float32(finals, dtype), sampling, numbers, numbers + 1)
    assert ids.tolist() == expected.tolist()
    assert (targets == embedding[np.maximum(expected, 0)]).all()


@pytest.mark.parametrize("threads", [256, PARTIAL_SUMS])
@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
def test_hidden_vectors(dtype: Dtype, threads: int) -> None:
    values = np.random.default_rng(3).standard_normal((3, 1030)) * np.array([[1], [0], [300]])
    finals = from_float32(values.astype(np.float32), dtype)
    ids = np.full(3, -7, np.int32)
    targets = fed(dtype, NONE, finals, finals, ids, threads)
    numbers = np.arange(3, dtype=np.uint32)
    expected, _ = HostFeedback(dtype, NONE, None).advance(finals, numbers, numbers + 1)
    assert (targets == expected).all()
    assert not ids.any()
