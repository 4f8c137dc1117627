"""Throughput against tail latency as a picture, and why batches were flushed: one SVG on a white card.

In: `frontier.Frontier`. Out: an SVG file (or what the suffix says, such as PNG). A panel a stream; a dot is a
configuration, labelled max_batch/timeout_us, its colour the mode; hollow where arrivals overloaded it, and then perhaps
outside: the axes are those of the points that claim something. What failed is left out. Below it the shares of the
reasons for which batches were flushed. Needs matplotlib (the `report` extra).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from launchopt.analysis.tables.frontier import Frontier, Point
from launchopt.analysis.tables.rows import arrivals, disorder
from launchopt.errors import ConfigError

# Readable for the common kinds of colour blindness (Okabe and Ito, 2008); of reasons also in grey.
_MODE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#222222")
_REASON_COLOURS = {"full": "#1b4965", "deadline": "#e07a5f", "idle": "#81b29a", "stall": "#f2cc8f", "drain": "#c9c9c9"}
_INK = "#222222"
_LOG_SPREAD = 10.0
_MOST_COLUMNS = 3
_LABEL_SIZE = 7.0
# Where a label may go, in the order of preference: direction from the dot, in half widths and heights of the label.
_PLACES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))

_Box = tuple[float, float, float, float]
_Spot = tuple[float, float]


def draw_frontiers(frontiers: Sequence[Frontier], path: Path) -> None:
    """Write the picture to `path`; ConfigError where matplotlib or anything to draw is missing."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plot", path, "needs matplotlib: pip install 'launchopt[report]'") from None
    shown = [frontier for frontier in frontiers if _drawn(frontier)]
    if not shown:
        raise ConfigError("plot", path, "no frontier to draw: no verified, untraced point has a latency")
    modes = sorted({point.mode for frontier in shown for point in _drawn(frontier)})
    colours = {mode: _MODE_COLOURS[at % len(_MODE_COLOURS)] for at, mode in enumerate(modes)}
    columns = min(len(shown), _MOST_COLUMNS)
    rows = -(-len(shown) // columns)
    # A fixed salt and no date: the same rows give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "launchopt", "font.size": 9, "hatch.linewidth": 0.6}):
        size = (max(6.4, 5.2 * columns), 6.6 * rows + 0.8)
        figure = Figure(figsize=size, facecolor="white", layout="constrained")
        grid = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[3.2, 1] * rows)
        panels = []
        for at, frontier in enumerate(shown):
            row, column = divmod(at, columns)
            panels.append((grid[2 * row][column], frontier))
            _draw_points(grid[2 * row][column], frontier, colours)
            _draw_flushes(grid[2 * row + 1][column], _drawn(frontier))
        for at in range(len(shown), rows * columns):
            row, column = divmod(at, columns)
            grid[2 * row][column].remove()
            grid[2 * row + 1][column].remove()
        _draw_legend(figure, colours, shown)
        figure.suptitle(_title(shown), x=0.01, ha="left", fontsize=11)
        figure.draw_without_rendering()  # the layout is known from here on: labels can be kept apart
        for axes, frontier in panels:
            _label_points(axes, frontier)
        suffix = path.suffix.removeprefix(".") or "svg"
        figure.savefig(path, format=suffix, dpi=110, metadata={"Date": None} if suffix == "svg" else None)


def _drawn(frontier: Frontier) -> list[Point]:
    return [p for p in frontier.points if p.problem is None and p.p99_us and p.throughput_per_s]


def _title(frontiers: Sequence[Frontier]) -> str:
    """Machine, workload and dtype of all panels; each panel adds what differs."""
    machines = dict.fromkeys(str(frontier["gpu"] or frontier["device"].upper()) for frontier in frontiers)
    works = dict.fromkeys(
        " ".join(str(frontier[name]) for name in ("workload", "model", "dtype") if frontier[name])
        for frontier in frontiers
    )
    return f"Throughput against p99 latency — {', '.join([*machines, *works])}"


def _panel_title(frontier: Frontier) -> str:
    order = disorder(frontier.stream)
    parts = [frontier["workload"], frontier["dtype"], arrivals(frontier.stream)]
    parts += [f"{name} {frontier[name]}" for name in ("scheduler", "sampling") if frontier[name]]
    return ", ".join(map(str, parts)) + (f"\n({order})" if order else "")


def _mark(point: Point) -> str:
    timeout = "—" if point.timeout_us is None else f"{point.timeout_us:g}"
    return f"{'—' if point.max_batch is None else point.max_batch}/{timeout}"


def _unit(frontier: Frontier) -> tuple[str, float]:
    """Unit of a panel's latencies, and how many us that is."""
    return ("ms", 1e3) if max(point.p99_us or 0.0 for point in _framing(frontier)) >= 1e4 else ("us", 1.0)


