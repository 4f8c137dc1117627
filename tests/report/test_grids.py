"""Tables of the page: the settings by heading are of headings that exist."""

from __future__ import annotations

import pytest
from support.results.headings import headings

from launchopt.report import grids


@pytest.mark.parametrize("name", ["_FIRST", "_UNITS", "_SETTINGS"])
def test_every_heading_with_a_place_a_unit_or_a_caption_is_of_a_column(name: str) -> None:
    assert set(getattr(grids, name)) <= headings()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("19.7x [19.7, 20.6]", 19.7),
        ("93.5%", 93.5),
        ("at the measured peak", 100),
        ("memory: at the measured peak", 100),
        ("at once", 0),
        ("never", None),
        ("—", None),
    ],
)
def test_a_column_of_numbers_sorts_words_that_stand_for_one(text: str, number: float | None) -> None:
    assert grids.leading_number(text) == number


@pytest.mark.parametrize(("text", "expected"), [("1", "1 repeat of each mode"), ("3", "3 repeats of each mode")])
def test_one_repeat_is_no_plural(text: str, expected: str) -> None:
    assert grids._setting("repeats", text) == expected
