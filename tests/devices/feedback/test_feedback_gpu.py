"""The GPU feeds back the same bits as the host. CuPy is imported only by tests that need a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.feedback.host import HostFeedback
from launchopt.devices.feedback.in_launch import FeedbackLayout
from launchopt.devices.feedback.landing import StagedRow
from launchopt.sampling import NO_ID, Sampling, SamplingKind, sample

pytestmark = pytest.mark.gpu

in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
NONE = Sampling(SamplingKind.none)
GREEDY = Sampling(SamplingKind.greedy)
TOP_K = Sampling(SamplingKind.top_k, 0.7, 50, seed=3)
TOP_P = Sampling(SamplingKind.top_p, 1.3, top_p=0.9, seed=4)
SAMPLED = [GREEDY, TOP_K, TOP_P]
# Rows that do not fit into shared memory, and the limits of the options.
UNUSUAL = [
    Sampling(SamplingKind.top_k, 2.0, 6000),
    Sampling(SamplingKind.top_k, 1.0, 1),
    Sampling(SamplingKind.top_p, 5.0, top_p=0.99),
    Sampling(SamplingKind.top_p, 1.0, top_p=1e-6),
    Sampling(SamplingKind.top_p, 1.0, top_p=1.0),
]


def addresses(array: Any) -> NDArray[np.uint64]:
    """Return the device address of each row."""
    return np.uint64(array.data.ptr) + np.arange(len(array), dtype=np.uint64) * np.uint64(array.strides[0])


def submit(feedback: Any, sources: Any, targets: Any, histories: Any, requests: Any, tokens: Any, ids: Any) -> None:
    """Stage and launch rows by their addresses."""
    staged, rows = feedback.stage(), len(sources)
    for words, values in zip(staged, (sources, targets, histories, ids), strict=False):
        words[:rows] = values
    staged[StagedRow.DRAW, :rows] = (requests.astype(np.uint64) << np.uint64(32)) | tokens
    feedback.launch(rows)


class Rig:
    """A `GpuFeedback`, and the arrays that its addresses point to."""

    def __init__(self, dtype: Dtype, sampling: Sampling, finals: Any, embedding: Any, hidden: int) -> None:
        import cupy

        from launchopt.devices.feedback.kernel import GpuFeedback

        rows = len(finals)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.finals, self.embedding = cupy.asarray(finals), cupy.asarray(embedding)
        self.targets, self.history = cupy.zeros((2, rows, hidden), finals.dtype)
        pinned = cupy.cuda.alloc_pinned_memory(rows * 4)
        self.ids = np.frombuffer(pinned, np.int32, rows)
        self.ids[:] = -7
        embedding_address, row_bytes = self.embedding.data.ptr, self.embedding.strides[0]
        layout = FeedbackLayout(hidden, len(embedding), rows + 3, embedding_address, row_bytes)
        self.feedback = GpuFeedback(self.stream, dtype, sampling, layout)
        cupy.cuda.Device().synchronize()

    def submit(self, requests: NDArray[np.uint32], tokens: NDArray[np.uint32], histories: Any = None) -> None:
        where = np.uint64(self.ids.ctypes.data) + np.arange(len(self.ids), dtype=np.uint64) * np.uint64(4)
        histories = addresses(self.history) if histories is None else histories
        submit(self.feedback, addresses(self.finals), addresses(self.targets), histories, requests, tokens, where)

    def inputs(self) -> NDArray[Any]:
        self.stream.synchronize()
        found: NDArray[Any] = self.targets.get()
        return found


def numbers(rows: int) -> NDArray[np.uint32]:
    return np.random.default_rng(rows).integers(0, 2**32, (2, rows), dtype=np.uint32)


def check(dtype: Dtype, sampling: Sampling, values: NDArray[np.float32], hidden: int = 24, padding: int = 0) -> None:
    """`values`: logits [rows, vocab]; `padding`: elements between two rows of the embedding."""
    generator = np.random.default_rng(1)
    finals = from_float32(values, dtype)
    rows, vocab = finals.shape
    embedding = from_float32(generator.standard_normal((vocab, hidden + padding)).astype(np.float32), dtype)
    requests, tokens = numbers(rows)
    rig = Rig(dtype, sampling, finals, embedding, hidden)
    rig.submit(requests, tokens)
    inputs = rig.inputs()
    expected = sample(to_float32(finals, dtype), sampling, requests, tokens)
    assert rig.ids.tolist() == expected.tolist()
    assert (inputs == embedding[np.maximum(expected, 0), :hidden]).all()
    assert not rig.history.any()


@in_each_dtype
@pytest.mark.parametrize("sampling", SAMPLED, ids=lambda sampling: sampling.kind.name)
@pytest.mark.parametrize("vocab", [1, 7, 1000, 128256])
@pytest.mark.parametrize("magnitude", [0.01, 1, 20])
def test_ids_and_next_inputs(dtype: Dtype, sampling: Sampling, vocab: int, magnitude: float) -> None:
    values = np.random.default_rng(vocab).standard_normal((5, vocab)) * magnitude
    check(dtype, sampling, values.astype(np.float32))


@in_each_dtype
@pytest.mark.parametrize("sampling", UNUSUAL, ids=str)
@pytest.mark.parametrize("vocab", [7, 1025, 50_000])
def test_unusual_settings(dtype: Dtype, sampling: Sampling, vocab: int) -> None:
    check(dtype, sampling, np.random.default_rng(vocab).standard_normal((3, vocab)).astype(np.float32))


@in_each_dtype
@pytest.mark.parametrize("sampling", SAMPLED, ids=lambda sampling: sampling.kind.name)
def test_ties_infinities_and_not_a_number(dtype: Dtype, sampling: Sampling) -> None:
    values = np.round(np.random.default_rng(5).standard_normal((8, 9000))).astype(np.float32)
    values[1] = 0
    values[1, ::3] = -0.0
    values[2, [5, 700]] = np.inf
    values[3] = -np.inf
    values[4, 1:] = -np.inf
    values[5, 8999] = np.nan
    values[6] = np.nan
    values[7] = -2.5
    check(dtype, sampling, values)
    requests, tokens = numbers(8)
    assert sample(values, sampling, requests, tokens)[5:7].tolist() == [NO_ID, NO_ID]


@in_each_dtype
@pytest.mark.parametrize(("hidden", "padding"), [(5, 0), (5, 2), (64, 0), (64, 3), (4096, 8)])
def test_rows_of_any_size_and_alignment(dtype: Dtype, hidden: int, padding: int) -> None:
    check(dtype, GREEDY, np.random.default_rng(6).standard_normal((9, 300)).astype(np.float32), hidden, padding)


@in_each_dtype
@pytest.mark.parametrize("hidden", [1, 7, 1024, 1030, 4096])
def test_hidden_vectors(dtype: Dtype, hidden: int) -> None:
    values = np.random.default_rng(hidden).standard_normal((5, hidden)) * np.array([[1], [0], [1e-3], [300], [1]])
    finals = from_float32(values.astype(np.float32), dtype)
    rig = Rig(dtype, NONE, finals, finals[:0], hidden)
    requests, tokens = numbers(5)
    histories = addresses(rig.history)
    histories[4] = 0
    rig.submit(requests, tokens, histories)
    expected, ids = HostFeedback(dtype, NONE, None).advance(finals, requests, tokens)
    assert ids is None
    assert (rig.inputs() == expected).all()
    assert (rig.history[:4].get() == finals[:4]).all()
    assert not rig.history[4].any()
    assert (rig.ids == 0).all()


def test_a_hidden_vector_may_be_its_own_target() -> None:
    finals = np.random.default_rng(8).standard_normal((2, 500)).astype(np.float32)
    rig = Rig(Dtype.fp32, NONE, finals, finals[:0], 500)
    rig.targets = rig.finals
    rig.submit(*numbers(2), np.zeros(2, np.uint64))
    expected, _ = HostFeedback(Dtype.fp32, NONE, None).advance(finals, *numbers(2))
    assert (rig.inputs() == expected).all()


def test_more_submissions_than_stages() -> None:
    from launchopt.devices.feedback.kernel import STAGES

    finals = np.random.default_rng(9).standard_normal((1, 1000)).astype(np.float32)
    embedding = np.arange(1000, dtype=np.float32)[:, None]
    rig = Rig(Dtype.fp32, TOP_P, finals, embedding, 1)
    import cupy

    count = 3 * STAGES
    outputs, request = cupy.zeros((count, 1), np.float32), np.zeros(1, np.uint32)
    cupy.cuda.Device().synchronize()
    for token, target in enumerate(addresses(outputs)):
        where = np.array([rig.ids.ctypes.data], np.uint64)
        now = np.array([token], np.uint32)
        submit(rig.feedback, addresses(rig.finals), target.reshape(1), np.zeros(1, np.uint64), request, now, where)
    rig.stream.synchronize()
    tokens = np.arange(count, dtype=np.uint32)
    expected = sample(np.tile(finals, (count, 1)), TOP_P, np.zeros(count, np.uint32), tokens)
    assert (outputs.get()[:, 0] == expected).all()
    assert rig.ids[0] == expected[-1]


def test_no_rows() -> None:
    finals = np.ones((1, 4), np.float32)
    rig = Rig(Dtype.fp32, NONE, finals, finals, 4)
    nothing, none = np.zeros(0, np.uint64), np.zeros(0, np.uint32)
    submit(rig.feedback, nothing, nothing, nothing, none, none, nothing)
    assert not rig.inputs().any()
