"""Waterfalls as a picture: a panel per order, a bar per choice between the times before and after it.

In: `steps.Waterfall`. Out: an Altair chart on a white card, or the layers of one panel for a page. The first and the
last bar are the times of the first and the last arm. The whisker is the 95% interval of what the choice brings. A first
choice that brings most of the time would hide the others: its bars end at the edge. Needs Altair (the `report` extra).
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

import altair as alt

from launchopt.analysis.stream_rows import stream_title
from launchopt.analysis.tables.columns import number
from launchopt.analysis.tables.speedup_plot import INK, Chart, Panel, on_card
from launchopt.analysis.waterfall.markdown import waterfall_title
from launchopt.analysis.waterfall.steps import Step, Waterfall
from launchopt.files import JsonObject

STEP = 22  # height of a row, pixels
_TOTAL, _SAVES, _COSTS, _OPEN = "time of a step", "saves time", "costs time", "no difference shown"
# Each has a contrast of at least 3:1 on a light page and on a dark one (Okabe and Ito, 2008).
_COLOURS = {_TOTAL: "#009e73", _SAVES: "#0072b2", _COSTS: "#d55e00", _OPEN: "#808080"}
LEGEND = ("Whiskers: 95% interval. Grey: no difference shown, or fewer than 5 repeats.",)
_HIDES = 4.0  # a first arm that takes this many times as long as the second has bars that end at the edge
_MANY_US = 5.0  # times up to this have ticks with decimals
_LABEL = 0.42  # share of a plot's width that the texts beside the bars take
_COLUMNS, _WIDTH, _CHARACTERS = 2, 330, 56  # of a picture: panels in a row, pixels and characters of a panel


class Style(NamedTuple):
    """Looks of lines and texts. ink: their colour; None: the page sets it. values: an expression for texts of bars.

    kinds: all kinds of bars of the picture, whose panels share one scale of colours; none: those of the panel.
    """

    ink: str | None = None
    values: str = "width < 260 ? datum.short : datum.long"
    kinds: Sequence[str] = ()


ON_PAGE = Style()


def waterfall_chart(found: Sequence[Waterfall]) -> Chart | None:
    """Return the picture of all waterfalls; None if there are none."""
    if not found:
        return None
    machines = dict.fromkeys(str(one.stream["gpu"] or one.stream["device"].upper()) for one in found)
    title = alt.TitleParams(
        text=f"What each choice of a stack brings, {', '.join(machines)}", subtitle=list(LEGEND), fontSize=15, offset=14
    )
    kinds = [kind for kind in _COLOURS if any(kind in _kinds(one) for one in found)]
    panels = [_panel(one, Style(INK, "datum.long", kinds)) for one in found]
    grid = alt.concat(*panels, columns=min(_COLUMNS, len(panels)), align="each", spacing=18, title=title)
    return on_card(grid.resolve_scale(x="independent", y="independent"))


def _kinds(one: Waterfall) -> list[str]:
    """Return the kinds of the bars of one order, in the order of the legend."""
    found = {_TOTAL, *map(_kind, one.steps)}
    return [kind for kind in _COLOURS if kind in found]


def _kind(step: Step) -> str:
    return {1: _SAVES, -1: _COSTS}.get(step.sign or 0, _OPEN)


def _panel(one: Waterfall, style: Style) -> Panel:
    model = f", {one.stream['model']}" if one.stream["model"] else ""
    text = wrap(f"{stream_title(one.stream)}{model}", _CHARACTERS)
    left_out = [f"left out: {', '.join(one.left_out)}"] if one.left_out else []
    notes = [waterfall_title(one), *left_out]
    title = alt.TitleParams(text=text, subtitle=[part for note in notes for part in wrap(note, _CHARACTERS + 8)])
    layers = waterfall_layers(one, style)
    panel: Panel = layers.properties(width=_WIDTH, height=STEP * rows_of(one), title=title)
    return panel


def rows_of(one: Waterfall) -> int:
    """Return the number of bars."""
    return len(one.steps) + 2


def waterfall_layers(one: Waterfall, style: Style = ON_PAGE) -> alt.LayerChart | alt.FacetChart:
    """Return the bars of one order with whiskers and values, without a size."""
    edge = _edge(one)
    rows = [_total("first", one.first, one.whole.before_us, edge), *(_datum(at, each, edge) for at, each in _at(one))]
    rows.append(_total("last", one.whole.mode, one.whole.after_us, edge))
    order = [row["row"] for row in rows]
    axis = alt.Axis(
        title=None, domain=False, ticks=False, labelLimit=190, labelExpr="slice(datum.label, indexof(datum.label, ' '))"
    )
    y = alt.Y("row:N", sort=order, scale=alt.Scale(domain=order), axis=axis)
    scale = alt.Scale(domain=[0, edge / (1 - _LABEL)], nice=False)
    ticks = alt.Axis(values=_ticks(edge), format=",.0f" if edge >= _MANY_US else "~g", grid=False)
    x = alt.X("start:Q", scale=scale, axis=ticks, title=f"{one.unit}{_cut_note(one)}")
    kinds = list(style.kinds or _kinds(one))
    colours = alt.Scale(domain=kinds, range=[_COLOURS[kind] for kind in kinds])
    colour = alt.Color("kind:N", scale=colours, legend=alt.Legend(title=None, orient="bottom", columns=2))
    tooltip = [
        *(alt.Tooltip("name:N", title="choice"), alt.Tooltip("mode:N"), alt.Tooltip("long:N", title="us [95%]")),
        *(alt.Tooltip("share:N", title="share of the whole"), alt.Tooltip("kind:N", title="what")),
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(y=y, tooltip=tooltip)
    known = base.transform_filter("datum.has_interval")
    ink = alt.Undefined if style.ink is None else style.ink
    named = base.transform_calculate(shown=style.values)
    return alt.layer(
        base.mark_bar(height=13).encode(x=x, x2="end:Q", color=colour),
        known.mark_rule(color=ink).encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
        *(known.mark_tick(thickness=1, height=7, opacity=1, color=ink).encode(x=f"{end}:Q") for end in ("low", "high")),
        named.mark_text(align="left", dx=6, color=ink).encode(x="text:Q", text="shown:N"),
    )


def _at(one: Waterfall) -> list[tuple[str, Step]]:
    return [(str(at), step) for at, step in enumerate(one.steps, 1)]


def _is_cut(one: Waterfall) -> bool:
    return len(one.steps) > 1 and one.whole.before_us > _HIDES * one.steps[0].after_us


def _edge(one: Waterfall) -> float:
    """Return the time at which bars end, in us."""
    steps = one.steps[1:] if _is_cut(one) else one.steps
    highest = max(max(step.before_us, step.after_us) for step in steps)
    return highest * (1.12 if _is_cut(one) else 1.0)


def _cut_note(one: Waterfall) -> str:
    return f" (the first bars go on to {number(one.whole.before_us)})" if _is_cut(one) else ""


def _ticks(edge: float) -> list[float]:
    """Return up to five round values from 0 to the edge."""
    step = next(each for each in _rounds(edge) if edge / each <= 5)
    return [n * step for n in range(int(edge / step) + 1)]


def _rounds(edge: float) -> list[float]:
    power = 10.0 ** (len(str(int(edge))) - 2) if edge >= 1 else 0.001
    return [factor * power for factor in (1, 2, 2.5, 5, 10, 20, 25, 50, 100, 1000, 1e6)]


def _total(place: str, mode: str, time_us: float, edge: float) -> JsonObject:
    text = f"{number(time_us)} us"
    end = min(time_us, edge)
    return {
        **{"row": f"{place} {mode}", "name": mode, "mode": mode, "kind": _TOTAL, "share": "", "has_interval": False},
        **{"start": 0.0, "end": end, "low": end, "high": end, "text": end, "long": text, "short": text},
    }


def _datum(place: str, step: Step, edge: float) -> JsonObject:
    """Return the bar of a step. Its whisker lies around the time after it."""
    low, high = (
        step.after_us if each is None else step.before_us - each for each in (step.brings.high, step.brings.low)
    )
    start, end, low, high = (min(max(0.0, each), edge) for each in (step.before_us, step.after_us, low, high))
    return {
        **{"row": f"{place} {step.choice}", "name": step.choice, "mode": step.mode},
        **{"kind": _kind(step), "has_interval": step.sign is not None},
        **{"share": "" if step.share is None else f"{step.share:.1%}"},
        **{"start": start, "end": end, "low": low, "high": high, "text": max(start, end, high)},
        **{"long": str(step.brings), "short": str(step.brings).partition(" us")[0]},
    }
