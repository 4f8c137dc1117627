"""Tables of the page: the settings by heading are of headings that exist."""

from __future__ import annotations

import pytest
from support.results.headings import headings
from support.results.summary_rows import repeats

from launchopt.analysis.tables.rows import build_tables
from launchopt.analysis.tables.strategies import build_strategies
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
        ("at the measured peak (1)", 100),
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


def test_times_of_a_part_of_the_layers_say_so_beside_those_of_all() -> None:
    rows = repeats(*[10.0] * 5, mode="engine", layers=1, requests=4, tokens=28, tpot_p50_ms=5.848, tpot_p99_ms=6.0)
    (table,) = build_tables(rows)
    found = grids.tokens(table, 2)
    assert found is not None
    texts = dict(zip((head.text for head in found.heads), (cell.text for cell in found.rows[0]), strict=True))
    assert texts["TPOT p50 / p99 ms, 1 of 2 layers"] == "5.848 / 6.000"
    assert texts["TPOT p50 / p99 ms, scaled to all layers"] == "11.70 / 12.00"
    for all_ran in (grids.tokens(table, 1), grids.tokens(table)):
        assert all_ran is not None
        assert "TPOT p50 / p99 ms" in [head.text for head in all_ran.heads]


def test_launches_of_several_calls_are_counted_below_the_table() -> None:
    rows = repeats(*[10.0] * 5, mode="engine", launch_calls=543, submits=415, host_submit_ns_per_launch=128_600.0)
    line = "CPU us per launch: the mean over launches, each with all its calls. Launches: engine 415 of 543 calls."
    assert line in grids.modes(build_strategies(rows, {})[0], build_tables(rows)[0]).below
