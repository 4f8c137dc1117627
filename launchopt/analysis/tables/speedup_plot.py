"""Speed-ups as a picture: one SVG that needs nothing else, on a white card, so that any page can show it.

In: `tables.Table`. Out: an SVG file. Bars are speed-ups of wall time over the baseline, whiskers their 95%
bootstrap intervals. Failed and traced lines are left out. Needs matplotlib (the `report` extra).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launchopt.analysis.tables.rows import Line, Table
from launchopt.errors import ConfigError
from launchopt.statistics.interval import Interval, Verdict

# Readable in grey and for the common kinds of colour blindness (Okabe and Ito, 2008).
_COLOURS = {Verdict.FASTER: "#0072B2", Verdict.SLOWER: "#D55E00"}
_UNDECIDED_COLOUR = "#8c8c8c"
LEGEND = "whiskers: 95% bootstrap interval\nblue: FASTER, orange: SLOWER, grey: neither shown"
_LOG_SPREAD = 10.0


def draw_speedups(tables: Sequence[Table], path: Path) -> None:
    """Write the SVG to `path`; ConfigError where matplotlib or anything to draw is missing."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plot", path, "needs matplotlib: pip install 'launchopt[report]'") from None
    devices = sorted({_device(table) for table in tables if not table["traced"]})
    bars = [
        (_label(table, line, len(devices) > 1), line.speedup, colour_of(line.verdict))
        for table in tables
        for line in table.lines
        if line.speedup is not None and not table["traced"]
    ]
    if not bars:
        raise ConfigError("plot", path, "no speed-up to draw: no verified, untraced line has a baseline")
    # A fixed salt and no date: the same rows give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "launchopt", "font.size": 9}):
        figure = Figure(figsize=(9, 1.6 + 0.32 * len(bars)), facecolor="white", layout="constrained")
        axes = figure.add_subplot(facecolor="white")
        draw_bars(axes, bars)
        axes.set_xlabel(f"{axes.get_xlabel()}\n{LEGEND}")
        axes.set_title(f"Speed-up over the baseline, {', '.join(devices)}", loc="left")
        figure.savefig(path, format="svg", metadata={"Date": None})


def _device(table: Table) -> str:
    return str(table["gpu"] or table["device"].upper())


def _label(table: Table, line: Line, with_device: bool) -> str:
    label = f"{table['workload']} {table['dtype']} · {line['mode']} · {line.configuration}"
    return f"{label}\n{_device(table)}" if with_device else label


def colour_of(verdict: Verdict | None) -> str:
    """The colour of a bar that this is said of."""
    return _COLOURS.get(verdict or Verdict.UNDECIDED, _UNDECIDED_COLOUR)


def draw_bars(axes: Any, bars: Sequence[tuple[str, Interval, str]]) -> None:
    """Horizontal bars of (label, speed-up, colour) with whiskers; logarithmic where they differ much."""
    labels, ratios, colours = zip(*bars, strict=True)
    places = range(len(bars))
    values = [ratio.value for ratio in ratios]
    # A percentile interval need not hold the value itself; a whisker cannot be of negative length.
    below = [0.0 if ratio.low is None else max(0.0, ratio.value - ratio.low) for ratio in ratios]
    above = [0.0 if ratio.high is None else max(0.0, ratio.high - ratio.value) for ratio in ratios]
    is_log = max(values) / min(values) > _LOG_SPREAD
    left = 0.8 * min(1.0, *values) if is_log else 0.0
    axes.barh(places, [value - left for value in values], left=left, color=colours, height=0.62)
    # Where there is no interval there is no whisker either: one of no length would claim certainty.
    known = [place for place, ratio in enumerate(ratios) if ratio.low is not None]
    lengths = [[below[place] for place in known], [above[place] for place in known]]
    at = [values[place] for place in known]
    axes.errorbar(at, known, xerr=lengths, fmt="none", ecolor="#222222", capsize=2.5, linewidth=1)
    axes.axvline(1.0, color="#222222", linewidth=0.8, linestyle="--")
    if is_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    right = max(value + extra for value, extra in zip(values, above, strict=True))
    axes.set_xlim(left, right * (2.0 if is_log else 1.25))
    for place, ratio, extra in zip(places, ratios, above, strict=True):
        where = (ratio.value + extra, place)
        offset = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(str(ratio).split(" ")[0], where, **offset)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    scale = ", log scale" if is_log else ""
    axes.set_xlabel(f"wall time of baseline / wall time (x{scale})")
    axes.spines[["top", "right"]].set_visible(False)
