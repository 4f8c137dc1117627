"""The frontier as text: its columns, the recommendation, and the reason for it.

In: `frontier.Frontier`. Out: Markdown, or cells for a terminal, in sets of columns as in `columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launchopt.analysis.frontier.points import Bounds, Frontier, Point
from launchopt.analysis.stream_rows import (
    arrivals,
    counted,
    digits,
    disorder,
    rate,
    stream_subtitle,
    stream_title,
    timeout,
)
from launchopt.analysis.tables.columns import ALL, COMPACT, FULL, NOTHING, TERMINAL, Column, count, number
from launchopt.analysis.tables.markdown import body, escaped

FRONTIER_LEGEND = (
    "Medians over repeats, with their 95% interval in [] (93.75% at five repeats, the most that five can give), or "
    "below five repeats the smallest to the largest in (). p99: the median of the repeats' p99 of a command's latency, "
    "enqueue to results on the device. A point on the frontier: no other point has a better throughput or p99 without "
    "losing in the other. Failed, unverified and overloaded points are never on it. "
    "Of one repeat there is no interval, so another repeat may change its place: `one repeat`."
)


def _batch_sizes(point: Point) -> str:
    if point.batch_size_p50 is None and point.batch_size_mean is not None:
        return f"mean {number(point.batch_size_mean)}"
    return (
        f"{count(point.batch_size_p50)} / {count(point.batch_size_p99)}"
        if point.batch_size_p50 is not None
        else NOTHING
    )


def _flushes(point: Point) -> str:
    shares = sorted((point.flush_shares or {}).items(), key=lambda item: -item[1])
    return ", ".join(f"{reason} {share:.0%}" for reason, share in shares if share >= 0.005) or NOTHING


def _bounded(write: Callable[[float | None], str], value: float | None, bounds: Bounds | None) -> str:
    """Return the value with its interval, `10 [9, 11]`, or with the spread of few repeats, `10 (9 to 11)`."""
    if value is None or bounds is None or bounds.low == bounds.high:
        return write(value)
    return f"{write(value)} {_bounds(write, bounds)}"


def _bounds(write: Callable[[float | None], str], bounds: Bounds | None) -> str:
    if bounds is None:
        return NOTHING
    low, high = write(bounds.low), write(bounds.high)
    return f"[{low}, {high}]" if bounds.is_interval else f"({low} to {high})"


def _standing(frontier: Frontier, point: Point) -> str:
    if point not in frontier.frontier:
        return NOTHING
    yes = "yes" if point.repeats > 1 else "one repeat"
    return f"{yes}, recommended" if point == frontier.recommended else yes


def _claim(point: Point) -> str:
    return "yes" if point.problem is None else f"FAILED: {point.problem}"


def frontier_grid(frontier: Frontier, kind: str) -> tuple[Sequence[Column[Point]], list[list[str]]]:
    """Return the columns of a set and the cells of every point; for `compact`, of the points on the frontier."""
    rate = f"{frontier.unit}/s"
    columns: list[Column[Point]] = [
        Column("arrivals", lambda point: arrivals(frontier.stream), COMPACT, is_text=True),
        Column("mode", lambda point: point.mode, ALL, is_text=True),
        Column("max_batch", lambda point: count(point.max_batch), ALL),
        Column("timeout us", lambda p: NOTHING if p.timeout_us is None else timeout(p.timeout_us), ALL),
        Column("repeats", lambda point: str(point.repeats), FULL),
        Column(rate, lambda p: _bounded(count, p.throughput_per_s, p.throughput_bounds), FULL | COMPACT),
        Column(rate, lambda point: count(point.throughput_per_s), TERMINAL),
        Column(f"bounds of {rate}", lambda point: _bounds(count, point.throughput_bounds), TERMINAL),
        Column("p99 us", lambda point: _bounded(number, point.p99_us, point.p99_bounds), FULL | COMPACT),
        Column("p99 us", lambda point: number(point.p99_us), TERMINAL),
        Column("bounds of p99 us", lambda point: _bounds(number, point.p99_bounds), TERMINAL),
        Column("batch size p50 / p99", _batch_sizes, ALL),
        Column("batch size mean", lambda point: number(point.batch_size_mean), FULL),
        Column("flushes", _flushes, ALL, is_text=True),
        Column("overloaded", lambda point: "YES" if point.overloaded else "no", FULL | TERMINAL, is_text=True),
        Column("verified", _claim, FULL, is_text=True),
        Column("verified", lambda point: "yes" if point.problem is None else "NO", TERMINAL, is_text=True),
        Column("on the frontier", lambda point: _standing(frontier, point), ALL, is_text=True),
    ]
    columns = [column for column in columns if kind in column.sets]
    points = frontier.frontier if kind == "compact" else frontier.points
    return columns, [[column.cell(point) for column in columns] for point in points]


def frontier_title(frontier: Frontier) -> str:
    """Return `decode bf16, 400,000 commands, poisson 1,000/s`, and the disorder of the commands if there was any."""
    order = disorder(frontier.stream)
    return f"{stream_title(frontier.stream)}, {arrivals(frontier.stream)}{f' ({order})' if order else ''}"


def frontier_answer(frontier: Frontier) -> list[str]:
    """Return the recommendation under the objective, and the number of points tried."""
    slo = frontier.slo_p99_us
    answers = []
    if frontier.recommended is not None and slo is not None:
        found = _described(frontier, frontier.recommended)
        answers.append(f"Recommended for a p99 of at most {digits(slo)} us: {found}.")
    elif slo is not None:
        closest = f"Closest: {_described(frontier, frontier.closest)}." if frontier.closest else _why_none(frontier)
        answers.append(f"No point meets {digits(slo)} us. {closest}")
    failed = sum(point.problem is not None for point in frontier.points)
    overloaded = sum(point.overloaded for point in frontier.points if point.problem is None)
    once = sum(point.repeats == 1 for point in frontier.frontier)
    counts = [
        f"{len(frontier.frontier)} on the frontier{f' ({once} of one repeat)' if once else ''}",
        f"{overloaded} overloaded",
        f"{failed} failed or not verified",
    ]
    return [*answers, f"{counted(len(frontier.points), 'point')} tried: {', '.join(counts)}."]


def _why_none(frontier: Frontier) -> str:
    """Return why no point is valid, and what to change."""
    sound = [point for point in frontier.points if point.problem is None]
    if not sound:
        return "All failed, were not verified or have no latencies."
    due = frontier.stream["arrival_rate_per_s"]
    done = max((point.completed_per_s for point in sound if point.completed_per_s is not None), default=None)
    who = {1: "It is", 2: "Both are"}.get(len(sound), f"All {len(sound)} are")
    rates = "" if due is None or done is None or done >= due else f": {rate(due)} asked, about {rate(done)} done"
    return f"{who} overloaded{rates}. Lower arrival.rate_per_s."


def _described(frontier: Frontier, point: Point) -> str:
    gains = f"{count(point.throughput_per_s)} {frontier.unit}/s, p99 {number(point.p99_us)} us"
    once = ", of one repeat" if point.repeats == 1 else ""
    return f"{point.mode}, max_batch / timeout {point.batching}: {gains}{once}"


def frontier_markdown(frontiers: Sequence[Frontier], kind: str) -> str:
    """Return a table per stream, `full` under a heading or `compact` for a README; ends with a newline."""
    parts = ["# Frontier", FRONTIER_LEGEND] if kind == "full" else [FRONTIER_LEGEND]
    for frontier in frontiers:
        title = escaped(frontier_title(frontier))
        parts += [f"## {title}" if kind == "full" else f"**{title}**", escaped(stream_subtitle(frontier.stream))]
        parts += [body(*frontier_grid(frontier, kind))] if frontier.frontier or kind == "full" else []
        parts += [" ".join(map(escaped, frontier_answer(frontier)))]
    return "\n\n".join(parts) + "\n"
