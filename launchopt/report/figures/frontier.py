"""Figures of a sweep of bucket size and timeout: two heat maps, and throughput against tail latency.

In: a frontier. Out: figures; without a sweep each is an `Absent`.
"""

from __future__ import annotations

import math

import altair as alt

from launchopt.analysis.frontier.points import Frontier, Point
from launchopt.analysis.stream_rows import digits
from launchopt.analysis.tables.columns import count, number
from launchopt.analysis.tables.labels import Axis, Box, Label, Spot, place
from launchopt.analysis.tables.speedup_plot import ticks
from launchopt.report.figures.base import SHAPES, Absent, Datum, Figure, finished
from launchopt.report.figures.marks import LABEL_GAP, LABEL_SIZE, Scaled, label_marks

HEAT_TITLE = "Timeout x bucket"
FRONTIER_TITLE = "Throughput against tail latency"
HEAT_READING = (
    "Dark is low, bright is high, on a logarithmic scale; each cell has its number. "
    "\u25cf on the frontier, \u2605 recommended, ! overloaded: its latencies grow with the length of the run."
)
FRONTIER_READING = (
    "A point is a configuration, labelled max_batch / timeout: medians over repeats. The line joins the points that no "
    "other equals or beats in both."
)
_PLOT = Box(0.0, 0.0, 520.0, 320.0)  # size for which the labels of points are placed, pixels
_SWEEP = "experiment=timeout_bucket, or -m batching.max_batch=16,64 batching.timeout_us=50,150"
_DARK_SHARE = 0.45
_METRICS = {"p99_us": "p99 latency, us", "throughput_per_s": "throughput, {unit}/s"}


def is_sweep(frontier: Frontier) -> bool:
    """Return whether the points have more than one bucket size or timeout."""
    return len({(point.max_batch, point.timeout_us) for point in frontier.points}) > 1


def frontier_figures(frontier: Frontier) -> list[Figure | Absent]:
    """Return two heat maps per mode with buckets, of the p99 and of the throughput; then the frontier."""
    if not is_sweep(frontier):
        why = "one bucket size and one timeout were tried"
        return [Absent(title, why, _SWEEP) for title in (HEAT_TITLE, FRONTIER_TITLE)]
    maps = [_heat_map(frontier, mode, metric) for mode in frontier.mapped_modes for metric in _METRICS]
    return [*maps, _scatter(frontier)]


def _values(frontier: Frontier, points: list[Point]) -> list[Datum]:
    return [
        {
            **{"mode": point.mode, "max_batch": point.max_batch, "timeout_us": point.timeout_us},
            **{"p99_us": point.p99_us, "throughput_per_s": point.throughput_per_s},
            **{"batching": point.batching, "standing": _standing(frontier, point), "mark": _mark(frontier, point)},
            "batch_size": point.batch_size_mean,
        }
        for point in points
    ]


def _standing(frontier: Frontier, point: Point) -> str:
    if point.overloaded:
        return "overloaded"
    if point == frontier.recommended:
        return "recommended"
    return "on the frontier" if point in frontier.frontier else "beaten"


def _mark(frontier: Frontier, point: Point) -> str:
    """Return the sign beside a cell's number. It says the same as the colour, for readers who do not see it."""
    return {"overloaded": " !", "recommended": " \u2605", "on the frontier": " \u25cf"}.get(
        _standing(frontier, point), ""
    )


def _tooltips(unit: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("mode:N"),
        alt.Tooltip("batching:N", title="max_batch / timeout"),
        alt.Tooltip("p99_us:Q", title="p99, us", format=",.1f"),
        alt.Tooltip("throughput_per_s:Q", title=f"{unit}/s", format=",.0f"),
        alt.Tooltip("batch_size:Q", title="commands a batch, mean", format=",.1f"),
        alt.Tooltip("standing:N"),
    ]


def _heat_map(frontier: Frontier, mode: str, metric: str) -> Figure | Absent:
    label = _METRICS[metric].format(unit=frontier.unit)
    title = f"{HEAT_TITLE}: {label}, {mode}"
    values = _values(frontier, [point for point in frontier.measured if point.mode == mode])
    if not values:
        return Absent(title, "no point was verified and timed", _SWEEP)
    write = number if metric == "p99_us" else count
    low, high = _span([each[metric] for each in values])
    for each in values:
        each["text"] = f"{write(each[metric])}{each['mark']}"
        # The scale is dark at its low end, where the text is white.
        each["dark"] = math.log(each[metric] / low) < _DARK_SHARE * math.log(high / low)
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X("timeout_us:O", title="timeout, us", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("max_batch:O", title="max_batch, commands", sort="descending"),
        tooltip=_tooltips(frontier.unit),
    )
    scale = alt.Scale(type="log", scheme="cividis", nice=False, domain=[low, high])
    cells = base.mark_rect().encode(color=alt.Color(f"{metric}:Q", title=label, scale=scale, legend=None))
    colour = alt.condition("datum.dark", alt.value("#ffffff"), alt.value("#111111"))
    texts = base.mark_text(fontSize=12).encode(text="text:N", color=colour)
    rows = len({each["max_batch"] for each in values})
    return finished(title, "", alt.layer(cells, texts), max(120, 46 * rows), reading=HEAT_READING)


