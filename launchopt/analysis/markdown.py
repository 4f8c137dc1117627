"""Tables as text: which columns, how a number is written, footnotes, and blocks inside a README.

In: `tables.Table`, `frontier.Frontier`. Out: Markdown, or cells for a terminal. Three sets of columns share their
definitions: `full` for a report, `compact` for a README, `terminal` for about 140 characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from launchopt.analysis.frontier import Frontier, Point
from launchopt.analysis.tables import (
    Line,
    Table,
    arrivals,
    disorder,
    has_no_dependencies,
    rate,
    stream_subtitle,
    stream_title,
)
from launchopt.errors import DataError

NOTHING = "—"
LEGEND = (
    "Median over repeats. Speed-up: wall time of the baseline / wall time of the line, with a 95% bootstrap "
    "interval; the verdict calls up to 1% the same. GPU time is the span between two events on the work's "
    "stream. C++ loop: the ratio that a C++ program got from strided batches of the same shape."
)
SHORT_LEGEND = "Medians; speed-up of wall time over `baseline`, with a 95% bootstrap interval."
PEER_LEGEND = (
    " C++: GPU span a command that a C++ program got from cuBLASLt on the same GPU, for one shape of the workload, in a"
    " loop and in strided batches."
)
TOKENS_LEGEND = (
    "Medians. TTFT: arrival of a request to its first token. TPOT: a request's mean time a token after the first. "
    "Percentiles are over requests. Goodput: requests a second that met the objective in brackets."
)
FRONTIER_LEGEND = (
    "Medians over repeats; p99 is of the latency of a command, enqueue to results on the device. On the frontier: no "
    "other point equals or beats it in both throughput and p99, and beats it in one. What failed, was not verified or "
    "was overloaded claims nothing."
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A heading, how a line (or a point) fills it, and which sets of columns it is in."""

    heading: str
    cell: Callable[[T], str]
    sets: frozenset[str]
    is_text: bool = False


def number(value: float | None) -> str:
    """A measured quantity: thousands set apart, fewer decimals the larger it is."""
    if value is None:
        return NOTHING
    return f"{value:,.{1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3}f}"


def count(value: float | None) -> str:
    """A whole number, thousands set apart."""
    return NOTHING if value is None else f"{value:,.0f}"


def _mode(line: Line) -> str:
    return f"{line['mode']} ({line.disorder})" if line.disorder else str(line["mode"])


def _short_configuration(line: Line) -> str:
    return line.configuration.removeprefix("max_batch ").replace(" timeout ", " ")


def _ordering(line: Line) -> str:
    if line.disorder:
        return f"({line.disorder})" if line["ordering"] == "violated" else line.disorder
    return "independent" if has_no_dependencies(line["workload"]) else str(line["ordering"]).replace("_", " ")


def _speedup(line: Line) -> str:
    if line.problem is not None:
        return f"FAILED: {line.problem}"
    return str(line.speedup) if line.speedup else NOTHING


def _short_speedup(line: Line) -> str:
    return "FAILED" if line.problem is not None else _speedup(line).partition(" (")[0]


def _left_out(line: Line) -> list[str]:
    """Notes for what is too long for a cell of a terminal."""
    notes = [f"failed: {' '.join(line.problem.split())}"] if line.problem is not None else []
    if line.speedup is not None and line.speedup.low is None:
        notes.append(str(line.speedup).partition("(")[2].rstrip(")"))
    return [*notes, *([line.disorder] if line.disorder else [])]


def _times(value: float | None) -> str:
    return NOTHING if value is None else f"{number(value)}x"


def _copy_share(line: Line) -> str:
    share = line.median_ratio("achieved_gb_per_s", "copy_gb_per_s")
    return NOTHING if share is None else f"{100 * share:.1f}%"


def _verified(line: Line) -> str:
    return "yes" if all(row["verified"] for row in line.rows) else "NO"


