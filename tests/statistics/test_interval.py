"""Intervals: properties that hold for any samples, and effects planted in noise of known size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.statistics.interval import Interval, Verdict, median_interval, ratio_interval, verdict

times = st.lists(st.floats(1e-3, 1e6), min_size=3, max_size=12)
properties = settings(deadline=None, max_examples=50)
FEW = 500


@properties
@given(times)
def test_median_interval_lies_within_the_samples_and_around_the_median(samples: list[float]) -> None:
    interval = median_interval(samples, resamples=FEW)
    assert interval.value == float(np.median(samples))
    assert interval.low is not None
    assert interval.high is not None
    rounding = 1 + 1e-12
    assert min(samples) <= interval.low * rounding
    assert interval.low <= interval.value * rounding
    assert interval.value <= interval.high * rounding
    assert interval.high <= max(samples) * rounding


@properties
@given(times, st.floats(0.01, 100))
def test_a_common_factor_on_the_candidate_divides_the_ratio(samples: list[float], factor: float) -> None:
    paired = ratio_interval(samples, [factor * s for s in samples], paired=True, resamples=FEW)
    assert (paired.value, paired.low, paired.high) == pytest.approx((1 / factor,) * 3)


@properties
@given(times, times, st.integers(0, 5))
def test_the_same_seed_gives_the_same_interval(ours: list[float], theirs: list[float], seed: int) -> None:
    first, second = (ratio_interval(ours, theirs, paired=False, seed=seed, resamples=FEW) for _ in range(2))
    assert first == second


@properties
@given(times, times)
def test_swapping_the_two_inverts_the_ratio(ours: list[float], theirs: list[float]) -> None:
    there = ratio_interval(ours, theirs, paired=False, resamples=FEW)
    back = ratio_interval(theirs, ours, paired=False, resamples=FEW)
    assert there.value * back.value == pytest.approx(1)
    opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    if verdict(there, 0.5) in opposite:  # a wide margin: the two draw other resamples
        assert verdict(back, 0.0) in (opposite[verdict(there, 0.5)], Verdict.UNDECIDED)


@pytest.mark.parametrize("paired", [True, False])
def test_a_planted_effect_is_found_and_its_direction_is_right(paired: bool) -> None:
    noise = np.random.default_rng(1).normal(1, 0.01, (2, 11))
    assert verdict(ratio_interval(10 * noise[0], 9 * noise[1], paired=paired)) is Verdict.FASTER
    assert verdict(ratio_interval(9 * noise[0], 10 * noise[1], paired=paired)) is Verdict.SLOWER


def test_a_against_a_is_hardly_ever_an_effect() -> None:
    generator = np.random.default_rng(2)
    verdicts = [
        verdict(ratio_interval(*generator.normal(10, 0.3, (2, 11)), paired=True, resamples=FEW)) for _ in range(200)
    ]
    effects = sum(v in (Verdict.FASTER, Verdict.SLOWER) for v in verdicts)
    assert effects <= 10  # 5% of 200: the margin of 1% makes it fewer than the interval alone would
    assert Verdict.UNDECIDED in verdicts


def test_a_against_a_with_little_noise_is_the_same() -> None:
    samples = np.random.default_rng(3).normal(10, 0.005, (2, 11))
    assert verdict(ratio_interval(*samples, paired=False)) is Verdict.SAME


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(4)
    intervals = [median_interval(generator.normal(100, 5, 15), resamples=FEW) for _ in range(400)]
    covered = sum(i.low is not None and i.high is not None and i.low <= 100 <= i.high for i in intervals)
    assert 0.90 <= covered / 400 <= 0.99


def test_pairing_cancels_what_slowed_a_whole_repeat() -> None:
    generator = np.random.default_rng(5)
    repeat = generator.uniform(1, 2, 9)
    ours, theirs = (repeat * scale * generator.normal(1, 0.002, 9) for scale in (1.05, 1.0))
    assert verdict(ratio_interval(ours, theirs, paired=True)) is Verdict.FASTER
    assert verdict(ratio_interval(ours, theirs, paired=False)) is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.011, 1.2, Verdict.FASTER),
        (1.01, 1.2, Verdict.UNDECIDED),
        (0.8, 0.989, Verdict.SLOWER),
        (0.8, 0.99, Verdict.UNDECIDED),
        (0.99, 1.01, Verdict.SAME),
        (0.9, 1.1, Verdict.UNDECIDED),
        (None, None, Verdict.UNDECIDED),
    ],
)
def test_verdict_at_its_edges(low: float | None, high: float | None, expected: Verdict) -> None:
    assert verdict(Interval(1.0, low, high), 0.01) is expected


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(3.1234, 2.98, 3.301, 5), "3.12x [2.98, 3.30]"),
        (Interval(19.24, 19.0, 19.46, 5), "19.2x [19.0, 19.5]"),
        (Interval(0.9934, 0.985, 1.002, 5), "0.993x [0.985, 1.002]"),
        (Interval(15807.6, 15800, 15900, 5, " ms"), "15808 ms [15800, 15900]"),
        (Interval(3.1234, None, None, 2), "3.12x (2 repeats: no interval)"),
        (Interval(3.1234, None, None, 1), "3.12x (1 repeat: no interval)"),
    ],
)
def test_how_an_interval_is_written(interval: Interval, text: str) -> None:
    assert str(interval) == text


def test_too_few_repeats_give_a_value_and_no_bounds() -> None:
    assert ratio_interval([6, 6], [2, 2], paired=True) == Interval(3.0, None, None, 2)
    assert ratio_interval([6, 6, 6], [2], paired=False) == Interval(3.0, None, None, 1)
    assert median_interval([4, 6], unit=" ms") == Interval(5.0, None, None, 2, " ms")


def test_samples_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    with pytest.raises(ValueError, match="finite"):
        median_interval([1.0, float("nan"), 2.0])
    with pytest.raises(ValueError, match="positive"):
        ratio_interval([1, 2, 3], [0, 1, 2], paired=True)
    with pytest.raises(ValueError, match="paired samples, but 3 and 2"):
        ratio_interval([1, 2, 3], [1, 2], paired=True)
