"""Glances: a mode that ignored the order of the commands is never shown before one that kept it."""

from __future__ import annotations

import pytest
from support.results.summary_rows import DECODE, repeats

from launchopt.analysis.tables.rows import build_tables
from launchopt.report.glance import glances
from launchopt.report.tiles import headline


@pytest.mark.parametrize("number", [4, 5])
def test_the_fastest_mode_kept_the_order_of_the_commands(number: int) -> None:
    """Four repeats prove nothing, and five do."""
    kept = {**DECODE, "mode": "batched", "ordering": "per_request"}
    ignored = {**DECODE, "mode": "graph", "ordering": "none"}
    rows = [*repeats(*[9] * number, **DECODE), *repeats(*[4] * number, **kept), *repeats(*[2] * number, **ignored)]
    (one,) = glances(build_tables(rows))
    assert one.best_measured is not None
    assert one.best_measured["mode"] == "batched"
    assert (one.best is not None) == (number == 5)
    assert one.best is None or one.best["mode"] == "batched"


def test_the_headline_says_that_a_mode_ignored_the_order() -> None:
    ignored = {**DECODE, "mode": "graph", "ordering": "none"}
    found = glances(build_tables([*repeats(*[9] * 5, **DECODE), *repeats(*[2] * 5, **ignored)]))
    (sentence,) = headline(found)
    assert sentence.startswith("The fastest mode is graph (dependencies ignored) 4.50x")
