"""Batch sizes: the share of the commands in batches of each size.

In: a table and the histograms of its repeats. Out: a figure of every mode that has a histogram.
"""

from __future__ import annotations

import altair as alt

from launchopt.analysis.frontier.points import Histograms
from launchopt.analysis.tables.rows import Table
from launchopt.report.figures.base import Absent, Chart, Datum, Figure, finished, left_out, series_names
from launchopt.statistics.histogram import LogHistogram

TITLE = "Commands by the size of their batch"
READING = "A bar is all commands of a mode, by the number of commands in their batch. A batch is what one flush gave."
_STEP = 22  # height of a row, pixels


def batch_figure(table: Table, histograms: Histograms) -> Figure | Absent:
    """Return a stacked bar per mode of the shares by batch size, in powers of two."""
    lines = [line for line in table.lines if line.problem is None]
    names, values, drawn = series_names(lines), [], []
    for name, line in zip(names, lines, strict=True):
        merged = histograms.merged(line.rows, "batch_size")
        if merged is not None and merged.count:
            values += [{"mode": name, **each} for each in shares(merged)]
            drawn.append(line)
    if not values:
        why = "no repeat that may be compared has a histogram of batch sizes"
        return Absent(TITLE, why, "schema version 2 and later writes histograms.parquet with every run")
    shown = [name for name in names if any(each["mode"] == name for each in values)]
    return finished(TITLE, left_out(table, drawn).strip(), _chart(values, shown), _STEP * len(shown), reading=READING)


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
    sizes = [_label(octave) for octave in sorted({each["octave"] for each in values})]
    colours = alt.Scale(domain=sizes, scheme="viridis")
    chart: Chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar(height=14)
        .encode(
            y=alt.Y("mode:N", sort=names, title=None, axis=alt.Axis(labelLimit=190)),
            x=alt.X("percent:Q", title="commands, %", scale=alt.Scale(domain=[0, 100]), stack="zero"),
            color=alt.Color("size:O", sort=sizes, scale=colours, legend=alt.Legend(title="commands a batch")),
            order=alt.Order("octave:Q"),
            tooltip=[
                alt.Tooltip("mode:N"),
                alt.Tooltip("size:N", title="commands a batch"),
                alt.Tooltip("percent:Q", title="share of the commands, %", format=".1f"),
                alt.Tooltip("batches:Q", format=",", title="batches, all repeats"),
            ],
        )
    )
    return chart
