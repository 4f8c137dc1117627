"""Throughput against tail latency as a picture, and why batches were flushed, on a white card.

In: `frontier.Frontier`. Out: an Altair chart. A panel per stream; a dot per configuration, labelled
max_batch/timeout_us, its colour the mode. A dot is hollow where arrivals overloaded the configuration, and may then be
outside: the axes are those of the other dots. Failed configurations are left out. Below are the shares of the reasons
for which batches were flushed. Needs Altair (the `report` extra).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import altair as alt

from launchopt.analysis.frontier.points import Frontier, Point
from launchopt.analysis.stream_rows import arrivals, digits, disorder, number_types, timeout
from launchopt.analysis.tables.labels import FONT_SIZE, Axis, Box, Label, Spot, place
from launchopt.analysis.tables.legend import DOT, STAR, Entry, legend
from launchopt.analysis.tables.speedup_plot import INK, SERIES_COLOURS, Chart, Panel, is_log, on_card, ticks
from launchopt.files import JsonObject

# Readable for the common kinds of colour blindness (Okabe and Ito, 2008), and in grey.
_REASON_COLOURS = {"full": "#1b4965", "deadline": "#e07a5f", "idle": "#81b29a", "stall": "#f2cc8f", "drain": "#c9c9c9"}
_WHITE = "#ffffff"
_MOST_COLUMNS = 3
_WIDTH, _HEIGHT, _FLUSH_HEIGHT = 420, 370, 115  # sizes of a panel, pixels
_BIG_STAR = 190  # square pixels
_DOT_GAP, _STAR_GAP = 6.0, 11.0  # pixels from the centre of a dot to its label


def frontier_chart(frontiers: Sequence[Frontier]) -> Chart | None:
    """Return the picture of all frontiers; None if no verified, untraced point has a latency."""
    shown = [frontier for frontier in frontiers if frontier.measured]
    if not shown:
        return None
    modes = sorted({point.mode for frontier in shown for point in frontier.measured})
    colours = {mode: SERIES_COLOURS[i % len(SERIES_COLOURS)] for i, mode in enumerate(modes)}
    panels = [alt.vconcat(_dots(frontier, colours), _flushes(frontier.measured)) for frontier in shown]
    columns = min(len(shown), _MOST_COLUMNS)
    grid = alt.concat(*panels, columns=columns, spacing=24)
    title = alt.TitleParams(text=_title(shown), fontSize=15, offset=12)
    return on_card(alt.vconcat(grid, legend(_entries(shown, colours), columns * _WIDTH), title=title))


def _title(frontiers: Sequence[Frontier]) -> str:
    """Return the machine, workload and dtype of all panels. The title of a panel has what differs between panels."""
    machines = dict.fromkeys(str(frontier["gpu"] or frontier["device"].upper()) for frontier in frontiers)
    works = dict.fromkeys(
        " ".join([*(str(frontier[name]) for name in ("workload", "model") if frontier[name]), _types(frontier)])
        for frontier in frontiers
    )
    return f"Throughput against p99 latency — {', '.join([*machines, *works])}"


def _types(frontier: Frontier) -> str:
    return number_types(frontier.stream)


def _panel_title(frontier: Frontier) -> list[str]:
    order = disorder(frontier.stream)
    parts = [frontier["workload"], _types(frontier), arrivals(frontier.stream)]
    parts += [f"{name} {frontier[name]}" for name in ("scheduler", "sampling") if frontier[name]]
    return [", ".join(map(str, parts)), *([f"({order})"] if order else []), _answer(frontier)]


def _answer(frontier: Frontier) -> str:
    parts = []
    if frontier.recommended is not None:
        parts.append(f"★ {_named(frontier.recommended)}")
    elif frontier.slo_p99_us is not None:
        parts.append(
            "nothing keeps the objective" + (f"; closest {_mark(frontier.closest)}" if frontier.closest else "")
        )
    overloaded = sum(point.overloaded for point in frontier.measured)
    parts += [f"{overloaded} overloaded"] if overloaded else []
    return "; ".join(parts)


def _named(point: Point) -> str:
    return f"{point.mode}, {point.batching}"


def _mark(point: Point) -> str:
    waited = "—" if point.timeout_us is None else timeout(point.timeout_us)
    return f"{'—' if point.max_batch is None else point.max_batch}/{waited}"


class _Unit(NamedTuple):
    """A unit of time."""

    name: str
    us: float


def _unit(frontier: Frontier) -> _Unit:
    """Return the unit of a panel's latencies."""
    largest_us = max(point.p99_us or 0.0 for point in _framing(frontier))
    return _Unit("ms", 1e3) if largest_us >= 1e4 else _Unit("us", 1.0)


