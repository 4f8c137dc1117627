"""Legend of a picture that has marks of several kinds: dots, stars, lines and patches.

In: entries. Out: an Altair chart, to be placed below the panels. Needs Altair (the `report` extra).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt

from launchopt.analysis.tables.speedup_plot import INK, Panel

STAR = "M0,-1 0.25,-0.35 0.95,-0.31 0.4,0.13 0.59,0.81 0,0.43 -0.59,0.81 -0.4,0.13 -0.95,-0.31 -0.25,-0.35Z"
DOT, _SMALL_STAR = 42, 120  # areas, square pixels
_ENTRY_WIDTH, _ENTRY_HEIGHT, _MARK_WIDTH = 250, 20, 26  # sizes in the legend, pixels


class Entry(NamedTuple):
    """A mark with its label."""

    kind: str  # shape of the mark: dot, star, line, dashes or patch
    label: str
    colour: str
    fill: str


def legend(entries: Sequence[Entry], width: int) -> Panel:
    """Return all entries in columns, filled row by row. width: pixels."""
    columns = max(1, width // _ENTRY_WIDTH)
    values = [
        {**entry._asdict(), "x": i % columns * _ENTRY_WIDTH, "y": (i // columns + 0.5) * _ENTRY_HEIGHT}
        | {"middle": i % columns * _ENTRY_WIDTH + _MARK_WIDTH / 2, "end": i % columns * _ENTRY_WIDTH + _MARK_WIDTH}
        for i, entry in enumerate(entries)
    ]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=alt.Y("y:Q", scale=None, axis=None),
        fill=alt.Fill("fill:N", scale=None),
        stroke=alt.Stroke("colour:N", scale=None),
    )
    x, middle = alt.X("x:Q", scale=None, axis=None), alt.X("middle:Q", scale=None, axis=None)

    def of(kind: str) -> alt.Chart:
        return base.transform_filter(f"datum.kind == '{kind}'")

    text = alt.Chart(alt.InlineData(values=values)).mark_text(align="left", dx=6, color=INK, fontSize=11)
    rows = -(-len(entries) // columns)
    return alt.layer(
        of("dot").mark_point(size=DOT, opacity=1).encode(x=middle),
        of("star").mark_point(size=_SMALL_STAR, shape=STAR, opacity=1).encode(x=middle),
        of("line").mark_rule().encode(x=x, x2="end:Q"),
        of("dashes").mark_rule(strokeDash=[5, 3]).encode(x=x, x2="end:Q"),
        of("patch").mark_bar(size=11).encode(x=x, x2="end:Q"),
        text.encode(x=alt.X("end:Q", scale=None, axis=None), y=alt.Y("y:Q", scale=None, axis=None), text="label:N"),
    ).properties(width=width, height=rows * _ENTRY_HEIGHT)
