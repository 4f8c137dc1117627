"""Distribution of the commands' latencies: a cumulative curve per mode, with p50 and p99 marked.

In: a table and the histograms of its repeats. Out: a figure.
"""

from __future__ import annotations

import altair as alt

from launchopt.analysis.frontier.points import Histograms
from launchopt.analysis.tables.columns import pair
from launchopt.analysis.tables.rows import Line, Table
from launchopt.analysis.tables.speedup_plot import ticks
from launchopt.report.figures.base import (
    DASHES,
    SHAPES,
    Absent,
    Chart,
    Datum,
    Figure,
    finished,
    left_out,
    series_names,
    shown_lines,
)
from launchopt.statistics.histogram import LogHistogram

TITLE = "Latency of a command"
READING = (
    "A curve is the share of the commands whose latency, enqueue to results, is at most that of the x axis. It covers "
    "the commands of all repeats whose launches were timed. The marks and the numbers below the figure are the medians "
    "of the repeats' p50 and p99, as in the tables; so a mark can lie beside its curve."
)
_MARKED = (50.0, 99.0)
_PERCENTS = sorted({0.1, 0.5, *(float(at) for at in range(1, 100, 2)), 98.0, *_MARKED, 99.5, 99.9, 99.99, 100.0})


def latency_figure(table: Table, histograms: Histograms) -> Figure | Absent:
    """Return the cumulative distribution of the latency, enqueue to results on the device, over all repeats."""
    lines = shown_lines(table)
    names, values, latencies = series_names(lines), [], []
    for name, line in zip(names, lines, strict=True):
        merged = histograms.merged(line.rows, "latency")
        if merged is None or not merged.count:
            continue
        values += _curve(name, merged) + _marks(name, line)
        latencies.append(f"{name} {pair(line.median('latency_p50_us'), line.median('latency_p99_us'))} us")
    if not values:
        why = "no repeat that may be compared has a histogram of latencies"
        return Absent(TITLE, why, "schema version 2 and later writes histograms.parquet with every run")
    note = f"p50 / p99, medians over repeats: {'; '.join(latencies)}."
    return finished(TITLE, note + left_out(table, lines), _chart(values, names), reading=READING)


def _curve(name: str, histogram: LogHistogram) -> list[Datum]:
    points = []
    for percent in _PERCENTS:
        latency_ns = histogram.percentile(percent)
        if latency_ns:  # a logarithmic axis has no 0
            points.append({"mode": name, "us": latency_ns / 1e3, "percent": percent, "marked": False})
    return points


def _marks(name: str, line: Line) -> list[Datum]:
    """Return p50 and p99 as the tables have them: medians over the repeats."""
    medians = [(percent, line.median(f"latency_p{percent:g}_us")) for percent in _MARKED]
    return [{"mode": name, "us": us, "percent": percent, "marked": True} for percent, us in medians if us]


def _chart(values: list[Datum], names: list[str]) -> Chart:
    data = alt.InlineData(values=values)
    legend = alt.Legend(title="mode", symbolSize=120)
    latencies = [each["us"] for each in values]
    low, high = min(latencies) / 1.05, max(latencies) * 1.05
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    x = alt.X("us:Q", scale=scale, title="latency, us (log)", axis=alt.Axis(format="~s", values=ticks(low, high, 6)))
    named = " : ".join(f"datum.value == {at:g} ? 'p{at:g}'" for at in _MARKED)
    levels = alt.Axis(values=[0, 25, _MARKED[0], 75, _MARKED[1]], labelExpr=f"{named} : datum.label")
    y = alt.Y("percent:Q", title="commands at or below, %", scale=alt.Scale(domain=[0, 100]), axis=levels)
    colour = alt.Color("mode:N", sort=names, scale=alt.Scale(domain=names), legend=legend)
    dash = alt.StrokeDash("mode:N", scale=alt.Scale(domain=names, range=list(DASHES[: len(names)])), legend=legend)
    tooltip = [
        alt.Tooltip("mode:N"),
        alt.Tooltip("us:Q", title="latency, us", format=",.2f"),
        alt.Tooltip("percent:Q", title="percentile", format="~g"),
    ]
    base = alt.Chart(data).encode(x=x, y=y)
    curves = base.transform_filter("!datum.marked")
    lines = curves.mark_line(strokeWidth=2, interpolate="step-after").encode(
        color=colour, strokeDash=dash, order="percent:Q"
    )
    shape = alt.Shape("mode:N", scale=alt.Scale(domain=names, range=list(SHAPES[: len(names)])), legend=legend)
    marks = (
        base.transform_filter("datum.marked")
        .mark_point(size=70, filled=True)
        .encode(color=colour, shape=shape, tooltip=tooltip)
    )
    hover = curves.mark_point(size=120, opacity=0, aria=False).encode(tooltip=tooltip)
    return alt.layer(lines, marks, hover)
