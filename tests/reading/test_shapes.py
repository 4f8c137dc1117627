"""The parts of a JSON value that have the expected types are kept, and the others are named."""

from __future__ import annotations

from typing import Any

import pytest

from launchopt.reading.shapes import ANY, fitted

SHAPE = {"name": str, "rate": float, "count": int, "modes": [str], "state": {ANY: {"mhz": float}}}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"name": None, "modes": None, "other": [{}]},
        {"name": "x", "rate": 1, "count": -3, "modes": ["a", "b"], "state": {"before": {"mhz": 1.5, "more": []}}},
    ],
)
def test_a_value_that_fits_is_kept_whole(value: dict[str, Any]) -> None:
    lost: list[str] = []
    assert fitted(value, SHAPE, lost) == value
    assert lost == []


@pytest.mark.parametrize(
    ("value", "kept", "name"),
    [
        ({"name": 3, "count": 1}, {"count": 1}, "name"),
        ({"rate": float("nan")}, {}, "rate"),
        ({"rate": 10**400}, {}, "rate"),
        ({"count": True}, {}, "count"),
        ({"count": 1.5}, {}, "count"),
        ({"modes": "abc"}, {}, "modes"),
        ({"modes": ["a", 3, "b"]}, {"modes": ["a", "b"]}, "modes[1]"),
        ({"state": {"a": {"mhz": "fast"}, "b": {"mhz": 1}}}, {"state": {"a": {}, "b": {"mhz": 1}}}, "state.a.mhz"),
        ({"state": []}, {}, "state"),
    ],
)
def test_what_does_not_fit_is_named(value: dict[str, Any], kept: dict[str, Any], name: str) -> None:
    lost: list[str] = []
    assert fitted(value, SHAPE, lost) == kept
    assert lost == [name]
