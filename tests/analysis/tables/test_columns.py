"""Text of single values in the tables."""

from __future__ import annotations

import pytest

from launchopt.analysis.tables.columns import three_digits


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
