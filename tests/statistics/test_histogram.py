"""Percentiles of the histogram against NumPy's, of all values."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.statistics.histogram import RELATIVE_ERROR, LogHistogram

times = st.one_of(st.integers(-1000, 1000), st.integers(0, 10**10), st.integers(-(2**63), 2**63 - 1))
percents = st.one_of(st.sampled_from([0, 50, 99, 100]), st.floats(0, 100))


def of(values: list[int]) -> LogHistogram:
    histogram = LogHistogram()
    histogram.add(np.array(values, np.int64))
    return histogram


@given(st.lists(times, min_size=1, max_size=200), percents)
def test_percentiles_are_numpys_within_the_stated_error(values: list[int], percent: float) -> None:
    exact = np.percentile(np.maximum(np.array(values, np.int64), 0).astype(np.float64), percent)
    assert of(values).percentile(percent) == pytest.approx(exact, rel=RELATIVE_ERROR, abs=1e-9)


@given(st.lists(st.integers(0, 511), min_size=1, max_size=200), percents)
def test_short_times_are_exact(values: list[int], percent: float) -> None:
    assert of(values).percentile(percent) == pytest.approx(np.percentile(values, percent), rel=1e-12, abs=1e-9)


@given(st.integers(0, 62), st.integers(-300, 300))
def test_every_value_comes_back_within_half_a_bucket(octave: int, offset: int) -> None:
    value = max(0, 2**octave + offset)
    assert of([value]).percentile(50) == pytest.approx(value, rel=1 / 512)


@given(st.lists(times, max_size=50), st.lists(times, max_size=50))
def test_merging_is_adding(first: list[int], second: list[int]) -> None:
    merged, both = of(first), of(first + second)
    merged.merge(of(second))
    assert merged.count == both.count == len(first) + len(second)
    assert merged.max == both.max
    for percent in (0, 50, 99, 100):
        assert merged.percentile(percent) == both.percentile(percent)


@given(st.lists(times, max_size=200))
def test_max_is_exact(values: list[int]) -> None:
    assert of(values).max == max((max(value, 0) for value in values), default=None)
    in_two = of(values[:3])
    in_two.add(np.array(values[3:], np.int64))
    assert in_two.max == of(values).max


@given(st.lists(times, max_size=200), st.lists(percents, max_size=5))
def test_a_histogram_rebuilt_from_rows_is_the_same_but_for_its_max(values: list[int], percents: list[float]) -> None:
    histogram = of(values)
    rows = histogram.rows()
    rebuilt = LogHistogram.from_rows(rows)
    assert rebuilt.rows() == rows
    assert rebuilt.count == histogram.count == sum(count for _, _, count in rows)
    assert [rebuilt.percentile(p) for p in percents] == [histogram.percentile(p) for p in percents]
    assert rebuilt.max == (rows[-1][1] if rows else None)


@given(st.lists(st.integers(-5, 2**53), max_size=100))
def test_rows_hold_each_value_between_their_ends(values: list[int]) -> None:
    rows = of(values).rows()
    assert [count for low, high, count in rows] == [
        sum(low <= max(value, 0) <= high for value in values) for low, high, count in rows
    ]
    for (_, high, _), (low, _, _) in pairwise(rows):
        assert high < low


@given(st.integers(0, 2**52))
def test_the_ends_of_a_bucket_are_its_own_and_their_neighbours_are_not(value: int) -> None:
    ((low, high, _),) = of([value]).rows()
    assert of([low, high]).rows() == [(low, high, 2)]
    assert of([high + 1]).rows()[0][0] == high + 1
    assert low == 0 or of([low - 1]).rows()[0][1] == low - 1


@given(st.lists(times, max_size=50), st.lists(times, max_size=50))
def test_rows_of_several_histograms_give_the_merged_one(first: list[int], second: list[int]) -> None:
    assert LogHistogram.from_rows(of(first).rows() + of(second).rows()).rows() == of(first + second).rows()


def test_the_last_bucket_ends_where_int64_does() -> None:
    assert of([2**63 - 1]).rows()[0][1] == of([2**63 - 1]).max == 2**63 - 1


def test_nothing_has_no_percentile_and_what_is_not_positive_is_zero() -> None:
    assert (LogHistogram().percentile(50), of([]).count) == (None, 0)
    assert of([-5, 0, -(2**63)]).percentile(99) == 0.0