def _span(numbers: list[float]) -> tuple[float, float]:
    """Return the smallest and the largest number, at least a fifth apart: noise must not look like an effect."""
    low, high = min(numbers), max(numbers)
    wider = max(1.0, (1.2 * low / high) ** 0.5)
    return low / wider, high * wider


def _scatter(frontier: Frontier) -> Figure | Absent:
    values = _values(frontier, frontier.measured)
    if not values:
        return Absent(FRONTIER_TITLE, "no point was verified and timed", _SWEEP)
    rates, latencies = ([each[name] for each in values] for name in ("throughput_per_s", "p99_us"))
    # The throughputs of an open loop hardly differ, so the axis spans at least 3% of the largest one.
    margin = max(0.15 * (max(rates) - min(rates)), 0.015 * max(rates))
    across = Axis(min(rates) - margin, max(rates) + margin, is_log=False, pixels=_PLOT.right)
    most = max([*latencies, frontier.slo_p99_us or 0.0])
    space = max(1.2, (most / min(latencies)) ** 0.08)
    up = Axis(min(latencies) / space, most * space, is_log=True, pixels=_PLOT.top)
    scale = alt.Scale(domain=[across.low, across.high], nice=False, zero=False)
    x_axis = alt.Axis(format=",.5~r", tickCount=alt.ExprRef("width < 480 ? 3 : 5"))
    x = alt.X("throughput_per_s:Q", title=f"{frontier.unit}/s: more is better", scale=scale, axis=x_axis)
    y_scale = alt.Scale(type="log", domain=[up.low, up.high], nice=False)
    y_axis = alt.Axis(format=",~g", values=ticks(up.low, up.high))
    y = alt.Y("p99_us:Q", title="p99 latency, us (log): less is better", scale=y_scale, axis=y_axis)
    modes = list(dict.fromkeys(each["mode"] for each in values))
    standings = ["beaten", "on the frontier", "recommended", "overloaded"]
    standings = [one for one in standings if any(each["standing"] == one for each in values)]
    base = alt.Chart(alt.InlineData(values=values)).encode(x=x, y=y)
    legend = alt.Legend(title="mode") if len(modes) > 1 else None
    marks = base.mark_point(size=80, filled=True).encode(
        shape=alt.Shape("mode:N", scale=alt.Scale(domain=modes, range=list(SHAPES[: len(modes)])), legend=legend),
        color=alt.Color("standing:N", scale=alt.Scale(domain=standings), legend=alt.Legend(title=None)),
        tooltip=_tooltips(frontier.unit),
    )
    line = base.transform_filter("datum.standing == 'on the frontier' || datum.standing == 'recommended'")
    layers = [line.mark_line(strokeWidth=1).encode(order="throughput_per_s:Q"), marks]
    layers += [text.encode(x=x, y=y) for text in _names(frontier, across, up)]
    note = ""
    if frontier.slo_p99_us is not None:
        limit = alt.Chart(alt.InlineData(values=[{"slo": frontier.slo_p99_us}])).mark_rule(strokeDash=[6, 4])
        layers.append(limit.encode(y="slo:Q"))
        note = f"Dashed: the objective, p99 of {digits(frontier.slo_p99_us)} us."
    return finished(FRONTIER_TITLE, note, alt.layer(*layers), int(_PLOT.top), reading=FRONTIER_READING, is_wide=True)


def _names(frontier: Frontier, across: Axis, up: Axis) -> list[alt.Chart]:
    """Return the labels of the points on the frontier, beside their points and off the line, if there is space."""

    def spot(point: Point) -> Spot:
        return Spot(across.pixel(point.throughput_per_s or 0.0), up.pixel(point.p99_us or 0.0))

    points = sorted(frontier.measured, key=lambda point: point not in frontier.frontier)
    labels = [Label(point.batching, spot(point), LABEL_GAP, is_needed=False) for point in points]
    lines = [[spot(point) for point in frontier.frontier]]
    placed = place(labels[: len(frontier.frontier)], lines, _PLOT, [label.spot for label in labels], LABEL_SIZE)
    return label_marks(placed, Scaled("throughput_per_s", across), Scaled("p99_us", up), _PLOT.right)