def _error(line: Line) -> str:
    error = line.worst("max_rel_error")
    return NOTHING if error is None else f"{error:.1e}"


def _span_us(line: Line) -> str:
    span_ms_a_command = line.median_ratio("gpu_span_ms", "commands")
    return NOTHING if span_ms_a_command is None else number(span_ms_a_command * 1e3)


def _median(column: str, write: Callable[[float | None], str] = number) -> Callable[[Line], str]:
    return lambda line: write(line.median(column))


def _p50_p99(name: str, unit: str) -> Callable[[Line], str]:
    return lambda line: _pair(line.median(f"{name}_p50_{unit}"), line.median(f"{name}_p99_{unit}"))


def _pair(p50: float | None, p99: float | None) -> str:
    return NOTHING if p50 is None and p99 is None else f"{number(p50)} / {number(p99)}"


_MARKED = "speed-up"
_FULL, _COMPACT, _TERMINAL = frozenset({"full"}), frozenset({"compact"}), frozenset({"terminal"})
_ALL = _FULL | _COMPACT | _TERMINAL

COLUMNS: Sequence[Column[Line]] = (
    Column("configuration", lambda line: line.configuration, _FULL, is_text=True),
    Column("max_batch, timeout", _short_configuration, _TERMINAL, is_text=True),
    Column("mode", lambda line: str(line["mode"]), _FULL | _TERMINAL, is_text=True),
    Column("mode", _mode, _COMPACT, is_text=True),
    Column("ordering", _ordering, _FULL, is_text=True),
    Column("repeats", lambda line: str(len(line.rows)), _FULL),
    Column("wall ms", _median("wall_ms"), _ALL),
    Column("GPU ms", _median("gpu_span_ms"), _FULL | _TERMINAL),
    Column("GPU us a command", _span_us, _COMPACT),
    Column("launch calls", _median("launch_calls", count), _ALL),
    Column("commands a launch", lambda line: number(line.median_ratio("commands", "launch_calls")), _FULL),
    Column("commands/s", _median("commands_per_s", count), _FULL),
    Column("host ns a launch", _median("host_submit_ns_per_launch", count), _FULL),
    Column("latency p50 / p99 us", _p50_p99("latency", "us"), _FULL | _TERMINAL),
    Column(_MARKED, _speedup, _FULL | _COMPACT),
    Column(_MARKED, _short_speedup, _TERMINAL),
    Column("verdict", lambda line: str(line.verdict or NOTHING), _FULL | _TERMINAL, is_text=True),
    Column("C++ loop", lambda line: line.peer_ratio or NOTHING, _FULL),
    Column("launch reduction", lambda line: _times(line.launch_reduction), _FULL),
    Column("share of copy BW", _copy_share, _ALL),
    Column("verified", _verified, _ALL, is_text=True),
    Column("max rel error", _error, _FULL),
)


def _scheduler(line: Line) -> str:
    return str(line["scheduler"] or NOTHING)


def _sampling(line: Line) -> str:
    where = f" on {line['sampling_where']}" if line["sampling_where"] else ""
    return f"{line['sampling'] or NOTHING}{where}"


def _sampling_us(line: Line) -> str:
    sampling_ms_a_token = line.median_ratio("sampling_ms", "tokens")
    return NOTHING if sampling_ms_a_token is None else number(sampling_ms_a_token * 1e3)


def _goodput(line: Line) -> str:
    per_s = line.median("goodput_per_s")
    objective = [f"{n.upper()} {line[f'slo_{n}_ms']:g} ms" for n in ("ttft", "tpot") if line[f"slo_{n}_ms"] is not None]
    return NOTHING if per_s is None else f"{rate(per_s)} ({', '.join(objective) or 'no objective'})"


def _overloaded(line: Line) -> str:
    known = [row["overloaded"] for row in line.rows if row["overloaded"] is not None]
    if not any(known):
        return "no" if known else NOTHING
    reached, due = line.median("completed_rate_per_s"), line.median("arrival_rate_per_s")
    return f"YES: {rate(reached)} of {rate(due)}" if reached is not None and due is not None else "YES"


