"""Texts beside points, each at its own distance in pixels from its point.

In: places that `labels.place` found for a plot of one width. Out: a layer per text. In a narrower plot points come
closer to each other, so there the texts are hidden; a tooltip has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt

from launchopt.analysis.tables.labels import Axis, Label, Spot

LABEL_GAP = 9.0  # pixels from the centre of a point to its text
LABEL_SIZE = 11.0  # height of the text, pixels


class Scaled(NamedTuple):
    """A column of values, and the axis that shows it."""

    column: str
    axis: Axis


def label_marks(placed: Sequence[tuple[Label, Spot]], x: Scaled, y: Scaled, width: float) -> list[alt.Chart]:
    """Return a text per placed label, at the values of its point. width: of the plot, pixels."""
    shown = alt.ExprRef(f"width < {0.85 * width:.0f} ? 0 : 1")
    charts = []
    for label, centre in placed:
        point = {x.column: x.axis.value(label.spot.x), y.column: y.axis.value(label.spot.y), "text": label.text}
        text = alt.Chart(alt.InlineData(values=[point])).mark_text(
            fontSize=LABEL_SIZE, dx=centre.x - label.spot.x, dy=label.spot.y - centre.y, opacity=shown, aria=False
        )
        charts.append(text.encode(text="text:N"))
    return charts
