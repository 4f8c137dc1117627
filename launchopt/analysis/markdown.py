"""Tables as text: which columns, how a number is written, footnotes, and blocks inside a README.

In: `tables.Table`. Out: Markdown, or cells for a terminal. Three sets of columns share their
definitions: `full` for a report, `compact` for a README, `terminal` for about 140 characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from launchopt.analysis.tables import (
    Line,
    Table,
    arrivals,
    has_no_dependencies,
    rate,
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


def mode_name(line: Line) -> str:
    """The mode, and what was wrong with the order of its commands, if anything."""
    return f"{line['mode']} ({line.disorder})" if line.disorder else str(line["mode"])


def short_configuration(line: Line) -> str:
    """`512, 150 us`: max_batch and timeout."""
    return line.configuration.removeprefix("max_batch ").replace(" timeout ", " ")


def _ordering(line: Line) -> str:
    if line.disorder:
        return f"({line.disorder})" if line["ordering"] == "violated" else line.disorder
    return "independent" if has_no_dependencies(line["workload"]) else str(line["ordering"]).replace("_", " ")


def speedup(line: Line) -> str:
    """The speed-up with its interval, or why there is none."""
    if line.problem is not None:
        return f"FAILED: {line.problem}"
    return str(line.speedup) if line.speedup else NOTHING


def short_speedup(line: Line) -> str:
    """The same where there is little room: `left_out` has the rest."""
    return "FAILED" if line.problem is not None else speedup(line).partition(" (")[0]


def left_out(line: Line) -> list[str]:
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


def verified(line: Line) -> str:
    """Whether every repeat's outputs were right."""
    return "yes" if all(row["verified"] for row in line.rows) else "NO"


def largest_error(line: Line) -> str:
    """Of all repeats."""
    error = line.worst("max_rel_error")
    return NOTHING if error is None else f"{error:.1e}"


def _span_us(line: Line) -> str:
    span_ms_a_command = line.median_ratio("gpu_span_ms", "commands")
    return NOTHING if span_ms_a_command is None else number(span_ms_a_command * 1e3)


def median(column: str, write: Callable[[float | None], str] = number) -> Callable[[Line], str]:
    """A cell: the median of a column over the repeats."""
    return lambda line: write(line.median(column))


def _p50_p99(name: str, unit: str) -> Callable[[Line], str]:
    return lambda line: pair(line.median(f"{name}_p50_{unit}"), line.median(f"{name}_p99_{unit}"))


def pair(p50: float | None, p99: float | None) -> str:
    """`median / p99`."""
    return NOTHING if p50 is None and p99 is None else f"{number(p50)} / {number(p99)}"


_MARKED = "speed-up"
FULL, COMPACT, TERMINAL = frozenset({"full"}), frozenset({"compact"}), frozenset({"terminal"})
ALL = FULL | COMPACT | TERMINAL

