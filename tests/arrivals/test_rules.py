"""Arrivals by a rule: exact where there is no chance, and the right rate and spread where there is."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.arrivals.bursty import bursty
from launchopt.arrivals.constant import constant
from launchopt.arrivals.poisson import poisson

RATES = st.floats(1e-2, 1e7)
SEEDS = st.integers(0, 2**32)
properties = settings(deadline=None, max_examples=60, derandomize=True)  # chance would have it fail some day

# Each with (rate, count, seed).
PROCESSES: dict[str, Callable[[float, int, int], np.ndarray[tuple[int], np.dtype[np.int64]]]] = {
    "constant": lambda rate, count, _: constant(rate, count),
    "poisson": poisson,
    "bursty": lambda rate, count, seed: bursty(rate, 8, None, count, seed),
    "bursty with a peak": lambda rate, count, seed: bursty(rate, 8, 3 * rate, count, seed),
    "bursty at its peak": lambda rate, count, seed: bursty(rate, 50, rate, count, seed),
}
every_process = pytest.mark.parametrize("name", list(PROCESSES))


def rate_of(due_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    return len(due_ns) / float(due_ns[-1]) * 1e9


@every_process
@properties
@given(RATES, st.integers(1, 300), SEEDS)
def test_sorted_not_before_the_start_and_repeatable(name: str, rate: float, count: int, seed: int) -> None:
    due_ns = PROCESSES[name](rate, count, seed)
    assert due_ns.shape == (count,)
    assert due_ns.dtype == np.int64
    assert due_ns[0] >= 0
    assert (np.diff(due_ns) >= 0).all()
    assert due_ns.tolist() == PROCESSES[name](rate, count, seed).tolist()


@every_process
@properties
@given(RATES, st.integers(1, 300), st.integers(1, 300), SEEDS)
def test_a_longer_run_begins_with_the_shorter(name: str, rate: float, count: int, more: int, seed: int) -> None:
    longer = PROCESSES[name](rate, count + more, seed)
    assert longer[:count].tolist() == PROCESSES[name](rate, count, seed).tolist()


@pytest.mark.parametrize("name", [name for name in PROCESSES if name != "constant"])
def test_another_seed_is_another_draw(name: str) -> None:
    assert PROCESSES[name](1e3, 20, 1).tolist() != PROCESSES[name](1e3, 20, 2).tolist()


def test_constant_examples() -> None:
    assert constant(1000, 4).tolist() == [0, 1_000_000, 2_000_000, 3_000_000]
    assert constant(3, 4).tolist() == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert constant(0.5, 2).tolist() == [0, 2_000_000_000]
    assert constant(4e9, 6).tolist() == [0, 0, 0, 1, 1, 1]  # two to the half ns, rounded to even


@properties
@given(RATES, st.integers(1, 2_000))
def test_constant_does_not_drift(rate: float, count: int) -> None:
    for index, due_ns in enumerate(constant(rate, count).tolist()):
        exact = index * 10**9 / Fraction(rate)
        assert abs(due_ns - exact) <= Fraction(1, 2) + exact / 2**53


@properties
@given(RATES, SEEDS)
def test_poisson_gaps_are_exponential(rate: float, seed: int) -> None:
    count = 10_000
    due_ns = poisson(rate, count, seed)
    assert rate_of(due_ns) == pytest.approx(rate, rel=6 / count**0.5)
    gaps = np.sort(np.diff(due_ns)) * 1e-9 * rate
    expected = 1 - np.exp(-gaps)
    slack = 0.5 * rate * 1e-9  # a gap is rounded to ns
    assert np.abs(expected - np.arange(1, count) / count).max() < 2.5 / count**0.5 + slack  # Kolmogorov, p < 1e-5


@properties
@given(RATES, st.integers(1, 40), st.one_of(st.none(), st.floats(1, 1e3)), SEEDS)
def test_bursty_has_the_mean_rate(rate: float, burst_size: int, peak_over_mean: float | None, seed: int) -> None:
    bursts = 1_000
    peak_per_s = None if peak_over_mean is None else peak_over_mean * rate
    due_ns = bursty(rate, burst_size, peak_per_s, bursts * burst_size, seed)
    assert rate_of(due_ns) == pytest.approx(rate, rel=6 / bursts**0.5)


@pytest.mark.parametrize("peak_over_mean", [1, 2, 10, None])
@pytest.mark.parametrize("burst_size", [1, 4, 30])
def test_bursty_has_the_mean_rate_from_the_very_start(peak_over_mean: int | None, burst_size: int) -> None:
    """Over many seeds: as many arrivals in the first mean gap between bursts as in any other, one burst's worth."""
    window_ns, runs = burst_size * 1_000_000, 2_000
    peak_per_s = None if peak_over_mean is None else 1e3 * peak_over_mean
    runs_due_ns = [bursty(1e3, burst_size, peak_per_s, 12 * burst_size, seed) for seed in range(runs)]
    counts = [int(np.searchsorted(due_ns, window_ns)) for due_ns in runs_due_ns]
    assert np.mean(counts) == pytest.approx(burst_size, abs=5 * burst_size / runs**0.5)


