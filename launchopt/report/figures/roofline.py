"""Roofline: arithmetic intensity against TFLOP/s of each mode under the ceilings of the machine, both logarithmic.

In: the untraced tables of one device. Out: a figure with the ceilings that its runs measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import altair as alt

from launchopt.analysis.tables.columns import number
from launchopt.analysis.tables.rows import Line, Table
from launchopt.report.figures.base import Absent, Chart, Datum, Figure, finished

TITLE = "Roofline"
_BASELINE, _FASTEST, _OTHER = "baseline", "fastest", "other modes"
_ROLES = [_BASELINE, _FASTEST, _OTHER]
_DRAWN = [_OTHER, _BASELINE, _FASTEST]
_LABEL_DECADES = 0.5, 0.17  # factors of x and y that a label spans on the logarithmic axes


def roofline_figure(device: str, tables: Sequence[Table]) -> Figure | Absent:
    """Return all modes of all streams of `device` under its ceilings."""
    title = f"{TITLE}: {device}"
    # The fastest comes last and is drawn over the others.
    values = sorted((each for table in tables for each in _points(table)), key=lambda each: _DRAWN.index(each["role"]))
    ceilings = _ceilings(tables)
    if not values or not ceilings["copy"]:
        why = "no verified repeat has both a rate and a measured ceiling"
        return Absent(title, why, "python -m runner measures the ceilings of a device before its first repeat")
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
    note = (
        f"Lines: ceilings measured in these runs ({', '.join(rates)}). Intensity counts A, B and C of every command; a "
        "point above the slope had weights that one launch read once for several requests, or inputs in a cache."
    )
    return finished(title, note, _chart(values, roofs), 360, is_wide=True)


def _points(table: Table) -> list[Datum]:
    """Return a point per line that has a rate. Intensity is FLOPs over bytes of the same commands."""
    sound = [line for line in table.lines if line.problem is None]
    timed = [line for line in sound if not line.is_baseline and line.median("wall_ms") is not None]
    fastest = min(timed, key=lambda line: line.median("wall_ms") or 0.0, default=None)
    return [_point(table, line, fastest) for line in sound if _has_rates(line)]


def _has_rates(line: Line) -> bool:
    return bool(line.median("achieved_tflops") and line.median("achieved_gb_per_s"))


def _point(table: Table, line: Line, fastest: Line | None) -> Datum:
    tflops, gb_per_s = line.median("achieved_tflops") or 0.0, line.median("achieved_gb_per_s") or 0.0
    role = _BASELINE if line.is_baseline else _FASTEST if line is fastest else _OTHER
    return {
        **{"work": table.title, "mode": str(line["mode"]), "configuration": line.configuration, "role": role},
        **{"intensity": tflops * 1e3 / gb_per_s, "tflops": tflops, "gb_per_s": gb_per_s, "dtype": table["dtype"]},
        "name": f"{table['workload']} {table['dtype']}",
    }


def _labels(values: Sequence[Datum]) -> list[Datum]:
    """Return a label beside the fastest point of each workload. It moves up if another label is in its place."""
    tops: dict[tuple[str, float], Datum] = {}
    for each in sorted((v for v in values if v["role"] == _FASTEST), key=lambda v: float(v["tflops"])):
        tops[each["name"], round(math.log10(each["intensity"]), 1)] = each
    width, height = _LABEL_DECADES
    placed: list[tuple[float, float, Datum]] = []
    for each in tops.values():
        x, y = math.log10(each["intensity"]), math.log10(each["tflops"])
        while any(abs(x - other_x) < width and abs(y - other_y) < height for other_x, other_y, _ in placed):
            y += height / 4
        placed.append((x, y, each))
    return [{"intensity": each["intensity"], "tflops": 10**y, "name": each["name"]} for _, y, each in placed]


def _powers(values: Sequence[float]) -> list[float]:
    """Return the powers of ten within `values`, for the ticks of a logarithmic axis."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, high + 1)]


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
    log = alt.Scale(type="log", nice=False)
    drawn = [*values, *roofs]
    x_axis, y_axis = (
        alt.Axis(format="~g", values=_powers([each[name] for each in drawn])) for name in ("intensity", "tflops")
    )
    x = alt.X("intensity:Q", scale=log, title="arithmetic intensity, FLOP/byte (log)", axis=x_axis)
    y = alt.Y("tflops:Q", scale=log, title="TFLOP/s (log)", axis=y_axis)
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
    shapes = alt.Scale(domain=_ROLES, range=["square", "triangle-up", "circle"])
    is_other = f"datum.role == '{_OTHER}'"
    marks = base.mark_point(filled=True).encode(
        size=alt.condition(is_other, alt.value(45), alt.value(110)),
        opacity=alt.condition(is_other, alt.value(0.6), alt.value(1)),
        color=alt.Color("role:N", scale=alt.Scale(domain=_ROLES), legend=legend),
        shape=alt.Shape("role:N", scale=shapes, legend=legend),
        tooltip=tooltip,
    )
    names = alt.Chart(alt.InlineData(values=_labels(values))).mark_text(align="left", dx=9, dy=-2, fontSize=11)
    return alt.layer(roof, marks, names.encode(x=x, y=y, text="name:N"))
