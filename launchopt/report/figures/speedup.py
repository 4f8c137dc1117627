"""Speed-ups: a bar per mode of one stream of commands, or the fastest mode of every stream, with intervals.

In: a table of strategies, or glances. Out: a figure. Its axis is logarithmic, and its bars start at 1x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import altair as alt

from launchopt.analysis.stream_rows import counted
from launchopt.analysis.tables.columns import speedup, three_digits
from launchopt.analysis.tables.rows import Line
from launchopt.analysis.tables.speedup_plot import bases_of, label_space, metrics_of, ticks
from launchopt.analysis.tables.strategies import StrategyTable
from launchopt.report.figures.base import Absent, Chart, Datum, Figure, finished, series_names
from launchopt.report.glance import Glance
from launchopt.statistics.interval import Interval, Verdict

TITLE = "Speed-up of every mode"
STREAMS_TITLE = "Speed-up of the fastest mode"
READING = (
    "Speed-up: wall time of the base over that of the mode, or the metric that the figure names, paired repeat by "
    "repeat; the axis is logarithmic. The "
    "whisker is the 95% interval; fewer than 5 repeats have none. A line that failed or was not verified is left out."
)
_RECORDS = "a run of the base beside the mode: against=[baseline]"
_MOST_STREAMS = 12  # streams with a row each; more of them share a row per workload
_FASTER, _SLOWER, _SAME = "faster", "slower", "no difference shown"
# Each has a contrast of at least 3:1 on the light page and on the dark one.
_COLOURS = {_FASTER: "#0072b2", _SLOWER: "#d55e00", _SAME: "#808080"}
_STEP, _TEXT_STEP = 22, 40  # height of a row, without and with a text above its bar, pixels
_WIDTH, _LABEL = 640.0, 150.0  # widths of a plot and of a label for which the axis has space, pixels


def modes_figure(table: StrategyTable) -> Figure | Absent:
    """Return a bar per mode of one stream, in the order of its table."""
    lines = [each.line for each in table.strategies if each.line.speedup is not None]
    if not lines:
        return Absent(TITLE, "no verified mode has a base beside it", _RECORDS)
    over = _over(lines)
    rows = [_datum(name + over(line), name, line) for name, line in zip(series_names(lines), lines, strict=True)]
    chart = _layers(rows, alt.Axis(title=None, domain=False, ticks=False, labelLimit=190), 0)
    note = f"Over {bases_of(lines)}{metrics_of(lines)}."
    return finished(TITLE, note, chart, _STEP * len(rows), reading=READING, is_wide=True)


def streams_figure(glances: Sequence[Glance]) -> Figure | Absent:
    """Return a row per stream with its fastest mode. More than 12 streams share a row per workload and dtype."""
    known = [(one, line) for one in glances if (line := one.best or one.best_measured)]
    if not known:
        return Absent(STREAMS_TITLE, "no verified mode has a base beside it", _RECORDS)
    lines = [line for _, line in known]
    note = f"Over {bases_of(lines)}{metrics_of(lines)}.{_without(len(glances) - len(known))}"
    if len(known) > _MOST_STREAMS:
        return _shared_rows(known, note)
    over = _over(lines)
    rows = [_datum(f"{one.name}: {line['mode']}{over(line)}", one.name, line) for one, line in known]
    return finished(STREAMS_TITLE, note, _layers(rows, None, 10), _TEXT_STEP * len(rows), reading=READING, is_wide=True)


def _shared_rows(known: Sequence[tuple[Glance, Line]], note: str) -> Figure:
    """Return a row per workload and dtype, with a mark per stream. note: on all streams."""
    groups: dict[str, list[tuple[str, Line]]] = {}
    for one, line in known:
        groups.setdefault(f"{one.table['workload']} {one.table.number_types}", []).append((one.name, line))
    rows = []
    for group, members in groups.items():
        gains = sorted(_speedup(line).value for _, line in members)
        span = " to ".join(f"{three_digits(gain)}x" for gain in dict.fromkeys((gains[0], gains[-1])))
        text = f"{group}: {span}, {counted(len(members), 'stream')}"
        rows += [_datum(text, name, line, group) for name, line in members]
    note = f"A mark is one stream of commands; the table \u201cAt a glance\u201d has its number. {note}"
    chart = _layers(rows, None, 10, with_bars=False)
    return finished(STREAMS_TITLE, note, chart, _TEXT_STEP * len(groups), reading=READING, is_wide=True)


def _over(lines: Sequence[Line]) -> Callable[[Line], str]:
    """Return a function from a line to the name of its base; to nothing if all have the same base."""
    is_one = len({_base(line) for line in lines}) == 1
    return lambda line: "" if is_one else f" over {_base(line)}"


def _base(line: Line) -> str:
    return bases_of([line])


def _without(more: int) -> str:
    return f" {more} more {'stream has' if more == 1 else 'streams have'} no base to compare with." if more else ""


def _speedup(line: Line) -> Interval:
    if line.speedup is None:
        raise ValueError(f"{line['mode']} has no speed-up")
    return line.speedup


def _datum(text: str, work: str, line: Line, row: str = "") -> Datum:
    ratio = _speedup(line)
    words: Mapping[Verdict | None, str] = {Verdict.FASTER: _FASTER, Verdict.SLOWER: _SLOWER}
    low = ratio.value if ratio.low is None else min(ratio.low, ratio.value)
    high = ratio.value if ratio.high is None else max(ratio.high, ratio.value)
    return {
        **{"row": row or text, "text": text, "work": work, "mode": str(line["mode"]), "base": _base(line)},
        **{"value": ratio.value, "low": low, "high": high, "end": max(1.0, high), "one": 1.0},
        **{"has_interval": ratio.low is not None, "verdict": words.get(line.verdict, _SAME)},
        **{"long": speedup(line), "short": str(ratio).partition(" ")[0]},
    }


def _layers(rows: list[Datum], axis: alt.Axis | None, down: int, *, with_bars: bool = True) -> Chart:
    """Return bars, or marks alone, with whiskers and values. down: pixels from the middle of a row to its bar."""
    low, high = min(1.0, *(each["low"] for each in rows)) / 1.06, max(each["end"] for each in rows) * 1.06
    right = label_space(low, high, _WIDTH, _LABEL) if with_bars else high
    scale = alt.Scale(type="log", domain=[low, right], nice=False)
    values = alt.ExprRef(f"width < 400 ? {ticks(low, right, 4)} : {ticks(low, right, 8)}")
    x_axis = alt.Axis(format=",~g", values=values, grid=False, labelOverlap=False, tickCount=20)
    x = alt.X("value:Q", scale=scale, axis=x_axis, title="speed-up, x (log)")
    order = list(dict.fromkeys(each["row"] for each in rows))
    firsts = {each["row"]: each for each in reversed(rows)}
    rows = [{**each, "is_first": each is firsts[each["row"]]} for each in rows]
    y = alt.Y("row:N", sort=order, scale=alt.Scale(domain=order), axis=axis, title=None)
    verdicts = [each for each in _COLOURS if any(row["verdict"] == each for row in rows)]
    colours = alt.Scale(domain=verdicts, range=[_COLOURS[each] for each in verdicts])
    colour = alt.Color("verdict:N", scale=colours, legend=alt.Legend(title=None))
    tooltip = [
        *(
            alt.Tooltip("work:N"),
            alt.Tooltip("mode:N"),
            alt.Tooltip("base:N"),
            alt.Tooltip("long:N", title="speed-up [95%]"),
        ),
        alt.Tooltip("verdict:N"),
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(y=y, tooltip=tooltip)
    known = base.transform_filter("datum.has_interval")
    shown = (
        base.mark_bar(height=12, yOffset=down).encode(x=x, x2="one:Q", color=colour)
        if with_bars
        else base.mark_tick(thickness=4, height=14, yOffset=down, opacity=1).encode(x=x, color=colour)
    )
    of_row = base.transform_filter("datum.is_first")
    layers = [
        of_row.mark_tick(thickness=1, height=18, yOffset=down, opacity=1).encode(x="one:Q"),
        shown,
        known.mark_rule(yOffset=down).encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
        *(
            known.mark_tick(thickness=1, height=7, yOffset=down, opacity=1).encode(x=f"{end}:Q")
            for end in ("low", "high")
        ),
    ]
    if with_bars:
        named = base.transform_calculate(shown="width < 480 ? datum.short : datum.long")
        layers.append(named.mark_text(align="left", dx=6, dy=down).encode(x="end:Q", text="shown:N"))
    if axis is None:
        above = of_row.mark_text(align="left", dy=-down, limit=alt.ExprRef("width"))
        layers.append(above.encode(x=alt.value(0), text="text:N"))
    return alt.layer(*layers)