def test_bursts_without_a_peak_come_at_once() -> None:
    due_ns = bursty(1e3, 4, None, 4 * 50 + 3, 7)
    values, counts = np.unique(due_ns, return_counts=True)
    assert counts.tolist() == [4] * 50 + [3]
    assert np.diff(values).min() > 0


def test_arrivals_of_a_burst_are_a_peak_gap_apart() -> None:
    due_ns = bursty(10, 5, 1e6, 5 * 200, 3)  # bursts of 4 us each half second: next to none overlap
    gaps_ns = np.diff(due_ns)
    assert (gaps_ns == 1_000).sum() == pytest.approx(4 * 200, abs=60)  # a third rounds to 999 or 1001 at most
    assert (np.abs(gaps_ns - 1_000) <= 1).sum() >= 4 * 199


def test_overlapping_bursts_are_merged() -> None:
    """At a peak of the mean rate bursts overlap half the time: the gaps are then shorter than the peak's."""
    gaps_ns = np.diff(bursty(1e3, 20, 1e3, 2_000, 5))
    assert (gaps_ns < 999_999).mean() > 0.3
    assert (np.abs(gaps_ns - 1_000_000) <= 1).any()


def test_bursts_of_one_are_poisson() -> None:
    due_ns = bursty(1e3, 1, None, 10_000, 1)
    assert np.std(np.diff(due_ns)) / np.mean(np.diff(due_ns)) == pytest.approx(1, abs=0.05)
    assert due_ns.tolist() == bursty(1e3, 1, 1e6, 10_000, 1).tolist()


def test_bursts_spread_more_than_poisson() -> None:
    def dispersion(due_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
        counts = np.bincount(due_ns // 1_000_000_000)[:-1]
        return float(np.var(counts) / np.mean(counts))

    assert dispersion(poisson(100, 50_000, 1)) == pytest.approx(1, abs=0.3)
    assert dispersion(bursty(100, 10, 1e4, 50_000, 1)) == pytest.approx(10, abs=3)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: constant(0, 1), "rate_per_s is 0, must be positive and finite"),
        (lambda: constant(-1.5, 1), "rate_per_s is -1.5"),
        (lambda: poisson(float("inf"), 1, 0), "rate_per_s is inf"),
        (lambda: poisson(float("nan"), 1, 0), "rate_per_s is nan"),
        (lambda: constant(1, 0), "count is 0, must be at least 1"),
        (lambda: bursty(1, 0, None, 1, 0), "burst_size is 0, must be at least 1"),
        (lambda: bursty(2, 3, 1.5, 1, 0), "peak_per_s is 1.5, must be finite and at least the mean rate 2"),
        (lambda: bursty(2, 3, float("inf"), 1, 0), "peak_per_s is inf"),
        (lambda: constant(1e-9, 10), "10 arrivals at 1e-09 a second take over 146 years"),
        (lambda: poisson(5e-324, 1, 0), "over 146 years"),
        (lambda: bursty(1e-300, 2, 1e-299, 9, 0), "over 146 years"),
    ],
)
def test_refused(call: Callable[[], object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        call()


def test_the_smallest_and_largest_rates() -> None:
    assert constant(5e-324, 1).tolist() == [0]
    assert poisson(1e308, 3, 0).tolist() == [0, 0, 0]
    assert constant(1e308, 3).tolist() == [0, 0, 0]
