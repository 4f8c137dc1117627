"""The factor of several GPUs over one as a picture: a line for each work, on a white card.

In: lines. Out: an Altair chart. Both axes are logarithmic; the dashed line is a factor of N on N GPUs. Needs Altair
(the `report` extra).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import altair as alt

from launchopt.analysis.tables.speedup_plot import INK, SERIES_COLOURS, Chart, on_card

Line: TypeAlias = tuple[str, Mapping[int, float]]  # a work, and its factor over one GPU by the number of GPUs
_WIDTH, _HEIGHT = 440, 300  # pixels


def scaling_chart(lines: Sequence[Line]) -> Chart | None:
    """Return the picture of all lines; None without one."""
    if not lines:
        return None
    counts = sorted({1} | {count for _, factors in lines for count in factors})
    values = [
        {"work": work, "gpus": count, "factor": factor}
        for work, factors in lines
        for count, factor in ({1: 1.0} | dict(factors)).items()
    ]
    scale = alt.Scale(type="log", base=2, domain=[1, counts[-1]], nice=False)
    x = alt.X("gpus:Q", scale=scale, axis=alt.Axis(values=counts, title="GPUs", format="d"))
    y = alt.Y("factor:Q", scale=scale, axis=alt.Axis(values=counts, title="factor over one GPU", format="d"))
    names = [work for work, _ in lines]
    colours = [SERIES_COLOURS[i % len(SERIES_COLOURS)] for i in range(len(names))]
    legend = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=0, labelColor=INK, symbolType="stroke")
    colour = alt.Color("work:N", scale=alt.Scale(domain=names, range=colours), legend=legend)
    drawn = alt.Chart(alt.InlineData(values=values)).mark_line(point=True, clip=False).encode(x=x, y=y, color=colour)
    ideal = [{"gpus": count, "factor": count} for count in (1, counts[-1])]
    dashes = alt.Chart(alt.InlineData(values=ideal)).mark_line(strokeDash=[4, 4], color="#8c8c8c").encode(x=x, y=y)
    layers = alt.layer(dashes, drawn, title="Several GPUs over one", width=_WIDTH, height=_HEIGHT)
    return on_card(layers)
