"""Figures of the page: labels lie beside their points, and notes say what a figure leaves out."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("altair")

from support.results.recorded_runs import summary_row

from launchopt.analysis.tables.frontier import Frontier, Point
from launchopt.report.figures.base import Figure
from launchopt.report.figures.frontier import frontier_figures


def texts(spec: Any) -> list[dict[str, Any]]:
    """Return the data of every layer of texts with an offset from their points."""
    shown = [layer for layer in spec["layer"] if layer["mark"].get("type") == "text" and "dx" in layer["mark"]]
    data = [layer.get("data", {}) for layer in shown]
    return [row for each in data for row in (each.get("values") or spec["datasets"][each["name"]])]


def test_two_modes_with_the_same_batching_have_a_label_each_at_their_own_points() -> None:
    points = [
        Point(mode, 16, timeout_us, 3, None, False, throughput, p99_us)
        for mode, timeout_us, throughput, p99_us in (
            *(("batched", 20.0, 1000.0, 10.0), ("grouped", 20.0, 3000.0, 90.0), ("grouped", 50.0, 900.0, 95.0)),
        )
    ]
    found = frontier_figures(Frontier(summary_row("run", "batched", 0), "commands", points, points[:2]))
    figure = found[-1]
    assert isinstance(figure, Figure)
    labels = [(each["text"], each["throughput_per_s"], each["p99_us"]) for each in texts(figure.spec)]
    assert labels == [
        ("16 / 20 us", pytest.approx(1000.0), pytest.approx(10.0)),
        ("16 / 20 us", pytest.approx(3000.0), pytest.approx(90.0)),
    ]
