"""Parts that all figures share: a drawn `Figure`, an `Absent` one with its reason, and the lines that they show.

Figures are Altair charts without colours, except where a colour has a meaning. The script of the page sets those of
the light or the dark theme. Series differ in dash and marker as well as in colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from launchopt.analysis.tables.columns import mode_name, short_configuration
from launchopt.analysis.tables.rows import Line, Table
from launchopt.errors import printable_within
from launchopt.files import JsonObject

if TYPE_CHECKING:
    import altair as alt

Chart: TypeAlias = "alt.Chart | alt.LayerChart | alt.FacetChart"
Datum = JsonObject  # one data row of a chart, or a specification

MOST_SERIES = 6
ALL_MODES = "All modes, medians over repeats"  # title of the table that holds every line
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 2, 1, 2, 1, 2])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
HEIGHT = 260


@dataclass(frozen=True, slots=True)
class Figure:
    """A Vega-Lite specification with its title and the sentence below it.

    reading: how to read any figure of this kind; the page shows it once. zooms: the user can move the time axis.
    is_wide: the figure takes the whole width of the page.
    """

    title: str
    note: str
    spec: Datum
    reading: str = ""
    zooms: bool = False
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """A figure that cannot be drawn: its content, the reason, and the setting that would record its data."""

    title: str
    why: str
    remedy: str


def finished(
    title: str,
    note: str,
    chart: Chart,
    height: int = HEIGHT,
    *,
    reading: str = "",
    zooms: bool = False,
    is_wide: bool = False,
) -> Figure:
    """Return a chart as wide as its container, with a description for screen readers."""
    spec = chart.properties(width="container", height=height, description=f"{title}. {note}".rstrip()).to_dict()
    spec = printable_within(spec)
    spec.pop("config", None)  # the page sets the theme
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return Figure(title, note, spec, reading, zooms, is_wide or zooms)


def shown_lines(table: Table, most: int = MOST_SERIES) -> list[Line]:
    """Return the baseline and the best other lines, up to `most`; failed lines are left out."""
    sound = [line for line in table.lines if line.problem is None]
    baselines = [line for line in sound if line.is_baseline][:1]
    column = "wall_ms" if table["arrival"] == "closed" else "latency_p99_us"

    def rank(line: Line) -> float:
        value = line.median(column)
        return math.inf if value is None else value

    others = sorted((line for line in sound if not line.is_baseline), key=rank)
    return [*baselines, *others][:most]


def left_out(table: Table, shown: Sequence[Line]) -> str:
    """Return a sentence that names the table of all modes, if a figure does not show all of them."""
    more = len(table.lines) - len(shown)
    if more <= 0:
        return ""
    return f" {more} more {'line is' if more == 1 else 'lines are'} in the table \u201c{ALL_MODES}\u201d."


def series_names(lines: Sequence[Line]) -> list[str]:
    """Return a name per line: its mode; with max_batch / timeout, and the run, where modes repeat."""
    names = [mode_name(line) for line in lines]
    if len(set(names)) < len(names):
        is_one_mode = len(set(names)) == 1
        batchings = [short_configuration(line).replace(", ", " / ") for line in lines]
        names = [f"{'' if is_one_mode else f'{name}, '}{one}" for name, one in zip(names, batchings, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name}, run {line['run_id']}" for name, line in zip(names, lines, strict=True)]
    return names
