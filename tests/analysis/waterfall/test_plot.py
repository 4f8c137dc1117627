"""The picture of a waterfall: bars lie between times before and after, and a long first bar hides no other."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("altair")

from support.results.summary_rows import repeats

from launchopt.analysis.waterfall.plot import waterfall_chart, waterfall_layers
from launchopt.analysis.waterfall.steps import Waterfall, build_waterfalls

WORK: dict[str, Any] = {"workload": "layer", "requests": 1, "tokens": 100, "commands": 1000}


def waterfall(**wall_ms: float) -> Waterfall:
    """Return a waterfall of modes whose five repeats differ by 1 us a step."""
    rows = [
        row
        for mode, ms in wall_ms.items()
        for row in repeats(ms, ms + 0.1, ms, ms - 0.1, ms, mode=mode, stack=None, **WORK)
    ]
    (one,) = build_waterfalls(rows, {"run": [list(wall_ms)]})
    return one


def bars(one: Waterfall) -> list[dict[str, Any]]:
    spec = waterfall_layers(one).to_dict()
    (values,) = spec["datasets"].values()
    return list(values)


def test_a_bar_lies_between_the_times_before_and_after_with_a_whisker_around_the_time_after() -> None:
    first, slower, faster, last = bars(waterfall(a=10.0, b=12.0, c=9.0))
    assert (first["start"], first["end"], first["kind"], first["long"]) == (
        0,
        pytest.approx(100),
        "time of a step",
        "100.0 us",
    )
    assert (slower["start"], slower["end"], slower["kind"]) == (pytest.approx(100), pytest.approx(120), "costs time")
    assert (faster["start"], faster["end"], faster["kind"]) == (pytest.approx(120), pytest.approx(90), "saves time")
    assert faster["low"] <= 90 <= faster["high"]
    assert (last["end"], last["has_interval"]) == (pytest.approx(90), False)
    assert [each["name"] for each in (first, slower, faster, last)] == ["a", "b", "c", "c"]


def test_a_first_mode_that_takes_several_times_as_long_ends_at_the_edge() -> None:
    one = waterfall(a=1000.0, b=10.0, c=9.0)
    first, second, third, _ = bars(one)
    assert first["end"] == second["start"] == pytest.approx(112)
    assert (third["start"], third["end"]) == (pytest.approx(100), pytest.approx(90))
    assert first["long"] == "10,000.0 us"
    spec = waterfall_layers(one).to_dict()
    assert spec["layer"][0]["encoding"]["x"]["title"] == "us a step (the first bars go on to 10,000.0)"


def test_two_modes_are_never_cut() -> None:
    first, step, _ = bars(waterfall(a=1000.0, b=10.0))
    assert (first["end"], step["start"]) == (pytest.approx(10_000), pytest.approx(10_000))


@pytest.mark.parametrize("wall_ms", [1e-4, 0.033, 1.0, 77.0, 1e6])
def test_an_axis_has_three_to_six_round_ticks(wall_ms: float) -> None:
    spec = waterfall_layers(waterfall(a=wall_ms + 0.2, b=wall_ms + 0.2)).to_dict()
    ticks = spec["layer"][0]["encoding"]["x"]["axis"]["values"]
    assert 3 <= len(ticks) <= 6
    assert ticks[0] == 0


def test_the_panels_of_a_picture_share_their_colours() -> None:
    """Vega-Lite merges the domains of panels, but takes the range of the first one."""
    spec = waterfall_chart([waterfall(a=10.0, b=10.0), waterfall(a=10.0, b=9.0), waterfall(a=10.0, b=11.0)])
    assert spec is not None
    kinds = ["time of a step", "saves time", "costs time", "no difference shown"]
    colours = ["#009e73", "#0072b2", "#d55e00", "#808080"]
    scales = [each["layer"][0]["encoding"]["color"]["scale"] for each in spec.to_dict()["concat"]]
    assert scales == [{"domain": kinds, "range": colours}] * 3
    alone = waterfall_layers(waterfall(a=10.0, b=9.0)).to_dict()["layer"][0]["encoding"]["color"]["scale"]
    assert alone == {"domain": kinds[:2], "range": colours[:2]}


def test_nothing_to_draw_is_no_picture() -> None:
    assert waterfall_chart([]) is None