def _sound(line: Line) -> str:
    return "yes" if line.problem is None else "NO"


TOKEN_COLUMNS: Sequence[Column[Line]] = (
    Column("configuration", lambda line: line.configuration, _FULL, is_text=True),
    Column("max_batch, timeout", _short_configuration, _TERMINAL | _COMPACT, is_text=True),
    Column("mode", lambda line: str(line["mode"]), _TERMINAL, is_text=True),
    Column("mode", _mode, _FULL | _COMPACT, is_text=True),
    Column("requests", lambda line: count(line["requests"]), _FULL | _COMPACT),
    Column("scheduler", _scheduler, _FULL | _COMPACT, is_text=True),
    Column("sampling", _sampling, _FULL | _COMPACT, is_text=True),
    Column("tokens/s", _median("tokens_per_s", count), _ALL),
    Column("TTFT p50 / p99 ms", _p50_p99("ttft", "ms"), _ALL),
    Column("TPOT p50 / p99 ms", _p50_p99("tpot", "ms"), _ALL),
    Column("sampling us a token", _sampling_us, _FULL | _TERMINAL),
    Column("goodput", _goodput, _FULL | _COMPACT),
    Column("overloaded", _overloaded, _ALL, is_text=True),
    Column("verified", _sound, _ALL, is_text=True),
)


def tokens_grid(table: Table, kind: str) -> tuple[Sequence[Column[Line]], list[list[str]]]:
    """Columns of a set and the cells of every line that generated tokens."""
    columns = [column for column in TOKEN_COLUMNS if kind in column.sets]
    lines = [line for line in table.lines if line.median("tokens") is not None]
    return columns, [[column.cell(line) for column in columns] for line in lines]


def grid(table: Table, kind: str, known: Sequence[str] = ()) -> tuple[list[Column[Line]], list[list[str]], list[str]]:
    """Columns of a set, the cells of every line, and notes, numbered on from the `known` ones.

    A column for the run comes first where there are several; the number of a note follows the speed-up.
    """
    columns = [column for column in COLUMNS if kind in column.sets]
    if kind != "compact" and len({line["run_id"] for line in table.lines}) > 1:
        columns.insert(0, Column("run", lambda line: str(line["run_id"]), frozenset({kind}), is_text=True))
    notes = list(known)
    cells: list[list[str]] = []
    for line in table.lines:
        remarks = [*line.remarks, *(_left_out(line) if kind == "terminal" else [])]
        notes += [remark for remark in remarks if remark not in notes]
        marks = "".join(f" ({notes.index(remark) + 1})" for remark in remarks)
        cells.append([c.cell(line) + (marks if c.heading == _MARKED else "") for c in columns])
    return columns, cells, notes


def table_markdown(table: Table, kind: str) -> str:
    """One table with its title above and its notes, peer and history below."""
    columns, cells, notes = grid(table, kind)
    title = f"## {table.title}" if kind == "full" else f"**{table.title}**"
    below = [
        *(f"({index}) {_escaped(note)}" for index, note in enumerate(notes, 1)),
        *([str(table.peer)] if table.peer else []),
    ]
    below += [table.history] if table.history else []
    if table.has_tokens:
        below += ["### Tokens", TOKENS_LEGEND, _body(*tokens_grid(table, kind))]
    return "\n\n".join([title, table.subtitle, _body(columns, cells), *below])


def _body(columns: Sequence[Column[T]], cells: Iterable[Sequence[str]]) -> str:
    """Headings, rule and lines."""
    rule = ["---" if column.is_text else "---:" for column in columns]
    head = [_pipes(column.heading for column in columns), _pipes(rule)]
    return "\n".join([*head, *(_pipes(map(_escaped, line)) for line in cells)])


