"""Speed-ups as a picture: a bar per line of a table, on a white card.

In: `rows.Table`. Out: an Altair chart. A bar is the speed-up of wall time over the base; its whisker is the 95%
interval. Failed and traced lines are left out. Needs Altair (the `report` extra).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import altair as alt

from launchopt.analysis.line_names import labelled
from launchopt.analysis.metric import WALL, name_of, unless_wall
from launchopt.analysis.tables.rows import BASELINE, Line, Table
from launchopt.files import JsonObject
from launchopt.statistics.interval import Interval, Verdict

Chart: TypeAlias = alt.TopLevelMixin  # a whole picture
Panel: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart

INK = "#222222"
LEGEND = ("Whiskers: 95% interval. Blue: faster. Orange: slower. Grey: no difference shown, or fewer than 5 repeats.",)
# Readable for the common kinds of colour blindness (Okabe and Ito, 2008).
SERIES_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#222222")
# Readable in grey, too.
_COLOURS = {Verdict.FASTER: "#0072B2", Verdict.SLOWER: "#D55E00"}
_UNDECIDED_COLOUR = "#8c8c8c"
_LOG_SPREAD = 10.0  # largest over smallest value, above which an axis is logarithmic
_WIDTH = 440  # default width of the bars of a panel, pixels
_STEP = 22  # height of a bar with its gap, pixels
_LABEL = 52  # width of a label beside a bar, pixels
_FONT_SIZE = 12
_MOST_TICKS = 8


class Bar(NamedTuple):
    """One speed-up with its label; a label may have several lines."""

    label: str
    speedup: Interval
    verdict: Verdict | None
    metric: str = WALL
    base: str = BASELINE


def speedup_chart(tables: Sequence[Table]) -> Chart | None:
    """Return the picture of all tables; None if no line has a speed-up."""
    untraced = [table for table in tables if not table["traced"]]
    devices = sorted({_device(table) for table in untraced})
    bars = [
        Bar(_label(table, line, len(devices) > 1), line.speedup, line.verdict, line.metric, bases_of([line]))
        for table in untraced
        for line in table.lines
        if line.speedup is not None
    ]
    if not bars:
        return None
    text = title_text((line for table in untraced for line in table.lines), devices)
    title = alt.TitleParams(text=text, subtitle=list(LEGEND))
    return on_card(bar_panel(bars, title))


def bases_of(lines: Iterable[Line]) -> str:
    """Return the modes that speed-ups are over: `baseline`."""
    return ", ".join(dict.fromkeys(str(line.baseline["mode"]) for line in lines if line.baseline)) or "the base"


def metrics_of(lines: Iterable[Line]) -> str:
    """Return the metric of speed-ups, if it is not wall time in all: ` in median latency`."""
    return unless_wall(line.metric for line in lines if line.speedup is not None)


def title_text(lines: Iterable[Line], devices: Iterable[str]) -> str:
    """Return the title of a picture: `Speed-up over the baseline, NVIDIA H200`."""
    shown = list(lines)
    bases = bases_of(shown)
    over = "the baseline" if bases == BASELINE else bases
    return f"Speed-up{metrics_of(shown)} over {over}, {', '.join(devices)}"


def _device(table: Table) -> str:
    return str(table["gpu"] or table["device"].upper())


def _label(table: Table, line: Line, with_device: bool) -> str:
    label = f"{table['workload']} {table.number_types} · {labelled(line, table.lines)}"
    return f"{label}\n{_device(table)}" if with_device else label


def on_card(chart: Chart) -> Chart:
    """Return a top-level chart on white, in the style that all pictures share."""
    card = chart.configure(background="white", padding=10).configure_view(stroke=None)
    title = {"fontWeight": "bold", "fontSize": _FONT_SIZE, "subtitleFontSize": 11, "subtitleColor": INK}
    card = card.configure_title(anchor="start", frame="group", color=INK, subtitlePadding=4, **title)
    ink = dict.fromkeys(("domainColor", "tickColor", "labelColor", "titleColor"), INK)
    sizes = {"labelFontSize": _FONT_SIZE, "titleFontSize": 11}
    styled: Chart = card.configure_axis(grid=False, titleFontWeight="normal", labelLimit=0, **sizes, **ink)
    return styled


def is_log(values: Sequence[float]) -> bool:
    """Return whether values differ by so much that an axis of them should be logarithmic."""
    return max(values) / min(values) > _LOG_SPREAD


def ticks(low: float, high: float, most: int = _MOST_TICKS) -> list[float]:
    """Return the labelled values of a logarithmic axis: round numbers, as many as possible up to `most`."""
    step = 10.0 ** math.floor(math.log10(high - low))
    steps = [factor * step for factor in (0.1, 0.2, 0.5, 1)]
    even = [[n * step for n in range(math.ceil(low / step), int(high / step) + 1)] for step in steps]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    powers = [[f * 10.0**n for n in decades for f in factors] for factors in (range(1, 10), (1, 2, 5), (1, 3), (1,))]
    thinned = [[10.0**n for n in decades if n % every == 0] for every in (2, 3, 5)]
    # Even steps suit a range within one decade; over more, they would crowd at its end.
    choices = [*(even if high / low < _LOG_SPREAD / 2 else []), *powers, *thinned]
    within = [[float(f"{value:.6g}") for value in choice if low <= value <= high] for choice in choices]
    return max((choice for choice in within if len(choice) <= most), key=len, default=[])


def label_space(low: float, high: float, width: float, label: float = _LABEL) -> float:
    """Return the end of a logarithmic axis of `width` pixels that leaves `label` pixels beyond `high`."""
    share = label / width
    return high * math.pow(high / low, share / (1 - share))


def bar_panel(bars: Sequence[Bar], title: alt.TitleParams, width: int = _WIDTH, below: Sequence[str] = ()) -> Panel:
    """Return horizontal bars from 1x on a logarithmic axis, with whiskers and values, in order.

    below: more lines under the axis.
    """
    values = [_values(bar) for bar in bars]
    low = min(1.0, *(each["low"] for each in values)) / 1.08
    high = max(1.0, *(each["high"] for each in values)) * 1.03
    right = label_space(low, high, width)
    scale = alt.Scale(type="log", domain=[low, right], nice=False, zero=False)
    axis = alt.Axis(format=",~g", values=ticks(low, right, max(3, width // 48)))
    time = " or ".join(dict.fromkeys(name_of(bar.metric) for bar in bars))
    base_mode = " or ".join(dict.fromkeys(bar.base for bar in bars))
    x = alt.X("value:Q", scale=scale, axis=axis, title=[f"{time} of {base_mode} / {time} (x, log scale)", *below])
    y = alt.Y(
        "label:N",
        sort=None,
        axis=alt.Axis(title=None, domain=False, ticks=False, labelExpr=r"split(datum.label, '\n')"),
    )
    base = alt.Chart(alt.InlineData(values=[{**each, "one": 1.0} for each in values])).encode(y=y)
    one = alt.Chart(alt.InlineData(values=[{"one": 1.0}]))
    # Without an interval there is no whisker: one of no length would claim certainty.
    known = base.transform_filter("datum.has_interval")
    layers = [
        base.mark_bar(size=0.62 * _STEP).encode(x=x, x2="one:Q", color=alt.Color("colour:N", scale=None)),
        known.mark_rule(color=INK).encode(x="low:Q", x2="high:Q"),
        *(known.mark_tick(color=INK, size=7, thickness=1).encode(x=f"{end}:Q") for end in ("low", "high")),
        one.mark_rule(color=INK, strokeWidth=1).encode(x="one:Q"),
        base.mark_text(align="left", dx=5, color=INK, fontSize=_FONT_SIZE).encode(x="end:Q", text="text:N"),
    ]
    return alt.layer(*layers).properties(width=width, height=_STEP * len(bars), title=title)


def _values(bar: Bar) -> JsonObject:
    ratio = bar.speedup
    # Student's interval need not contain the value; a whisker starts or ends at the value then.
    return {
        "label": bar.label,
        "value": ratio.value,
        "low": ratio.value if ratio.low is None else min(ratio.low, ratio.value),
        "high": ratio.value if ratio.high is None else max(ratio.high, ratio.value),
        # A label stands to the right of its whisker and of the line at 1x, so that it lies on neither.
        "end": max(1.0, ratio.value, ratio.high or 0.0),
        "has_interval": ratio.low is not None,
        "colour": _COLOURS.get(bar.verdict or Verdict.UNDECIDED, _UNDECIDED_COLOUR),
        "text": str(ratio).split(" ")[0],
    }