COLUMNS: Sequence[Column[Line]] = (
    Column("configuration", lambda line: line.configuration, FULL, is_text=True),
    Column("max_batch, timeout", short_configuration, TERMINAL, is_text=True),
    Column("mode", lambda line: str(line["mode"]), FULL | TERMINAL, is_text=True),
    Column("mode", mode_name, COMPACT, is_text=True),
    Column("ordering", _ordering, FULL, is_text=True),
    Column("repeats", lambda line: str(len(line.rows)), FULL),
    Column("wall ms", median("wall_ms"), ALL),
    Column("GPU ms", median("gpu_span_ms"), FULL | TERMINAL),
    Column("GPU us a command", _span_us, COMPACT),
    Column("launch calls", median("launch_calls", count), ALL),
    Column("commands a launch", lambda line: number(line.median_ratio("commands", "launch_calls")), FULL),
    Column("commands/s", median("commands_per_s", count), FULL),
    Column("host ns a launch", median("host_submit_ns_per_launch", count), FULL),
    Column("latency p50 / p99 us", _p50_p99("latency", "us"), FULL | TERMINAL),
    Column(_MARKED, speedup, FULL | COMPACT),
    Column(_MARKED, short_speedup, TERMINAL),
    Column("verdict", lambda line: str(line.verdict or NOTHING), FULL | TERMINAL, is_text=True),
    Column("C++ loop", lambda line: line.peer_ratio or NOTHING, FULL),
    Column("launch reduction", lambda line: _times(line.launch_reduction), FULL),
    Column("share of copy BW", _copy_share, ALL),
    Column("verified", verified, ALL, is_text=True),
    Column("max rel error", largest_error, FULL),
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
    Column("configuration", lambda line: line.configuration, FULL, is_text=True),
    Column("max_batch, timeout", short_configuration, TERMINAL | COMPACT, is_text=True),
    Column("mode", lambda line: str(line["mode"]), TERMINAL, is_text=True),
    Column("mode", mode_name, FULL | COMPACT, is_text=True),
    Column("requests", lambda line: count(line["requests"]), FULL | COMPACT),
    Column("scheduler", _scheduler, FULL | COMPACT, is_text=True),
    Column("sampling", _sampling, FULL | COMPACT, is_text=True),
    Column("tokens/s", median("tokens_per_s", count), ALL),
    Column("TTFT p50 / p99 ms", _p50_p99("ttft", "ms"), ALL),
    Column("TPOT p50 / p99 ms", _p50_p99("tpot", "ms"), ALL),
    Column("sampling us a token", _sampling_us, FULL | TERMINAL),
    Column("goodput", _goodput, FULL | COMPACT),
    Column("overloaded", _overloaded, ALL, is_text=True),
    Column("verified", _sound, ALL, is_text=True),
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
        remarks = [*line.remarks, *(left_out(line) if kind == "terminal" else [])]
        notes += [remark for remark in remarks if remark not in notes]
        marks = "".join(f" ({notes.index(remark) + 1})" for remark in remarks)
        cells.append([c.cell(line) + (marks if c.heading == _MARKED else "") for c in columns])
    return columns, cells, notes


def table_markdown(table: Table, kind: str) -> str:
    """One table with its title above and its notes, peer and history below."""
    columns, cells, notes = grid(table, kind)
    title = f"## {table.title}" if kind == "full" else f"**{table.title}**"
    below = [
        *(f"({index}) {escaped(note)}" for index, note in enumerate(notes, 1)),
        *([str(table.peer)] if table.peer else []),
    ]
    below += [table.history] if table.history else []
    if table.has_tokens:
        below += ["### Tokens", TOKENS_LEGEND, body(*tokens_grid(table, kind))]
    return "\n\n".join([title, table.subtitle, body(columns, cells), *below])


def body(columns: Sequence[Column[T]], cells: Iterable[Sequence[str]]) -> str:
    """Headings, rule and lines."""
    rule = ["---" if column.is_text else "---:" for column in columns]
    head = [_pipes(column.heading for column in columns), _pipes(rule)]
    return "\n".join([*head, *(_pipes(map(escaped, line)) for line in cells)])


def report_markdown(tables: Sequence[Table], kind: str) -> str:
    """All tables, under a heading when `full`, merged into one when `compact`; ends with a newline."""
    if kind == "compact":
        return _merged(tables)
    return "\n\n".join(["# Report", LEGEND, *(table_markdown(table, kind) for table in tables)]) + "\n"


_WORK: Column[Line] = Column("work, commands", lambda line: str(line["workload"]), COMPACT, is_text=True)
_PEER: Column[Line] = Column("C++ (shape)", lambda line: line.peer_ratio or NOTHING, COMPACT)


def _work(table: Table) -> str:
    more = f", {table['requests']:,} request{'' if table['requests'] == 1 else 's'}" if table.has_tokens else ""
    if table["arrival_rate_per_s"] is not None:
        more += f", {arrivals(table.lines[0].rows[0])}"
    return f"{table['workload']} {table['dtype']}, {table['commands']:,}{more}"


def _merged(tables: Sequence[Table]) -> str:
    """One table for a README: the work in its first column, the C++ program's figures beside ours; then the tokens."""
    merged: list[list[str]] = []
    notes: list[str] = []
    columns: list[Column[Line]] = []
    tokens: list[list[str]] = []
    has_peers = any(table.peer for table in tables)
    for table in tables:
        columns, cells, notes = grid(table, "compact", notes)
        for line, row in zip(table.lines, cells, strict=True):
            peer = [_peer_cell(table, line)] if has_peers else []
            merged.append([_work(table), *row[:-1], *peer, row[-1]])
        tokens += [[_work(table), *row] for row in tokens_grid(table, "compact")[1]]
    places = list(dict.fromkeys(table["gpu"] or table["device"].upper() for table in tables))
    heads = [_WORK, *columns[:-1], *([_PEER] if has_peers else []), columns[-1]]
    parts = [f"{', '.join(places)}. {SHORT_LEGEND}{PEER_LEGEND if has_peers else ''}", body(heads, merged)]
    parts += [f"({index}) {escaped(note)}" for index, note in enumerate(notes, 1)]
    if tokens:
        parts += [TOKENS_LEGEND, body([_WORK, *(c for c in TOKEN_COLUMNS if "compact" in c.sets)], tokens)]
    return "\n\n".join(parts) + "\n"


def _peer_cell(table: Table, line: Line) -> str:
    peer = table.peer
    if peer is None:
        return NOTHING
    shape = f"({peer.m}x{peer.n}x{peer.k})"
    return f"{peer.loop_us} us {shape}" if line.is_baseline else f"{peer.batch}: {peer.ratio}"


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


def escaped(text: str) -> str:
    """A status may hold anything: keep it on its line and in its cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
