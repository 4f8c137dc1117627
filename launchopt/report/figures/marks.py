"""Texts beside points, each at its own distance in pixels from its point.

In: places that `labels.place` found for a plot of one width. Out: a layer per text. In a narrower plot points come
closer to each other, so there the texts are hidden; a tooltip has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import altair as alt

from launchopt.analysis.tables.labels import Spot
from launchopt.report.figures.base import Datum

LABEL_GAP = 9.0  # pixels from the centre of a point to its text
LABEL_SIZE = 11.0  # height of the text, pixels


def along(line: Sequence[Spot], step: float = 5.0) -> list[Spot]:
    """Return spots along a line, `step` pixels apart, that a label must not cover."""
    spots = []
    for one, other in pairwise(line):
        count = max(1, math.ceil(math.dist(one, other) / step))
        spots += [
            Spot(one.x + (other.x - one.x) * n / count, one.y + (other.y - one.y) * n / count) for n in range(count + 1)
        ]
    return spots


def label_marks(
    placed: Sequence[tuple[str, Spot]], points: Mapping[str, Spot], data: Mapping[str, Datum], width: float
) -> list[alt.Chart]:
    """Return a text per placed label. points: pixels of the points; data: their values; width: of the plot, pixels."""
    shown = alt.ExprRef(f"width < {0.85 * width:.0f} ? 0 : 1")
    return [
        alt.Chart(alt.InlineData(values=[{**data[text], "text": text}]))
        .mark_text(
            fontSize=LABEL_SIZE, dx=spot.x - points[text].x, dy=points[text].y - spot.y, opacity=shown, aria=False
        )
        .encode(text="text:N")
        for text, spot in placed
    ]
