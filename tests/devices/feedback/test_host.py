"""Next inputs on the host."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.command import Dtype
from launchopt.devices.arenas import STORAGE, from_float32, to_float32
from launchopt.devices.feedback.host import HostFeedback, scaled, signed
from launchopt.errors import ConfigError
from launchopt.sampling import MOST_VOCAB, NO_ID, Sampling, SamplingKind, sample

in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
SAMPLED = [kind for kind in SamplingKind if kind is not SamplingKind.none]
NONE = Sampling(SamplingKind.none)


def zeros(rows: int) -> np.ndarray:
    return np.zeros(rows, np.uint32)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(Dtype), st.integers(1, 3000), st.floats(-3, 3), st.integers(0, 2**32))
def test_hidden_vectors_go_back_like_inputs(dtype: Dtype, hidden: int, magnitude: float, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((3, hidden)) * 10**magnitude
    finals = from_float32(values.astype(np.float32), dtype)
    inputs, ids = HostFeedback(dtype, NONE, None).advance(finals, zeros(3), zeros(3))
    assert ids is None
    assert inputs.dtype == STORAGE[dtype]
    exact = to_float32(finals, dtype).astype(np.float64)
    exact /= np.sqrt(3 * (exact**2).mean(axis=1, keepdims=True))
    exact *= signed(np.ones(exact.shape, np.float32), zeros(3), zeros(3))
    np.testing.assert_allclose(to_float32(inputs, dtype), exact, rtol=1.01 * dtype.unit_roundoff, atol=1e-7)


def test_signs_are_a_requests_and_a_tokens_own() -> None:
    requests, tokens = (each.reshape(-1).astype(np.uint32) for each in np.meshgrid([0, 1, 2**32 - 1], [0, 1, 77]))
    values = np.arange(1, 1001, dtype=np.float32) * np.ones((9, 1), np.float32)
    found = signed(values, requests, tokens)
    assert np.array_equal(np.abs(found), values)
    assert np.array_equal(found, signed(values, requests, tokens))
    assert np.array_equal(found[:, :70], signed(values[:, :70], requests, tokens))
    alike = (np.sign(found)[:, None] == np.sign(found)[None]).mean(axis=2)
    assert (alike[~np.eye(9, dtype=bool)] < 0.6).all()
    assert (np.abs((found > 0).mean(axis=1) - 0.5) < 0.1).all()


def test_signs_in_plain_python() -> None:
    """The signs are the bits that splitmix64 gives, computed one number at a time."""

    def mixed(value: int) -> int:
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
        return value ^ (value >> 31)

    request, token, golden = 5, 9, 0x9E3779B97F4A7C15
    start = mixed(((request << 32 | token) + 1) * golden % 2**64)
    words = [mixed((start + (i + 1) * golden) % 2**64) for i in range(3)]
    expected = [-1.0 if words[i // 64] >> (i % 64) & 1 else 1.0 for i in range(150)]
    found = signed(np.ones((1, 150), np.float32), np.array([request], np.uint32), np.array([token], np.uint32))
    assert found[0].tolist() == expected


def test_vectors_that_cannot_be_scaled() -> None:
    values = np.array([[0, 0, -0.0], [1e-44, 0, 0], [3e38, 3e38, -3e38], [np.inf, 1, 1], [np.nan, 1, 1]], np.float32)
    found = scaled(values)
    assert (found[0] == 0).all()
    np.testing.assert_allclose(found[1:3], [[1, 0, 0], np.array([1, 1, -1]) / np.sqrt(3)], rtol=1e-6)
    assert np.isnan(found[3, 0])
    assert np.isnan(found[4]).all()


@in_each_dtype
@pytest.mark.parametrize("kind", SAMPLED, ids=lambda kind: kind.name)
def test_ids_go_back_as_embedding_rows(dtype: Dtype, kind: SamplingKind) -> None:
    generator, sampling = np.random.default_rng(3), Sampling(kind, seed=7)
    embedding = from_float32(generator.standard_normal((200, 8)).astype(np.float32), dtype)
    finals = from_float32(generator.standard_normal((6, 200)).astype(np.float32), dtype)
    finals[2, 50] = from_float32(np.array([np.nan], np.float32), dtype)[0]
    requests, tokens = np.arange(6, dtype=np.uint32), np.arange(6, dtype=np.uint32)
    inputs, ids = HostFeedback(dtype, sampling, embedding).advance(finals, requests, tokens)
    assert ids is not None
    assert ids.tolist() == sample(to_float32(finals, dtype), sampling, requests, tokens).tolist()
    assert ids[2] == NO_ID
    assert (inputs == embedding[[0 if at == 2 else at_id for at, at_id in enumerate(ids)]]).all()


def test_what_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match="embedding"):
        HostFeedback(Dtype.fp32, Sampling(SamplingKind.greedy), None)
    with pytest.raises(ConfigError, match="vocab"):
        HostFeedback(Dtype.fp32, Sampling(SamplingKind.greedy), np.empty((MOST_VOCAB + 1, 0), np.float32))
