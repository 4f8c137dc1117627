"""The merged table of a page: a reader can tell which work each line is of."""

from __future__ import annotations

from typing import Any

import pytest
from support.results.summary_rows import DECODE, repeats

from launchopt.analysis.tables.markdown import report_markdown
from launchopt.analysis.tables.rows import build_tables


def works(*settings: dict[str, Any]) -> list[str]:
    """The first cells of the merged table of works with these settings, without the headings."""
    rows = [row | setting for i, setting in enumerate(settings) for row in repeats(2.0, mode="batched", run_id=str(i))]
    table = report_markdown(build_tables(rows), "compact").split("\n\n")[1]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def test_one_work_has_a_short_name() -> None:
    assert works({"model": "a"}) == ["gemv_micro fp32, 2,000,000"]


@pytest.mark.parametrize(
    ("settings", "told_apart"),
    [
        ([{"model": "a"}, {"model": "b"}], ["a model", "b model"]),
        ([{"layers": 1}, {"layers": 2}], ["1 layer", "2 layers"]),
        ([{"cache": "hot"}, {"cache": "cold"}], ["cold cache", "hot cache"]),
        ([{"gpu": "X"}, {"gpu": "Y"}], ["X", "Y"]),
        ([{"model": "a", "commands": 7}, {"model": "b", "commands": 8}], ["a model", "b model"]),
    ],
)
def test_works_of_one_name_have_the_setting_that_tells_them_apart(
    settings: list[dict[str, Any]], told_apart: list[str]
) -> None:
    assert [name.rpartition(", ")[2] for name in works(*settings)] == told_apart


def test_works_that_one_setting_does_not_tell_apart_have_more() -> None:
    settings = [{"model": model, "layers": layers} for model in "ab" for layers in (1, 2)]
    assert {name.partition(", 2,000,000, ")[2] for name in works(*settings)} == {
        f"{model} model, {layers}" for model in "ab" for layers in ("1 layer", "2 layers")
    }


def test_works_that_differ_in_their_commands_alone_keep_the_short_name() -> None:
    assert works({"commands": 7}, {"commands": 8}) == ["gemv_micro fp32, 7", "gemv_micro fp32, 8"]


def test_requests_tell_works_apart_already() -> None:
    assert len(set(works(DECODE | {"requests": 1, "tokens": 9}, DECODE | {"requests": 4, "tokens": 9}))) == 2
