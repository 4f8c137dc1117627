"""Roofline: arithmetic intensity against TFLOP/s of each mode under the ceilings of the machine, both logarithmic.

In: the untraced tables of one device. Out: a figure with the ceilings that its runs measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import altair as alt

from launchopt.analysis.tables.bandwidth import needed_gb_per_s
from launchopt.analysis.tables.columns import number
from launchopt.analysis.tables.labels import Axis, Box, Label, Spot, along, place
from launchopt.analysis.tables.rows import Line, Table
from launchopt.analysis.tables.speedup_plot import ticks
from launchopt.report.figures.base import Absent, Chart, Datum, Figure, finished
from launchopt.report.figures.marks import LABEL_GAP, LABEL_SIZE, Scaled, label_marks

TITLE = "Roofline"
_BASELINE, _FASTEST, _OTHER = "baseline", "fastest", "other modes"
_ROLES = [_BASELINE, _FASTEST, _OTHER]
_SHAPES = {_BASELINE: "square", _FASTEST: "triangle-up", _OTHER: "circle"}
_DRAWN = [_OTHER, _BASELINE, _FASTEST]
READING = (
    "Lines: ceilings that the runs measured. Intensity is FLOPs over the bytes that had to move: a weight that "
    "requests share counts once. A point above the slope read inputs from a cache."
)
_PLOT = Box(0.0, 0.0, 700.0, 340.0)  # size for which the labels of points are placed, pixels


def roofline_figure(device: str, tables: Sequence[Table]) -> Figure | Absent:
    """Return all modes of all streams of `device` under its ceilings."""
    title = f"{TITLE}: {device}"
    # The fastest comes last and is drawn over the others.
    values = sorted((each for table in tables for each in _points(table)), key=lambda each: _DRAWN.index(each["role"]))
    ceilings = _ceilings(tables)
    if not values or not ceilings["copy"]:
        why = "no verified repeat has both a rate and a measured ceiling that did not change during its run"
        return Absent(title, why, "launchopt run measures the ceilings of a device before its first repeat")
    dtypes = [dtype for dtype in ("fp32", "fp16", "bf16") if dtype in ceilings]
    low = min(each["intensity"] for each in values) / 2
    high = max([each["intensity"] for each in values] + [ceilings[d] * 1e3 / ceilings["copy"] for d in dtypes]) * 4
    roofs = [each for dtype in dtypes for each in _roof(f"copy, {dtype} peak", dtype, ceilings, "copy", low, high)]
    if ceilings.get("read"):
        top = max(dtypes, key=lambda dtype: ceilings[dtype])
        roofs += _roof("read bandwidth", top, ceilings, "read", low, high)
    rates = [f"copy {number(ceilings['copy'])} GB/s"]
    rates += [f"read {number(ceilings['read'])} GB/s"] if ceilings.get("read") else []
    rates += [f"{dtype} peak {number(ceilings[dtype])} TFLOP/s" for dtype in dtypes]
    note = f"Measured: {', '.join(rates)}."
    return finished(title, note, _chart(values, roofs), int(_PLOT.top), reading=READING, is_wide=True)


def _points(table: Table) -> list[Datum]:
    """Return a point per line that has a rate. Intensity is FLOPs over bytes of the same commands."""
    sound = [line for line in table.lines if line.problem is None]
    timed = [line for line in sound if not line.is_baseline and line.median("wall_ms") is not None]
    fastest = min(timed, key=lambda line: line.median("wall_ms") or 0.0, default=None)
    return [_point(table, line, fastest) for line in sound if _has_rates(line)]


def _has_rates(line: Line) -> bool:
    return bool(line.median("achieved_tflops") and line.median_of(needed_gb_per_s))


def _point(table: Table, line: Line, fastest: Line | None) -> Datum:
    tflops, gb_per_s = line.median("achieved_tflops") or 0.0, line.median_of(needed_gb_per_s) or 0.0
    role = _BASELINE if line.is_baseline else _FASTEST if line is fastest else _OTHER
    return {
        **{"work": table.title, "mode": str(line["mode"]), "configuration": line.configuration, "role": role},
        **{"intensity": tflops * 1e3 / gb_per_s, "tflops": tflops, "gb_per_s": gb_per_s, "dtype": table["dtype"]},
        "name": f"{table['workload']} {table.number_types}",
    }


def _names(values: Sequence[Datum], roofs: Sequence[Datum], across: Axis, up: Axis) -> list[alt.Chart]:
    """Return a label beside the fastest point of each workload, off other points and lines; none without space."""

    def spot(each: Datum) -> Spot:
        return Spot(across.pixel(each["intensity"]), up.pixel(each["tflops"]))

    tops: dict[str, Datum] = {}
    for each in sorted((v for v in values if v["role"] == _FASTEST), key=lambda v: float(v["tflops"])):
        tops[each["name"]] = each
    labels = [Label(name, spot(each), LABEL_GAP, is_needed=False) for name, each in tops.items()]
    lines = [
        [spot(each) for each in roofs if each["ceiling"] == name]
        for name in dict.fromkeys(each["ceiling"] for each in roofs)
    ]
    taken = [*map(spot, values), *(each for line in lines for each in along(line))]
    placed = place(labels, (), _PLOT, taken, LABEL_SIZE)
    return label_marks(placed, Scaled("intensity", across), Scaled("tflops", up), _PLOT.right)


def _ceilings(tables: Sequence[Table]) -> dict[str, float]:
    """Return medians over all repeats: copy and read in GB/s, and a peak in TFLOP/s per dtype."""
    found: dict[str, list[float]] = {"copy": [], "read": []}
    for table in tables:
        for row in (row for line in table.lines for row in line.rows):
            names = {"copy": "copy_gb_per_s", "read": "read_gb_per_s", str(row["dtype"]): "peak_tflops"}
            for name, column in names.items():
                if row[column]:
                    found.setdefault(name, []).append(row[column])
    return {name: statistics.median(values) if values else 0.0 for name, values in found.items()}


def _roof(name: str, dtype: str, ceilings: dict[str, float], memory: str, low: float, high: float) -> list[Datum]:
    ridge = ceilings[dtype] * 1e3 / ceilings[memory]
    corners = [low, max(low, ridge), max(high, ridge)]
    return [
        {"ceiling": name, "intensity": at, "tflops": min(ceilings[dtype], at * ceilings[memory] / 1e3)}
        for at in corners
    ]


def _chart(values: list[Datum], roofs: list[Datum]) -> Chart:
    drawn = [*values, *roofs]
    across, up = _axis(drawn, "intensity", _PLOT.right), _axis(drawn, "tflops", _PLOT.top)
    scales = [alt.Scale(type="log", domain=[each.low, each.high], nice=False) for each in (across, up)]
    axes = [alt.Axis(format="~g", values=ticks(each.low, each.high, 6)) for each in (across, up)]
    x = alt.X("intensity:Q", scale=scales[0], title="arithmetic intensity, FLOP/byte (log)", axis=axes[0])
    y = alt.Y("tflops:Q", scale=scales[1], title="TFLOP/s (log)", axis=axes[1])
    roof = (
        alt.Chart(alt.InlineData(values=roofs))
        .mark_line(strokeWidth=1.5)
        .encode(
            x=x,
            y=y,
            strokeDash=alt.StrokeDash("ceiling:N", legend=alt.Legend(title="ceiling", symbolType="stroke")),
            detail="ceiling:N",
        )
    )
    base = alt.Chart(alt.InlineData(values=values)).encode(x=x, y=y)
    tooltip = [
        *(alt.Tooltip("work:N"), alt.Tooltip("mode:N"), alt.Tooltip("configuration:N")),
        alt.Tooltip("tflops:Q", title="TFLOP/s", format=",.3~g"),
        alt.Tooltip("gb_per_s:Q", title="GB/s", format=",.0f"),
        alt.Tooltip("intensity:Q", title="FLOP/byte", format=",.3~g"),
    ]
    legend = alt.Legend(title="mode")
    roles = [role for role in _ROLES if any(each["role"] == role for each in values)]
    shapes = alt.Scale(domain=roles, range=[_SHAPES[role] for role in roles])
    is_other = f"datum.role == '{_OTHER}'"
    marks = base.mark_point(filled=True).encode(
        size=alt.condition(is_other, alt.value(45), alt.value(110)),
        opacity=alt.condition(is_other, alt.value(0.6), alt.value(1)),
        color=alt.Color("role:N", scale=alt.Scale(domain=roles), legend=legend),
        shape=alt.Shape("role:N", scale=shapes, legend=legend),
        tooltip=tooltip,
    )
    return alt.layer(roof, marks, *(text.encode(x=x, y=y) for text in _names(values, roofs, across, up)))


def _axis(drawn: Sequence[Datum], name: str, pixels: float) -> Axis:
    """Return the logarithmic axis that shows all values of a column."""
    found = [each[name] for each in drawn]
    return Axis(min(found) / 1.3, max(found) * 1.3, is_log=True, pixels=pixels)