def report_markdown(tables: Sequence[Table], kind: str) -> str:
    """All tables, under a heading when `full`, merged into one when `compact`; ends with a newline."""
    if kind == "compact":
        return _merged(tables)
    return "\n\n".join(["# Report", LEGEND, *(table_markdown(table, kind) for table in tables)]) + "\n"


_WORK: Column[Line] = Column("work, commands", lambda line: str(line["workload"]), _COMPACT, is_text=True)
_PEER: Column[Line] = Column("C++ (shape)", lambda line: line.peer_ratio or NOTHING, _COMPACT)


def _work(table: Table) -> str:
    more = f", {table['requests']:,} request{'' if table['requests'] == 1 else 's'}" if table.has_tokens else ""
    if table["arrival_rate_per_s"] is not None:
        more += f", {arrivals(table.lines[0].rows[0])}"
    return f"{table['workload']} {table['dtype']}, {table['commands']:,}{more}"


def _merged(tables: Sequence[Table]) -> str:
    """One table for a README: the work in its first column, the C++ program's figures beside ours; then the tokens."""
    body: list[list[str]] = []
    notes: list[str] = []
    columns: list[Column[Line]] = []
    tokens: list[list[str]] = []
    has_peers = any(table.peer for table in tables)
    for table in tables:
        columns, cells, notes = grid(table, "compact", notes)
        for line, row in zip(table.lines, cells, strict=True):
            peer = [_peer_cell(table, line)] if has_peers else []
            body.append([_work(table), *row[:-1], *peer, row[-1]])
        tokens += [[_work(table), *row] for row in tokens_grid(table, "compact")[1]]
    places = list(dict.fromkeys(table["gpu"] or table["device"].upper() for table in tables))
    heads = [_WORK, *columns[:-1], *([_PEER] if has_peers else []), columns[-1]]
    parts = [f"{', '.join(places)}. {SHORT_LEGEND}{PEER_LEGEND if has_peers else ''}", _body(heads, body)]
    parts += [f"({index}) {_escaped(note)}" for index, note in enumerate(notes, 1)]
    if tokens:
        parts += [TOKENS_LEGEND, _body([_WORK, *(c for c in TOKEN_COLUMNS if "compact" in c.sets)], tokens)]
    return "\n\n".join(parts) + "\n"


def _peer_cell(table: Table, line: Line) -> str:
    peer = table.peer
    if peer is None:
        return NOTHING
    shape = f"({peer.m}x{peer.n}x{peer.k})"
    return f"{peer.loop_us} us {shape}" if line.is_baseline else f"{peer.batch}: {peer.ratio}"


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


def _standing(frontier: Frontier, point: Point) -> str:
    if point not in frontier.frontier:
        return NOTHING
    return "yes, recommended" if point == frontier.recommended else "yes"


def _claim(point: Point) -> str:
    return "yes" if point.problem is None else f"FAILED: {point.problem}"


def frontier_grid(frontier: Frontier, kind: str) -> tuple[Sequence[Column[Point]], list[list[str]]]:
    """Columns of a set and the cells of every point; `compact`: of those on the frontier."""
    columns: list[Column[Point]] = [
        Column("arrivals", lambda point: arrivals(frontier.stream), _COMPACT, is_text=True),
        Column("mode", lambda point: point.mode, _ALL, is_text=True),
        Column("max_batch", lambda point: count(point.max_batch), _ALL),
        Column("timeout us", lambda p: NOTHING if p.timeout_us is None else f"{p.timeout_us:g}", _ALL),
        Column("repeats", lambda point: str(point.repeats), _FULL),
        Column(f"{frontier.unit}/s", lambda point: count(point.throughput_per_s), _ALL),
        Column("p99 us", lambda point: number(point.p99_us), _ALL),
        Column("batch size p50 / p99", _batch_sizes, _ALL),
        Column("batch size mean", lambda point: number(point.batch_size_mean), _FULL),
        Column("flushes", _flushes, _ALL, is_text=True),
        Column("overloaded", lambda point: "YES" if point.overloaded else "no", _FULL | _TERMINAL, is_text=True),
        Column("verified", _claim, _FULL, is_text=True),
        Column("verified", lambda point: "yes" if point.problem is None else "NO", _TERMINAL, is_text=True),
        Column("on the frontier", lambda point: _standing(frontier, point), _ALL, is_text=True),
    ]
    columns = [column for column in columns if kind in column.sets]
    points = frontier.frontier if kind == "compact" else frontier.points
    return columns, [[column.cell(point) for column in columns] for point in points]


