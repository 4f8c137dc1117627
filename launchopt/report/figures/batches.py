"""Batch sizes: the share of the commands in batches of each size.

In: a table and the histograms of its repeats. Out: a figure.
"""

from __future__ import annotations

import altair as alt

from launchopt.analysis.tables.frontier import Histograms
from launchopt.analysis.tables.rows import Table
from launchopt.report.figures.base import Absent, Chart, Datum, Figure, finished, left_out, series_names, shown_lines
from launchopt.statistics.histogram import LogHistogram

TITLE = "Commands by the size of their batch"
_MOST = 4


def batch_figure(table: Table, histograms: Histograms) -> Figure | Absent:
    """Return bars of the shares by batch size, in powers of two, with a bar per mode."""
    lines = shown_lines(table, _MOST)
    names, values = series_names(lines), []
    for name, line in zip(names, lines, strict=True):
        merged = histograms.merged(line.rows, "batch_size")
        if merged is not None and merged.count:
            values += [{"mode": name, **each} for each in shares(merged)]
    if not values:
        why = "no repeat that may be compared has a histogram of batch sizes"
        return Absent(TITLE, why, "schema version 2 and later writes histograms.parquet with every run")
    note = "A batch is what one flush of a bucket gave. Bars stand in the order of the legend."
    return finished(TITLE, note + left_out(table, lines), _chart(values, names), 220)


def shares(histogram: LogHistogram) -> list[Datum]:
    """Return the share of the commands in batches of 1, 2, 3-4, 5-8, ... commands, in percent."""
    commands: dict[int, float] = {}
    batches: dict[int, int] = {}
    for low, high, count in histogram.rows():
        octave = max(0, (low - 1).bit_length())
        commands[octave] = commands.get(octave, 0.0) + (low + high) / 2 * count
        batches[octave] = batches.get(octave, 0) + count
    total = sum(commands.values())
    return [
        {
            "size": _label(octave),
            "octave": octave,
            "percent": 100 * commands[octave] / total,
            "batches": batches[octave],
        }
        for octave in sorted(commands)
        if total
    ]


def _label(octave: int) -> str:
    return str(1 << octave) if octave < 2 else f"{(1 << (octave - 1)) + 1}-{1 << octave}"


def _chart(values: list[Datum], names: list[str]) -> Chart:
    sizes = [_label(octave) for octave in range(min(v["octave"] for v in values), max(v["octave"] for v in values) + 1)]
    x = alt.X(
        "size:N", sort=sizes, scale=alt.Scale(domain=sizes), title="commands a batch", axis=alt.Axis(labelAngle=0)
    )
    colour = alt.Color("mode:N", sort=names, scale=alt.Scale(domain=names), legend=alt.Legend(title="mode"))
    chart: Chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar(stroke=None)
        .encode(
            x=x,
            xOffset=alt.XOffset("mode:N", sort=names, scale=alt.Scale(domain=names)),
            y=alt.Y("percent:Q", title="share of the commands, %", scale=alt.Scale(domain=[0, 100])),
            color=colour,
            tooltip=[
                alt.Tooltip("mode:N"),
                alt.Tooltip("size:N", title="commands a batch"),
                alt.Tooltip("percent:Q", title="share of the commands, %", format=".1f"),
                alt.Tooltip("batches:Q", format=",", title="batches, all repeats"),
            ],
        )
    )
    return chart
