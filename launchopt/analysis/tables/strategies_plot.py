"""The remedies as a picture: a panel a workload, a bar a mode, one SVG on a white card.

In: `remedies.RemedyTable`. Out: an SVG file (or what the suffix says, such as PNG). Bars are speed-ups of wall time
over the baseline, whiskers their 95% bootstrap intervals, fastest first; each panel has an axis of its own. What failed
is left out, what refused is named. Needs matplotlib (the `report` extra).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from launchopt.analysis.tables.columns import mode_name
from launchopt.analysis.tables.rows import stream_title
from launchopt.analysis.tables.speedup_plot import LEGEND, colour_of, draw_bars
from launchopt.analysis.tables.strategies import RemedyTable
from launchopt.errors import ConfigError
from launchopt.statistics.interval import Interval

_COLUMNS = 2
_WIDTH, _BAR_HEIGHT, _FRAME_HEIGHT = 7.0, 0.27, 1.5  # of a panel, inches
_TITLE_CHARACTERS = 88

_Bars = list[tuple[str, Interval, str]]


def draw_remedies(tables: Sequence[RemedyTable], path: Path) -> None:
    """Write the picture to `path`; ConfigError where matplotlib or anything to draw is missing."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plot", path, "needs matplotlib: pip install 'launchopt[report]'") from None
    panels = [(table, bars) for table in tables if (bars := _bars(table))]
    if not panels:
        raise ConfigError("plot", path, "no speed-up to draw: no verified, untraced line has a baseline")
    columns = min(_COLUMNS, len(panels))
    rows = [panels[at : at + columns] for at in range(0, len(panels), columns)]
    heights = [_FRAME_HEIGHT + _BAR_HEIGHT * max(len(bars) for _, bars in row) for row in rows]
    # A fixed salt and no date: the same rows give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "launchopt", "font.size": 9}):
        figure = Figure((_WIDTH * columns, 0.8 + sum(heights)), facecolor="white", layout="constrained")
        grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
        for axes, (table, bars) in zip(grid.flat, panels, strict=False):
            _draw(axes, table, bars)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        machines = dict.fromkeys(str(table.stream["gpu"] or table.stream["device"].upper()) for table, _ in panels)
        figure.suptitle(f"Speed-up over the baseline, {', '.join(machines)}", x=0.01, ha="left", fontsize=11)
        figure.supxlabel(LEGEND, x=0.01, ha="left", fontsize=9)
        suffix = path.suffix.removeprefix(".") or "svg"
        figure.savefig(path, format=suffix, dpi=110, metadata={"Date": None} if suffix == "svg" else None)


def _bars(table: RemedyTable) -> _Bars:
    several = len({remedy.line.configuration for remedy in table.remedies}) > 1
    bars = []
    for remedy in table.remedies:
        line = remedy.line
        if line.speedup is not None:
            settings = f" · {line.configuration}" if several else ""
            bars.append((mode_name(line) + settings, line.speedup, colour_of(line.verdict)))
    return bars


def _draw(axes: Any, table: RemedyTable, bars: _Bars) -> None:
    axes.set_facecolor("white")
    draw_bars(axes, bars)
    stream = table.stream
    model = f", {stream['model']}" if stream["model"] else ""
    refused = [f"refused: {', '.join(sorted(table.refused))}"] if table.refused else []
    failed = [remedy.line["mode"] for remedy in table.remedies if remedy.line.problem is not None]
    lines = [f"{stream_title(stream)}{model}", *refused, *([f"failed: {', '.join(failed)}"] if failed else [])]
    axes.set_title("\n".join(fill(line, _TITLE_CHARACTERS) for line in lines), loc="left", fontsize=9)
