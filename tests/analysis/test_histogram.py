"""Percentiles of the histogram against NumPy's, of all values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.analysis.histogram import RELATIVE_ERROR, LogHistogram

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
    for percent in (0, 50, 99, 100):
        assert merged.percentile(percent) == both.percentile(percent)


def test_nothing_has_no_percentile_and_what_is_not_positive_is_zero() -> None:
    assert (LogHistogram().percentile(50), of([]).count) == (None, 0)
    assert of([-5, 0, -(2**63)]).percentile(99) == 0.0