def _framing(frontier: Frontier) -> list[Point]:
    """The points that the axes have to show: an overloaded one may be far off."""
    points = _drawn(frontier)
    return [point for point in points if point.claims] or points


def _spot(frontier: Frontier, point: Point) -> _Spot:
    """Where a point is in the data of its panel."""
    return point.throughput_per_s or 0.0, (point.p99_us or 0.0) / _unit(frontier)[1]


def _draw_points(axes: Any, frontier: Frontier, colours: dict[str, str]) -> None:
    unit, scale = _unit(frontier)
    axes.set_facecolor("white")
    is_log = _set_limits(axes, frontier)
    if frontier.frontier:
        spots = [_spot(frontier, point) for point in frontier.frontier]
        axes.plot(*zip(*spots, strict=True), color=_INK, linewidth=1, zorder=1)
    for point in _drawn(frontier):
        spot, colour = _spot(frontier, point), colours[point.mode]
        if point == frontier.recommended:
            axes.plot(*spot, "*", color=colour, markersize=15, markeredgecolor=_INK, zorder=4)
        else:
            face, alpha = "white" if point.overloaded else colour, 1 if point in frontier.frontier else 0.6
            axes.plot(*spot, "o", color=colour, markerfacecolor=face, markersize=6, alpha=alpha, zorder=3)
    if frontier.slo_p99_us is not None:
        axes.axhline(frontier.slo_p99_us / scale, color=_INK, linewidth=0.9, linestyle="--", zorder=1)
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(f"{frontier.unit}/s{' (log)' if is_log else ''} — more is better")
    axes.set_ylabel(f"p99 latency of a command, {unit} (log) — less is better")
    axes.set_title(f"{_panel_title(frontier)}\n{_answer(frontier)}", loc="left", fontsize=9)


def _set_limits(axes: Any, frontier: Frontier) -> bool:
    """Show the framing points and the objective, with room for labels; whether x is logarithmic."""
    xs, ys = zip(*(_spot(frontier, point) for point in _framing(frontier)), strict=True)
    if frontier.slo_p99_us is not None:
        ys = (*ys, frontier.slo_p99_us / _unit(frontier)[1])
    room = max(1.25, (max(ys) / min(ys)) ** 0.12)
    axes.set_yscale("log")
    axes.set_ylim(min(ys) / room, max(ys) * room)
    _plain_ticks(axes.yaxis)
    is_log = bool(max(xs) / min(xs) > _LOG_SPREAD)
    if is_log:
        room = (max(xs) / min(xs)) ** 0.12
        axes.set_xscale("log")
        axes.set_xlim(min(xs) / room, max(xs) * room)
        _plain_ticks(axes.xaxis)
    else:
        # An open loop's throughputs hardly differ: never show less than 2%, or noise would look like an effect.
        room = max(0.15 * (max(xs) - min(xs)), 0.01 * max(xs))
        axes.set_xlim(min(xs) - room, max(xs) + room)
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,.8g}")
    return is_log


