"""Ids against a reference in plain Python; `plausible` against ids sampled from logits that are off."""

from __future__ import annotations

import bisect
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from launchopt.errors import ConfigError
from launchopt.sampling import MOST_VOCAB, NO_ID, Sampling, SamplingKind, plausible, plausible_greedy, sample, uniforms

NONE, GREEDY, TOP_K, TOP_P = SamplingKind
MASK = (1 << 64) - 1
quickly = settings(max_examples=60, deadline=None)

logit_lists = st.lists(st.floats(-40, 40, width=32) | st.sampled_from([0.0, -0.0, 1.0, 2.0]), min_size=1, max_size=60)
words = st.integers(0, 2**32 - 1)
draws = st.builds(
    Sampling,
    st.sampled_from([TOP_K, TOP_P]),
    temperature=st.floats(0.1, 10),
    top_k=st.integers(1, 70),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, MASK),
)


def rows_of(logits: Any, count: int = 1) -> NDArray[np.float32]:
    return np.tile(np.asarray(logits, np.float32), (count, 1))


def u32(*values: int) -> NDArray[np.uint32]:
    return np.array(values, np.uint32)


def splitmix64(start: int, index: int) -> int:
    value = (start + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def weights_of(logits: list[float], temperature: float) -> list[float]:
    return [math.exp((logit - max(logits)) / temperature) for logit in logits]


def kept_of(logits: list[float], chosen: Sampling, p: float) -> set[int]:
    """The rule word by word; `p` apart, for its neighbourhood."""
    if chosen.kind is TOP_K:
        least = sorted(logits, reverse=True)[min(chosen.top_k, len(logits)) - 1]
        return {i for i, logit in enumerate(logits) if logit >= least}
    weights = weights_of(logits, chosen.temperature)
    for least in sorted(set(logits), reverse=True):
        kept = {i for i, logit in enumerate(logits) if logit >= least}
        if math.fsum(weights[i] for i in kept) >= p * math.fsum(weights):
            return kept
    return set(range(len(logits)))


def id_of(logits: list[float], kept: set[int], temperature: float, u: float) -> int:
    tokens = sorted(kept)
    weights = weights_of(logits, temperature)
    sums = list(itertools.accumulate(weights[i] for i in tokens))
    return tokens[min(bisect.bisect_right(sums, u * sums[-1]), len(tokens) - 1)]


def test_the_reference_is_splitmix64() -> None:
    assert [splitmix64(1234567, index) for index in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@quickly
@given(st.integers(0, MASK), words, words)
def test_numbers_follow_the_recipe(seed: int, request: int, token: int) -> None:
    expected = splitmix64(splitmix64(seed, 0), request << 32 | token) >> 40
    found = uniforms(seed, u32(request), u32(token))
    assert found.dtype == np.float64
    assert found.tolist() == [expected / 2**24] == found.astype(np.float32).tolist()


def test_numbers_are_uniform_and_differ_by_seed_request_and_token() -> None:
    requests, tokens = (grid.reshape(-1).astype(np.uint32) for grid in np.meshgrid(np.arange(200), np.arange(100)))
    drawn = uniforms(0, requests, tokens)
    counts, _ = np.histogram(drawn, 20, (0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 60  # chi square, 19 degrees of freedom
    assert (drawn >= 0).all()
    assert (drawn < 1).all()
    assert (drawn == uniforms(0, requests, tokens)).all()
    assert (drawn != uniforms(1, requests, tokens)).mean() > 0.99
    assert len(np.unique(drawn)) > 0.99 * len(drawn)


@quickly
@given(logit_lists)
def test_greedy_takes_the_lowest_index_of_the_largest(logits: list[float]) -> None:
    ids = sample(rows_of(logits), Sampling(GREEDY), u32(0), u32(0))
    assert ids.dtype == np.int32
    assert ids.tolist() == [logits.index(max(logits))]


@quickly
@given(logit_lists, draws, words)
def test_ids_are_those_of_the_reference(logits: list[float], chosen: Sampling, request: int) -> None:
    tokens = np.arange(20, dtype=np.uint32)
    requests = np.full(20, request, np.uint32)
    ids = sample(rows_of(logits, 20), chosen, requests, tokens)
    for found, u in zip(ids.tolist(), uniforms(chosen.seed, requests, tokens).tolist(), strict=True):
        # where rounding decides, any neighbour is right
        allowed = {
            id_of(logits, kept_of(logits, chosen, p), chosen.temperature, near)
            for p in (chosen.top_p * (1 - 1e-9), chosen.top_p * (1 + 1e-9))
            for near in (max(0, u - 1e-9), u + 1e-9)
        }
        assert found in allowed


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        (Sampling(TOP_K, top_k=1), {4}),
        (Sampling(TOP_K, top_k=2), {1, 2, 4}),  # two tie for the second place
        (Sampling(TOP_K, top_k=4), {1, 2, 4, 5, 6}),  # 0.0 and -0.0 tie
        (Sampling(TOP_K, top_k=100, temperature=100), set(range(7))),
        (Sampling(TOP_P, top_p=1e-9), {4}),
        (Sampling(TOP_P, top_p=0.40), {4}),  # shares: 0.42, 2 * 0.19, 2 * 0.085, 0.03
        (Sampling(TOP_P, top_p=0.43), {1, 2, 4}),
        (Sampling(TOP_P, top_p=0.85), {1, 2, 4, 5, 6}),
        (Sampling(TOP_P, top_p=1), {0, 1, 2, 4, 5, 6}),  # 3 weighs nothing
        (Sampling(TOP_P, top_p=0.85, temperature=0.1), {4}),
    ],
)
def test_what_is_kept(chosen: Sampling, kept: set[int]) -> None:
    logits, count = [-1, 0.8, 0.8, -90, 1.6, 0.0, -0.0], 4000
    ids = sample(rows_of(logits, count), chosen, np.arange(count, dtype=np.uint32), np.zeros(count, np.uint32))
    assert set(ids.tolist()) == kept


@pytest.mark.parametrize("chosen", [Sampling(TOP_K, 1.5, 20, seed=1), Sampling(TOP_P, 1.5, top_p=0.8, seed=2)])
def test_distribution(chosen: Sampling) -> None:
    logits = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    count = 10_000
    numbers = np.arange(count, dtype=np.uint32)
    found = np.bincount(sample(rows_of(logits, count), chosen, numbers, numbers), minlength=50)
    kept = sorted(kept_of(logits.tolist(), chosen, chosen.top_p))
    weights = np.array(weights_of(logits.tolist(), chosen.temperature))[kept]
    expected = count * weights / weights.sum()
    assert found.sum() == found[kept].sum()
    assert ((found[kept] - expected) ** 2 / expected).sum() < 2.5 * len(kept)


def test_a_large_vocabulary() -> None:
    logits = np.random.default_rng(1).standard_normal((4, 128256)).astype(np.float32)
    requests, tokens = np.arange(4, dtype=np.uint32), np.arange(4, dtype=np.uint32)
    for chosen in (Sampling(TOP_K), Sampling(TOP_P), Sampling(TOP_P, top_p=1)):
        ids = sample(logits, chosen, requests, tokens)
        assert (ids == sample(logits, chosen, requests, tokens)).all()
        assert plausible(logits.astype(np.float64), ids, chosen, requests, tokens, 0.0).all()
        moved = (ids + 20_000) % 128256
        assert not plausible(logits.astype(np.float64), moved, chosen, requests, tokens, 1e-4).any()


@pytest.mark.parametrize("kind", [GREEDY, TOP_K, TOP_P])
def test_not_a_number_and_infinities(kind: SamplingKind) -> None:
    inf, nan = math.inf, math.nan
    logits = np.array([[1, nan, 2], [nan, nan, nan], [-inf, 1, -inf], [5, inf, -inf], [-inf] * 3], np.float32)
    five = np.arange(5, dtype=np.uint32)
    ids = sample(logits, Sampling(kind), five, five)
    assert ids[:4].tolist() == [NO_ID, NO_ID, 1, 1]
    assert 0 <= ids[4] < 3
    wide = logits.astype(np.float64)
    assert plausible(wide, ids, Sampling(kind), five, five, 0.1).all()
    assert plausible(wide, np.full(5, NO_ID, np.int32), Sampling(kind), five, five, 0.1).tolist() == [1, 1, 0, 0, 0]


@given(logit_lists, st.builds(Sampling, st.just(GREEDY)) | draws, st.sampled_from([0, 1e-6, 0.01, 0.5, 30]), words)
@quickly
def test_plausible_accepts_whatever_the_error(
    logits: list[float], chosen: Sampling, tolerance: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    requests, tokens = generator.integers(0, 2**32, (2, 30), dtype=np.uint32)
    seen = rows_of(logits, 30)
    ids = sample(seen, chosen, requests, tokens)
    errors = tolerance * generator.choice([-1, 1, 0.3], seen.shape)  # the worst are at the bounds
    assert plausible(seen.astype(np.float64) + errors, ids, chosen, requests, tokens, tolerance).all()


@pytest.mark.parametrize("chosen", [Sampling(TOP_K, 2.0, 60, seed=5), Sampling(TOP_P, 2.0, top_p=0.7, seed=6)])
def test_plausible_rejects_what_is_not_kept_and_what_is_far_off(chosen: Sampling) -> None:
    logits = np.random.default_rng(2).standard_normal(100)
    count, tolerance = 40, 1e-3
    numbers = np.arange(count, dtype=np.uint32)
    accepted = np.stack(
        [
            plausible(np.tile(logits, (count, 1)), np.full(count, at), chosen, numbers, numbers, tolerance)
            for at in range(100)
        ],
        axis=1,
    )
    kept = kept_of(logits.tolist(), chosen, chosen.top_p)
    assert set(np.flatnonzero(accepted.any(axis=0))) <= kept
    assert accepted.any(axis=1).all()
    assert accepted.sum(axis=1).mean() < 1.2  # of about 60


def test_plausible_greedy_and_ids_that_are_none() -> None:
    logits = np.array([[1.0, 2.0, 2.3]] * 5)
    ids, five = np.array([2, 1, 0, 3, -2], np.int32), np.arange(5, dtype=np.uint32)
    assert plausible(logits, ids, Sampling(GREEDY), five, five, 0.2).tolist() == [1, 1, 0, 0, 0]
    limits = np.array([0, 0.1, 0.7, 9, 9])
    assert plausible(logits, ids, Sampling(GREEDY), five, five, limits).tolist() == [1, 0, 1, 0, 0]
    assert not plausible(logits, ids, Sampling(TOP_P), five, five, 0.2)[3:].any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 0},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
    ],
)
def test_settings_that_cannot_work(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Sampling(TOP_P, **wrong)  # type: ignore[arg-type]


def test_nothing_to_sample() -> None:
    with pytest.raises(ConfigError, match="kind=none"):
        sample(rows_of([1.0]), Sampling(NONE), u32(0), u32(0))
    for vocab in (0, MOST_VOCAB + 1):
        with pytest.raises(ConfigError, match="vocab"):
            sample(np.empty((0, vocab), np.float32), Sampling(TOP_K), u32(), u32())


@quickly
@given(
    st.lists(st.lists(st.sampled_from([-2.0, 0.0, 1.0, 1.1, math.inf, -math.inf, math.nan]), min_size=3, max_size=3)),
    st.integers(-2, 4),
    st.sampled_from([0.0, 0.05, 1.0]),
)
def test_a_greedy_id_fits_if_its_logit_may_be_the_largest(logits: list[list[float]], at: int, tolerance: float) -> None:
    rows, ids = np.array(logits, np.float64).reshape(-1, 3), np.full(len(logits), at, np.int32)
    numbers, limits = np.zeros(len(logits), np.uint32), np.full(len(logits), tolerance)
    found = plausible_greedy(np, rows, ids, limits).tolist()
    assert found == plausible(rows, ids, Sampling(GREEDY), numbers, numbers, tolerance).tolist()
    for row, fits in zip(logits, found, strict=True):
        if at == NO_ID or any(map(math.isnan, row)):
            assert fits == (at == NO_ID and any(map(math.isnan, row)))
        else:
            assert fits == (0 <= at < 3 and row[at] >= max(row) - 2 * tolerance)
