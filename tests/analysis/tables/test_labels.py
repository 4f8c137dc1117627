"""Labels of dots: none overlaps another or leaves the frame, unless it is needed; lines are avoided."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.analysis.tables.labels import Axis, Box, Label, Spot, box_around, place

FRAME = Box(0.0, 0.0, 400.0, 300.0)
places = st.builds(Spot, st.floats(0, 400), st.floats(0, 300))


@settings(deadline=None)
@given(st.lists(places, max_size=12))
def test_labels_without_need_are_apart_and_inside(spots: list[Spot]) -> None:
    placed = place([Label("16/50", spot, 6.0, is_needed=False) for spot in spots], [], FRAME)
    boxes = [box_around(centre, 10.0, 5.0) for _, centre in placed]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.is_within(FRAME) for box in boxes)


@settings(deadline=None)
@given(st.lists(places, max_size=12))
def test_what_is_needed_is_always_there(spots: list[Spot]) -> None:
    placed = place([Label(str(i), spot, 6.0, is_needed=True) for i, spot in enumerate(spots)], [], FRAME)
    assert [label.text for label, _ in placed] == [str(i) for i in range(len(spots))]


def test_a_line_is_avoided_where_there_is_another_place() -> None:
    label = Label("16/50", Spot(200.0, 150.0), 6.0, is_needed=False)
    ((_, free),) = place([label], [], FRAME)
    ((_, beside),) = place([label], [[free, Spot(400.0, 300.0)]], FRAME)
    assert free != beside


@pytest.mark.parametrize("is_log", [False, True])
def test_pixels_and_values_are_each_others_opposite(is_log: bool) -> None:
    axis = Axis(2.0, 50.0, is_log, 300.0)
    assert axis.pixel(2.0) == pytest.approx(0.0)
    assert axis.pixel(50.0) == pytest.approx(300.0)
    assert axis.value(axis.pixel(7.0)) == pytest.approx(7.0)
    assert axis.value(150.0) == pytest.approx(10.0 if is_log else 26.0)


def test_labels_of_the_same_text_keep_their_dots() -> None:
    spots = [Spot(100.0, 50.0), Spot(300.0, 250.0)]
    placed = place([Label("16/50", spot, 6.0, is_needed=True) for spot in spots], [], FRAME)
    assert [label.spot for label, _ in placed] == spots
