"""Intervals: properties that hold for any samples, and effects planted in noise of known size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.statistics.interval import Interval, Verdict, median_interval, verdict

times = st.lists(st.floats(1e-3, 1e6), min_size=5, max_size=12)
properties = settings(deadline=None, max_examples=50)


@properties
@given(times)
def test_median_interval_lies_within_the_samples_and_around_the_median(samples: list[float]) -> None:
    interval = median_interval(samples)
    assert interval.value == float(np.median(samples))
    assert interval.low is not None
    assert interval.high is not None
    rounding = 1 + 1e-12
    assert min(samples) <= interval.low * rounding
    assert interval.low <= interval.value * rounding
    assert interval.value <= interval.high * rounding
    assert interval.high <= max(samples) * rounding


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(4)
    intervals = [median_interval(generator.normal(100, 5, 15)) for _ in range(400)]
    covered = sum(i.low is not None and i.high is not None and i.low <= 100 <= i.high for i in intervals)
    assert 0.90 <= covered / 400 <= 0.99


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
        (Interval(3.1234, None, None, 2, range=(3.0, 3.2)), "3.12x (3.00 to 3.20)"),
        (Interval(3.1234, None, None, 1), "3.12x (1 repeat)"),
    ],
)
def test_how_an_interval_is_written(interval: Interval, text: str) -> None:
    assert str(interval) == text


def test_too_few_repeats_give_a_value_and_its_range() -> None:
    assert median_interval([4, 6], unit=" ms") == Interval(5.0, None, None, 2, " ms", (4.0, 6.0))
    assert median_interval([4]) == Interval(4.0, None, None, 1, "")
    assert median_interval([1, 2, 3, 4]).low is None
    assert median_interval([1, 2, 3, 4, 5]).low == 1.0


# 1 - 2 P(X < rank) of the binomial distribution, as textbooks tabulate the sign test.
@pytest.mark.parametrize(("repeats", "rank"), [(5, 1), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6), (30, 10), (100, 40)])
def test_the_bounds_are_the_samples_that_the_sign_test_names(repeats: int, rank: int) -> None:
    found = median_interval(range(1, repeats + 1))
    assert (found.low, found.high) == (rank, repeats + 1 - rank)


def test_the_normal_approximation_joins_on_where_the_exact_ranks_end() -> None:
    exact, normal = (median_interval(range(1, repeats + 1)).low or 0 for repeats in (1000, 1001))
    assert normal == pytest.approx(exact, abs=1)


def test_samples_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    with pytest.raises(ValueError, match="finite"):
        median_interval([1.0, float("nan"), 2.0])
