"""Speed-ups as a picture: a bar per line of a table, on a white card.

In: `rows.Table`. Out: an Altair chart. A bar is the speed-up of wall time over the baseline; its whisker is the 95%
bootstrap interval. Failed and traced lines are left out. Needs Altair (the `report` extra).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import altair as alt

from launchopt.analysis.tables.rows import Line, Table
from launchopt.files import JsonObject
from launchopt.statistics.interval import Interval, Verdict

Chart: TypeAlias = alt.TopLevelMixin  # a whole picture
Panel: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart

INK = "#222222"
LEGEND = ("whiskers: 95% bootstrap interval", "blue: FASTER, orange: SLOWER, grey: neither shown")
# Readable in grey and for the common kinds of colour blindness (Okabe and Ito, 2008).
_COLOURS = {Verdict.FASTER: "#0072B2", Verdict.SLOWER: "#D55E00"}
_UNDECIDED_COLOUR = "#8c8c8c"
_LOG_SPREAD = 10.0  # largest over smallest value, above which an axis is logarithmic
_WIDTH = 460  # width of a panel, pixels
_STEP = 28  # height of a bar with its gap, pixels


class Bar(NamedTuple):
    """One speed-up with its label; a label may have several lines."""

    label: str
    speedup: Interval
    verdict: Verdict | None


def speedup_chart(tables: Sequence[Table]) -> Chart | None:
    """Return the picture of all tables; None where no line has a speed-up."""
    untraced = [table for table in tables if not table["traced"]]
    devices = sorted({_device(table) for table in untraced})
    bars = [
        Bar(_label(table, line, len(devices) > 1), line.speedup, line.verdict)
        for table in untraced
        for line in table.lines
        if line.speedup is not None
    ]
    if not bars:
        return None
    return on_card(bar_panel(bars, [f"Speed-up over the baseline, {', '.join(devices)}"], LEGEND))


def _device(table: Table) -> str:
    return str(table["gpu"] or table["device"].upper())


def _label(table: Table, line: Line, with_device: bool) -> str:
    label = f"{table['workload']} {table['dtype']} · {line['mode']} · {line.configuration}"
    return f"{label}\n{_device(table)}" if with_device else label


def on_card(chart: Chart) -> Chart:
    """Return a top-level chart on white, in the style that all pictures share."""
    card = chart.configure(background="white", padding=10).configure_view(stroke=None)
    card = card.configure_title(anchor="start", frame="group", fontWeight="normal", fontSize=12, color=INK)
    ink = dict.fromkeys(("domainColor", "tickColor", "labelColor", "titleColor"), INK)
    styled: Chart = card.configure_axis(grid=False, titleFontWeight="normal", **ink)
    return styled


def is_log(values: Sequence[float]) -> bool:
    """Return whether values differ by so much that an axis of them should be logarithmic."""
    return max(values) / min(values) > _LOG_SPREAD


def ticks(low: float, high: float) -> list[float]:
    """Return the labelled values of a logarithmic axis. The fewer powers of ten it spans, the more labels each has."""
    factors = (1,) if high / low > 300 else (1, 2, 5) if high / low > 5 else tuple(range(1, 10))
    powers = (10.0**power for power in range(-12, 13))
    return [value for power in powers for factor in factors if low <= (value := factor * power) <= high]


def bar_panel(bars: Sequence[Bar], title: Sequence[str], below: Sequence[str] = ()) -> Panel:
    """Return horizontal bars with whiskers and values, in order. below: more lines under the axis."""
    values = [_values(bar) for bar in bars]
    speedups = [bar.speedup.value for bar in bars]
    logarithmic = is_log(speedups)
    left = 0.8 * min(1.0, *speedups) if logarithmic else 0.0
    right = max(each["high"] for each in values) * (2.0 if logarithmic else 1.25)
    scale = alt.Scale(type="log" if logarithmic else "linear", domain=[left, right], nice=False, zero=False)
    axis = alt.Axis(format=",~g", **({"values": ticks(left, right)} if logarithmic else {"tickCount": 5}))
    what = f"wall time of baseline / wall time (x{', log scale' if logarithmic else ''})"
    x = alt.X("value:Q", scale=scale, axis=axis, title=[what, *below])
    labels = alt.Axis(labelLimit=0, title=None, labelExpr=r"split(datum.label, '\n')")
    y = alt.Y("label:N", sort=None, axis=labels)
    base = alt.Chart(alt.InlineData(values=[{**each, "left": left} for each in values])).encode(y=y)
    one = alt.Chart(alt.InlineData(values=[{"one": 1.0}]))
    # Without an interval there is no whisker: one of no length would claim certainty.
    known = base.transform_filter("datum.has_interval")
    layers = [
        base.mark_bar(size=0.62 * _STEP).encode(x=x, x2="left:Q", color=alt.Color("colour:N", scale=None)),
        known.mark_rule(color=INK).encode(x="low:Q", x2="high:Q"),
        *(known.mark_tick(color=INK, size=7, thickness=1).encode(x=f"{end}:Q") for end in ("low", "high")),
        one.mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=0.8).encode(x="one:Q"),
        base.mark_text(align="left", dx=5, color=INK).encode(x="high:Q", text="text:N"),
    ]
    return alt.layer(*layers).properties(width=_WIDTH, height=_STEP * len(bars), title=list(title))


def _values(bar: Bar) -> JsonObject:
    ratio = bar.speedup
    # A percentile interval need not contain the value; a whisker starts or ends at the value then.
    return {
        "label": bar.label,
        "value": ratio.value,
        "low": ratio.value if ratio.low is None else min(ratio.low, ratio.value),
        "high": ratio.value if ratio.high is None else max(ratio.high, ratio.value),
        "has_interval": ratio.low is not None,
        "colour": _COLOURS.get(bar.verdict or Verdict.UNDECIDED, _UNDECIDED_COLOUR),
        "text": str(ratio).split(" ")[0],
    }