def frontier_title(frontier: Frontier) -> str:
    """`decode bf16, 400,000 commands, poisson 1,000/s`, and what was wrong with the order, if anything."""
    order = disorder(frontier.stream)
    return f"{stream_title(frontier.stream)}, {arrivals(frontier.stream)}{f' ({order})' if order else ''}"


def frontier_answer(frontier: Frontier) -> list[str]:
    """What to take under the objective, and how many points were tried."""
    slo = frontier.slo_p99_us
    answers = []
    if frontier.recommended is not None:
        answers.append(f"Recommended for a p99 of at most {slo:,g} us: {_described(frontier, frontier.recommended)}.")
    elif slo is not None:
        closest = f"closest: {_described(frontier, frontier.closest)}" if frontier.closest else "none claims anything"
        answers.append(f"No point has a p99 of at most {slo:,g} us; {closest}.")
    failed = sum(point.problem is not None for point in frontier.points)
    overloaded = sum(point.overloaded for point in frontier.points if point.problem is None)
    counts = [
        f"{len(frontier.frontier)} on the frontier",
        f"{overloaded} overloaded",
        f"{failed} failed or not verified",
    ]
    tried = len(frontier.points)
    return [*answers, f"{tried} point{'' if tried == 1 else 's'} tried: {', '.join(counts)}."]


def _described(frontier: Frontier, point: Point) -> str:
    gains = f"{count(point.throughput_per_s)} {frontier.unit}/s, p99 {number(point.p99_us)} us"
    return f"{point.mode}, max_batch / timeout {point.batching}: {gains}"


def frontier_markdown(frontiers: Sequence[Frontier], kind: str) -> str:
    """A table a stream, `full` under a heading, or `compact` for a README; ends with a newline."""
    parts = ["# Frontier", FRONTIER_LEGEND] if kind == "full" else [FRONTIER_LEGEND]
    for frontier in frontiers:
        title = frontier_title(frontier)
        parts += [f"## {title}" if kind == "full" else f"**{title}**", stream_subtitle(frontier.stream)]
        parts += [_body(*frontier_grid(frontier, kind))] if frontier.frontier or kind == "full" else []
        parts += [" ".join(map(_escaped, frontier_answer(frontier)))]
    return "\n\n".join(parts) + "\n"


def sync_blocks(text: str, path: Path, render: Callable[[str], str]) -> str:
    """`text` with what stands between `<!-- report:NAME -->` and `<!-- /report:NAME -->` set to render(NAME).

    Raises DataError, naming `path` and the line, for a marker without its partner, and where there is none.
    """
    openings = list(re.finditer(r"<!-- (/?)report:(\S+) -->", text))
    if not openings:
        raise DataError(path, None, "no <!-- report:FOLDER --> marker in it")
    parts, done = [], 0
    # An odd marker has no partner: the last opening is then paired with nothing.
    for start, end in zip(openings[::2], [*openings[1::2], None], strict=False):
        name = start[2]
        if start[1] or end is None or not end[1] or end[2] != name:
            line = text.count("\n", 0, start.start()) + 1
            raise DataError(path, line, f"marker {start[0]} is not paired with the one that follows")
        parts += [text[done : start.end()], "\n", render(name)]
        done = end.start()
    return "".join([*parts, text[done:]])


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """A status may hold anything: keep it on its line and in its cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
