"""Figures of times: wall, GPU busy and CPU time per command and mode; and the stages of one launch, if measured.

In: all modes of a stream, or a calibration. Out: figures.
"""

from __future__ import annotations

import altair as alt

from launchopt.analysis.submits import submit_ms
from launchopt.analysis.tables.strategies import StrategyLine, StrategyTable
from launchopt.analysis.verdict.calibration import Calibration
from launchopt.report.figures.base import Absent, Chart, Datum, Figure, finished, series_names

TITLE = "Where the time of a command goes"
STAGES_TITLE = "Stages of one launch"
READING = (
    "Wide bar: wall time a command. Diamond: CPU time in launch calls, which overlaps with the work. Narrow bar, where "
    "there is one: time with a kernel running, by CUPTI in traced runs of the same work. A narrow bar longer than the "
    "wide one: the tracer slowed the kernels."
)
_WALL, _BUSY, _HOST = "wall time", "GPU busy (traced)", "CPU time in launch calls"


def time_figure(table: StrategyTable) -> Figure | Absent:
    """Return the wall time per command, the GPU's busy time within it, and the CPU time in launch calls."""
    sound = [strategy for strategy in table.strategies if strategy.line.problem is None]
    names = series_names([strategy.line for strategy in sound])
    values = [each for name, strategy in zip(names, sound, strict=True) for each in _parts(name, strategy)]
    if not values:
        return Absent(TITLE, "no repeat that may be compared has a wall time", "a run whose results are verified")
    failed = len(table.strategies) - len(sound)
    note = f"{failed} failed and {'is' if failed == 1 else 'are'} not drawn." if failed else ""
    return finished(TITLE, note, _chart(values, names), max(90, 22 * len(names)), reading=READING)


def _parts(name: str, strategy: StrategyLine) -> list[Datum]:
    line = strategy.line
    wall_ms, busy_ms, commands = line.median("wall_ms"), strategy.busy_ms, line.median("commands")
    host_ms = line.median_of(submit_ms)
    if not commands or wall_ms is None:
        return []
    parts = {_WALL: wall_ms * 1e3 / commands}
    if busy_ms is not None:
        parts[_BUSY] = busy_ms * 1e3 / commands
    if host_ms is not None:
        parts[_HOST] = host_ms * 1e3 / commands
    return [{"mode": name, "part": part, "us": us} for part, us in parts.items()]


def _chart(values: list[Datum], names: list[str]) -> Chart:
    parts = [part for part in (_WALL, _BUSY, _HOST) if any(each["part"] == part for each in values)]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=alt.Y("mode:N", sort=names, title=None, scale=alt.Scale(domain=names), axis=alt.Axis(labelLimit=190)),
        x=alt.X("us:Q", title="us a command"),
        tooltip=[
            alt.Tooltip("mode:N"),
            alt.Tooltip("part:N", title="what"),
            alt.Tooltip("us:Q", title="us a command", format=",.3f"),
        ],
    )
    colour = alt.Color(
        "part:N", scale=alt.Scale(domain=parts), legend=alt.Legend(title=None, symbolType="square", symbolOpacity=1)
    )
    marks = {
        _WALL: lambda of: of.mark_bar(height=16, opacity=0.45),
        _BUSY: lambda of: of.mark_bar(height=7),
        _HOST: lambda of: of.mark_point(shape="diamond", size=70, filled=True, opacity=1),
    }
    layers = [marks[part](base.transform_filter(alt.datum.part == part)).encode(color=colour) for part in parts]
    return alt.layer(*layers)


def stages_figure(calibration: Calibration) -> Figure | Absent:
    """Return the stages of one launch that the doctor measured: a bar for the median, a tick for the p99."""
    title = f"{STAGES_TITLE}: {calibration.device['name']}"
    values, order = [], []
    for kernel, stages in calibration.stages.items():
        for stage, times in stages.items():
            if isinstance(times, dict) and times.get("p50_us") is not None:
                label = f"{kernel}: {stage}"
                order.append(label)
                values.append({"stage": label, **{key: times.get(key) for key in ("p50_us", "p99_us", "how")}})
    if not values:
        return Absent(title, "the calibration has no stages", "launchopt doctor --save, on a GPU with CUPTI")
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=alt.Y("stage:N", sort=order, title=None, axis=alt.Axis(labelLimit=190, labelExpr="split(datum.label, ': ')")),
        tooltip=[
            alt.Tooltip("stage:N"),
            alt.Tooltip("p50_us:Q", title="p50, us", format=",.3f"),
            alt.Tooltip("p99_us:Q", title="p99, us", format=",.3f"),
            alt.Tooltip("how:N", title="measured by"),
        ],
    )
    bars = base.mark_bar(height=14).encode(x=alt.X("p50_us:Q", title="us (bar: median, tick: p99)"))
    ticks = base.transform_filter("isValid(datum.p99_us)").mark_tick(thickness=2, size=18).encode(x="p99_us:Q")
    note = f"Measured by the doctor, {calibration.made_utc}, apart from the runs of this page."
    return finished(title, note, alt.layer(bars, ticks), max(120, 34 * len(values)))
