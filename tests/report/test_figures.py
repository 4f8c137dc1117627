"""Figures of the page: labels lie beside their points, and notes say what a figure leaves out."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("altair")

from support.results.recorded_runs import summary_row
from support.results.summary_rows import repeats

from launchopt.analysis.frontier.points import Frontier, Point
from launchopt.analysis.tables.rows import build_tables
from launchopt.report.figures.base import Figure
from launchopt.report.figures.frontier import frontier_figures
from launchopt.report.figures.speedup import streams_figure
from launchopt.report.glance import glances


def texts(spec: Any) -> list[dict[str, Any]]:
    """Return the data of every layer of texts with an offset from their points."""
    shown = [layer for layer in spec["layer"] if layer["mark"].get("type") == "text" and "dx" in layer["mark"]]
    data = [layer.get("data", {}) for layer in shown]
    return [row for each in data for row in (each.get("values") or spec["datasets"][each["name"]])]


def test_two_modes_with_the_same_batching_have_a_label_each_at_their_own_points() -> None:
    points = [
        Point("batched", 16, 20.0, 3, None, overloaded=False, throughput_per_s=1000.0, p99_us=10.0),
        Point("grouped", 16, 20.0, 3, None, overloaded=False, throughput_per_s=3000.0, p99_us=90.0),
        Point("grouped", 16, 50.0, 3, None, overloaded=False, throughput_per_s=900.0, p99_us=95.0),
    ]
    found = frontier_figures(Frontier(summary_row("run", "batched", 0), "commands", points, points[:2]))
    figure = found[-1]
    assert isinstance(figure, Figure)
    labels = [(each["text"], each["throughput_per_s"], each["p99_us"]) for each in texts(figure.spec)]
    assert labels == [
        ("16 / 20 us", pytest.approx(1000.0), pytest.approx(10.0)),
        ("16 / 20 us", pytest.approx(3000.0), pytest.approx(90.0)),
    ]


@pytest.mark.parametrize("streams", [2, 13])
def test_few_and_many_streams_name_the_base_and_count_those_without_one(streams: int) -> None:
    rows = [
        row
        for at in range(streams)
        for row in [*repeats(9, 9, 9, model=f"m{at}"), *repeats(3, 3, 3, mode="graph", model=f"m{at}")]
    ]
    figure = streams_figure(glances(build_tables([*rows, *repeats(3, 3, 3, mode="graph", model="alone")])))
    assert isinstance(figure, Figure)
    assert figure.note.endswith("Over baseline. 1 more stream has no base to compare with.")


def test_where_streams_have_different_bases_each_row_names_its_own() -> None:
    rows = [*repeats(9, 9, 9, model="a"), *repeats(3, 3, 3, mode="graph", model="a")]
    rows += [*repeats(9, 9, 9, mode="coalesced", model="b"), *repeats(3, 3, 3, mode="graph", model="b")]
    figure = streams_figure(glances(build_tables(rows)))
    assert isinstance(figure, Figure)
    data = [row for layer in figure.spec["datasets"].values() for row in layer]
    assert {row["text"].rpartition(": ")[2] for row in data} == {"graph over baseline", "graph over coalesced"}
    assert {row["base"] for row in data} == {"baseline", "coalesced"}
