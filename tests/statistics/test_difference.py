"""The difference of times that were taken in turn: it adds up, and has the bounds of Student's t."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.statistics.difference import difference

arms = st.integers(1, 12).flatmap(
    lambda n: st.lists(st.lists(st.floats(1e-3, 1e6), min_size=n, max_size=n), min_size=3, max_size=6)
)


@given(arms)
def test_differences_in_a_row_add_up_to_the_whole(times: list[list[float]]) -> None:
    parts = [difference(before, after).value for before, after in pairwise(times)]
    assert math.fsum(parts) == pytest.approx(difference(times[0], times[-1]).value, abs=1e-9 * max(map(max, times)))


def test_the_bounds_are_those_of_a_table_of_students_t() -> None:
    """Differences 1, 2, 3, 4, 5: mean 3, standard error sqrt(0.5), t(0.975, 4) = 2.776."""
    found = difference([11, 12, 13, 14, 15], [10] * 5, unit=" us")
    assert (found.value, found.low, found.high) == pytest.approx(
        (3, 3 - 2.776 * 0.5**0.5, 3 + 2.776 * 0.5**0.5), rel=1e-3
    )
    assert str(found) == "3.00 us [1.04, 4.96]"


def test_a_delay_of_a_whole_repeat_cancels() -> None:
    found = difference([11, 12, 11, 111, 12], [10, 11, 10, 110, 11])
    assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1))


def test_below_five_pairs_the_range_stands_in_place_of_bounds() -> None:
    found = difference([11, 12, 13], [10, 10, 10])
    assert (found.value, found.low, found.high, found.range) == (2, None, None, (1, 3))
    assert difference([11], [10]).range is None


@pytest.mark.parametrize(("before", "after"), [([], []), ([1], [1, 2]), ([math.nan], [1]), ([math.inf], [1])])
def test_what_has_no_difference_is_refused(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs|finite"):
        difference(before, after)