def _plain_ticks(axis: Any) -> None:
    """Numbers instead of powers, between the powers too, where a log axis spans little."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0) if high / low > 5 else tuple(map(float, range(1, 10)))
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:,.8g}")
    axis.set_minor_formatter(NullFormatter())


def _answer(frontier: Frontier) -> str:
    parts = []
    if frontier.recommended is not None:
        parts.append(f"★ {_named(frontier.recommended)}")
    elif frontier.slo_p99_us is not None:
        parts.append(
            "nothing keeps the objective" + (f"; closest {_mark(frontier.closest)}" if frontier.closest else "")
        )
    overloaded = sum(point.overloaded for point in _drawn(frontier))
    parts += [f"{overloaded} overloaded"] if overloaded else []
    return "; ".join(parts)


def _named(point: Point) -> str:
    return f"{point.mode}, {point.batching}"


def _draw_flushes(axes: Any, points: Sequence[Point]) -> None:
    axes.set_facecolor("white")
    shares = [point.flush_shares or {} for point in points]
    below = [0.0] * len(points)
    for reason, colour in _REASON_COLOURS.items():
        heights = [100 * share.get(reason, 0.0) for share in shares]
        axes.bar(range(len(points)), heights, bottom=below, color=colour, width=0.8, linewidth=0)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    several = len({point.mode for point in points}) > 1
    labels = [f"{_mark(point)}{f' {point.mode}' if several else ''}" for point in points]
    axes.set_xticks(range(len(points)), labels, rotation=90, fontsize=_LABEL_SIZE if len(points) <= 30 else 5)
    axes.set_ylim(0, 100)
    axes.set_ylabel("flushes, %")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_legend(figure: Any, colours: dict[str, str], frontiers: Sequence[Frontier]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 6}
    handles: list[Any] = [Line2D([], [], color=colour, label=mode, **dot) for mode, colour in colours.items()]
    chosen = [frontier.recommended for frontier in frontiers if frontier.recommended]
    if chosen:
        star = dot | {"marker": "*", "markersize": 12}
        label = f"recommended: {_named(chosen[0])}" if len(frontiers) == 1 else "recommended: named above its panel"
        handles.append(Line2D([], [], color="white", markeredgecolor=_INK, label=label, **star))
    if any(point.overloaded for frontier in frontiers for point in _drawn(frontier)):
        handles.append(Line2D([], [], color=_INK, markerfacecolor="white", label="overloaded", **dot))
    handles.append(Line2D([], [], color=_INK, linewidth=1, label="frontier"))
    if any(frontier.slo_p99_us is not None for frontier in frontiers):
        slo_p99_us = next(frontier.slo_p99_us for frontier in frontiers if frontier.slo_p99_us is not None)
        label = f"objective: p99 of {slo_p99_us:,g} us"
        handles.append(Line2D([], [], color=_INK, linewidth=0.9, linestyle="--", label=label))
    seen = {r for f in frontiers for p in _drawn(f) for r, share in (p.flush_shares or {}).items() if share}
    handles += [Patch(color=colour, label=f"flush: {name}") for name, colour in _REASON_COLOURS.items() if name in seen]
    figure.legend(handles=handles, loc="outside lower left", ncols=5 if len(frontiers) > 1 else 3, frameon=False)


def _label_points(axes: Any, frontier: Frontier) -> None:
    """max_batch/timeout beside each dot; one that is not on the frontier goes without where there is no room."""
    pixels = axes.figure.dpi / 72
    frame = axes.bbox.extents
    at = {id(point): _pixel(axes, frontier, point) for point in _drawn(frontier)}
    points = [point for point in _drawn(frontier) if _inside(_box(*at[id(point)], 0, 0), frame)]
    taken = [_box(*at[id(point)], 3.5 * pixels, 3.5 * pixels) for point in points]
    lines = _on_lines(axes, frontier, [at[id(point)] for point in frontier.frontier])
    # What matters most chooses first.
    for point in sorted(points, key=lambda p: (p != frontier.recommended, p not in frontier.frontier)):
        half_width, half_height = (0.31 * _LABEL_SIZE * len(_mark(point)) * pixels, 0.6 * _LABEL_SIZE * pixels)
        x, y = at[id(point)]
        gap = (8 if point == frontier.recommended else 4.5) * pixels
        boxes = []
        for right, up in _PLACES:
            reach = 0.5 * gap if right and up else gap
            middle = x + right * (half_width + reach), y + up * (half_height + reach)
            boxes.append(_box(*middle, half_width, half_height))
        free = [box for box in boxes if _inside(box, frame) and not any(_overlap(box, other) for other in taken)]
        if not free and point not in frontier.frontier:
            continue
        clear = [box for box in free if not any(_overlap(box, other) for other in lines)]
        box = (clear or free or boxes)[0]
        taken.append(box)
        offset = (((box[0] + box[2]) / 2 - x) / pixels, ((box[1] + box[3]) / 2 - y) / pixels)
        style = {"ha": "center", "va": "center", "fontsize": _LABEL_SIZE, "color": _INK}
        axes.annotate(_mark(point), _spot(frontier, point), offset, textcoords="offset points", **style)


def _pixel(axes: Any, frontier: Frontier, point: Point) -> _Spot:
    x, y = axes.transData.transform(_spot(frontier, point))
    return float(x), float(y)


def _on_lines(axes: Any, frontier: Frontier, spots: Sequence[_Spot]) -> list[_Box]:
    """Small boxes along the line of the frontier and along the objective, in pixels: a label had better miss them."""
    segments = list(pairwise(spots))
    if frontier.slo_p99_us is not None:
        left, _, right, _ = axes.bbox.extents
        y = float(axes.transData.transform((1.0, frontier.slo_p99_us / _unit(frontier)[1]))[1])
        segments.append(((left, y), (right, y)))
    steps = [at / 50 for at in range(51)]
    return [_box(a + (c - a) * at, b + (d - b) * at, 1, 1) for (a, b), (c, d) in segments for at in steps]


def _box(x: float, y: float, half_width: float, half_height: float) -> _Box:
    return x - half_width, y - half_height, x + half_width, y + half_height


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _inside(box: _Box, frame: Any) -> bool:
    return bool(box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] * 1.02 and box[3] <= frame[3] * 1.02)