def _framing(frontier: Frontier) -> list[Point]:
    """Return the points that the axes must show. Overloaded ones are left out, since they may be far away."""
    points = frontier.measured
    return [point for point in points if point.claims] or points


def _objective(frontier: Frontier) -> float | None:
    """Return the objective for the p99, in the panel's unit; None without one."""
    return None if frontier.slo_p99_us is None else frontier.slo_p99_us / _unit(frontier).us


def _data(frontier: Frontier, point: Point) -> Spot:
    """Return x and y of a point: throughput per s, and p99 in the panel's unit."""
    return Spot(point.throughput_per_s or 0.0, (point.p99_us or 0.0) / _unit(frontier).us)


def _axes(frontier: Frontier) -> tuple[Axis, Axis]:
    """Return the axes x and y. They show the framing points and the objective, with space for labels."""
    xs, ys = zip(*(_data(frontier, point) for point in _framing(frontier)), strict=True)
    objective = _objective(frontier)
    ys = ys if objective is None else (*ys, objective)
    margin = max(1.25, (max(ys) / min(ys)) ** 0.12)
    y = Axis(min(ys) / margin, max(ys) * margin, is_log=True, pixels=_HEIGHT)
    if is_log(xs):
        margin = (max(xs) / min(xs)) ** 0.12
        return Axis(min(xs) / margin, max(xs) * margin, is_log=True, pixels=_WIDTH), y
    # The throughputs of an open loop hardly differ. The axis spans at least 2% of the largest one, or noise would look
    # like an effect.
    margin = max(0.15 * (max(xs) - min(xs)), 0.01 * max(xs))
    return Axis(min(xs) - margin, max(xs) + margin, is_log=False, pixels=_WIDTH), y


def _visible(frontier: Frontier) -> list[Point]:
    """Return the points within the axes."""
    axes = _axes(frontier)

    def is_within(point: Point) -> bool:
        return all(axis.low <= value <= axis.high for axis, value in zip(axes, _data(frontier, point), strict=True))

    return [point for point in frontier.measured if is_within(point)]


def _encoding(axis: Axis, **more: object) -> JsonObject:
    """Return the scale and axis of an encoding."""
    scale = alt.Scale(type="log" if axis.is_log else "linear", domain=[axis.low, axis.high], nice=False, zero=False)
    labelled = {"values": ticks(axis.low, axis.high)} if axis.is_log else {"tickCount": 5}
    return {"scale": scale, "axis": alt.Axis(format=",.8~g", grid=True, gridColor="#e6e6e6", **labelled), **more}


def _dots(frontier: Frontier, colours: Mapping[str, str]) -> Panel:
    x_axis, y_axis = _axes(frontier)
    log = " (log)" if x_axis.is_log else ""
    x = alt.X("x:Q", **_encoding(x_axis, title=f"{frontier.unit}/s{log} — more is better"))
    y_title = f"p99 latency of a command, {_unit(frontier).name} (log) — less is better"
    y = alt.Y("y:Q", **_encoding(y_axis, title=y_title))

    def chart(values: Sequence[JsonObject]) -> alt.Chart:
        return alt.Chart(alt.InlineData(values=list(values))).encode(x=x, y=y)

    joined = [_data(frontier, point)._asdict() for point in frontier.frontier]
    dots = [_dot(frontier, point, colours) for point in _visible(frontier)]
    labels = [
        {"text": label.text, "x": x_axis.value(centre.x), "y": y_axis.value(centre.y)}
        for label, centre in _labels(frontier)
    ]
    style = {
        "fill": alt.Fill("fill:N", scale=None),
        "stroke": alt.Stroke("stroke:N", scale=None),
        "opacity": alt.Opacity("opacity:Q", scale=None),
        "shape": alt.Shape("shape:N", scale=None),
        "size": alt.Size("size:Q", scale=None),
    }
    layers: list[alt.Chart] = [
        chart(joined).mark_line(color=INK, strokeWidth=1).encode(order="x:Q"),
        chart(dots).mark_point(strokeWidth=1.2).encode(**style),
        chart(labels).mark_text(fontSize=FONT_SIZE, color=INK).encode(text="text:N"),
    ]
    objective = _objective(frontier)
    if objective is not None:
        line = alt.Chart(alt.InlineData(values=[{"y": objective}]))
        layers.append(line.mark_rule(color=INK, strokeDash=[5, 3]).encode(y=y))
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=_panel_title(frontier))


