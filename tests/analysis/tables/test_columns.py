"""Text of single values in the tables."""

from __future__ import annotations

import pytest
from support.results.summary_rows import TOKENS, row

from launchopt.analysis.tables.columns import overload, three_digits


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.97149, "0.971"),
        (1.0, "1.00"),
        (25.0, "25.0"),
        (99.94, "99.9"),
        (99.96, "100"),
        (125.4, "125"),
        (1250, "1,250"),
    ],
)
def test_a_factor_has_three_digits_and_no_bare_point(value: float, text: str) -> None:
    assert three_digits(value) == text


@pytest.mark.parametrize(("done", "text"), [(61.25, "YES: 61.25/s of 100/s"), (123.0, "YES"), (None, "YES")])
def test_an_overload_shows_no_rate_of_completions_above_that_of_arrivals(done: float | None, text: str) -> None:
    assert overload([row(**{**TOKENS, "overloaded": True, "completed_rate_per_s": done})]) == text