def _dot(frontier: Frontier, point: Point, colours: Mapping[str, str]) -> JsonObject:
    colour, is_chosen = colours[point.mode], point == frontier.recommended
    return {
        **_data(frontier, point)._asdict(),
        "fill": _WHITE if point.overloaded and not is_chosen else colour,
        "stroke": INK if is_chosen else colour,
        "opacity": 1.0 if is_chosen or point in frontier.frontier else 0.6,
        "shape": STAR if is_chosen else "circle",
        "size": _BIG_STAR if is_chosen else DOT,
    }


def _labels(frontier: Frontier) -> list[tuple[Label, Spot]]:
    """Return the labels max_batch/timeout of the dots, and their centres in pixels.

    A dot off the frontier has none if there is no space for it.
    """
    x_axis, y_axis = _axes(frontier)

    def pixels(point: Point) -> Spot:
        data = _data(frontier, point)
        return Spot(x_axis.pixel(data.x), y_axis.pixel(data.y))

    # The most important points come first.
    points = sorted(_visible(frontier), key=lambda p: (p != frontier.recommended, p not in frontier.frontier))
    labels = [
        Label(_mark(p), pixels(p), _STAR_GAP if p == frontier.recommended else _DOT_GAP, p in frontier.frontier)
        for p in points
    ]
    lines = [[pixels(point) for point in frontier.frontier]]
    objective = _objective(frontier)
    if objective is not None:
        lines.append([Spot(0.0, y_axis.pixel(objective)), Spot(_WIDTH, y_axis.pixel(objective))])
    return place(labels, lines, Box(0.0, 0.0, _WIDTH, _HEIGHT))


def _flushes(points: Sequence[Point]) -> Panel:
    """Return stacked bars of the reasons for flushes, in percent, with a bar per configuration."""
    several = len({point.mode for point in points}) > 1
    names = [f"{_mark(point)}{f' {point.mode}' if several else ''}" for point in points]
    values = [
        {"number": i, "low": low, "high": high, "colour": _REASON_COLOURS[reason]}
        for i, point in enumerate(points)
        for reason, low, high in _stacked(point.flush_shares or {})
    ]
    # Bars have numbers, since two configurations may have one name.
    named, size = f"{json.dumps(names)}[datum.value]", FONT_SIZE if len(points) <= 30 else 6
    axis = alt.Axis(labelExpr=named, labelAngle=-90, labelFontSize=size, labelLimit=0, labelOverlap=False)
    scale = alt.Scale(domain=list(range(len(points))))
    bars = alt.Chart(alt.InlineData(values=values), width=_WIDTH, height=_FLUSH_HEIGHT).mark_bar()
    encoded: alt.Chart = bars.encode(
        x=alt.X("number:O", scale=scale, axis=axis, title=None),
        y=alt.Y("low:Q", scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(tickCount=5), title="flushes, %"),
        y2="high:Q",
        color=alt.Color("colour:N", scale=None),
    )
    return encoded


def _stacked(shares: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Return each reason with the percentages at which its bar begins and ends."""
    found, low = [], 0.0
    for reason in _REASON_COLOURS:
        high = low + 100 * shares.get(reason, 0.0)
        found += [(reason, low, high)] if high > low else []
        low = high
    return found


def _entries(frontiers: Sequence[Frontier], colours: Mapping[str, str]) -> list[Entry]:
    entries = [Entry("dot", mode, colour, colour) for mode, colour in colours.items()]
    chosen = [frontier.recommended for frontier in frontiers if frontier.recommended]
    if chosen:
        label = f"recommended: {_named(chosen[0])}" if len(frontiers) == 1 else "recommended: named above its panel"
        entries.append(Entry("star", label, INK, _WHITE))
    if any(point.overloaded for frontier in frontiers for point in frontier.measured):
        entries.append(Entry("dot", "overloaded", INK, _WHITE))
    entries.append(Entry("line", "frontier", INK, INK))
    objectives = [frontier.slo_p99_us for frontier in frontiers if frontier.slo_p99_us is not None]
    if objectives:
        entries.append(Entry("dashes", f"objective: p99 of {digits(objectives[0])} us", INK, INK))
    seen = {r for f in frontiers for p in f.measured for r, share in (p.flush_shares or {}).items() if share}
    entries += [Entry("patch", f"flush: {name}", each, each) for name, each in _REASON_COLOURS.items() if name in seen]
    return entries
