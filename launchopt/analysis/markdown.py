"""Tables as text: which columns, how a number is written, footnotes, and blocks inside a README.

In: `tables.Table`. Out: Markdown, or cells for a terminal. Three sets of columns share their definitions:
`full` for a report, `compact` for a README, `terminal` for about 140 characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchopt.analysis.tables import Line, Table, has_no_dependencies
from launchopt.errors import DataError

NOTHING = "—"
LEGEND = (
    "Median over repeats. Speed-up: wall time of the baseline / wall time of the line, with a 95% bootstrap "
    "interval; the verdict calls up to 1% the same. GPU time is the span between two events on the work's "
    "stream. C++ loop: the ratio that a C++ program got from strided batches of the same shape."
)
SHORT_LEGEND = (
    "Medians; speed-up of wall time over `baseline`, with a 95% bootstrap interval. C++: GPU span a command that a C++ "
    "program got from cuBLASLt on the same GPU, for one shape of the workload, in a loop and in strided batches."
)


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, how a line fills it, and which sets of columns it is in."""

    heading: str
    cell: Callable[[Line], str]
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
    return f"{line['mode']} (dependencies ignored)" if line.dependencies_ignored else str(line["mode"])


def _short_configuration(line: Line) -> str:
    return line.configuration.removeprefix("max_batch ").replace(" timeout ", " ")


def _ordering(line: Line) -> str:
    if line.dependencies_ignored:
        return "dependencies ignored"
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
    return [*notes, *(["dependencies ignored"] if line.dependencies_ignored else [])]


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


def _latency(line: Line) -> str:
    p50, p99 = line.median("latency_p50_us"), line.median("latency_p99_us")
    return NOTHING if p50 is None and p99 is None else f"{number(p50)} / {number(p99)}"


_MARKED = "speed-up"
_FULL, _COMPACT, _TERMINAL = frozenset({"full"}), frozenset({"compact"}), frozenset({"terminal"})
_ALL = _FULL | _COMPACT | _TERMINAL

COLUMNS = (
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
    Column("latency p50 / p99 us", _latency, _FULL | _TERMINAL),
    Column(_MARKED, _speedup, _FULL | _COMPACT),
    Column(_MARKED, _short_speedup, _TERMINAL),
    Column("verdict", lambda line: str(line.verdict or NOTHING), _FULL | _TERMINAL, is_text=True),
    Column("C++ loop", lambda line: line.peer_ratio or NOTHING, _FULL),
    Column("launch reduction", lambda line: _times(line.launch_reduction), _FULL),
    Column("share of copy BW", _copy_share, _ALL),
    Column("verified", _verified, _ALL, is_text=True),
    Column("max rel error", _error, _FULL),
)


def grid(table: Table, kind: str, known: Sequence[str] = ()) -> tuple[list[Column], list[list[str]], list[str]]:
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
    rule = ["---" if column.is_text else "---:" for column in columns]
    body = [
        _pipes(column.heading for column in columns),
        _pipes(rule),
        *(_pipes(map(_escaped, c)) for c in cells),
    ]
    title = f"## {table.title}" if kind == "full" else f"**{table.title}**"
    below = [
        *(f"({index}) {_escaped(note)}" for index, note in enumerate(notes, 1)),
        *([str(table.peer)] if table.peer else []),
    ]
    below += [table.history] if table.history else []
    return "\n\n".join([title, table.subtitle, "\n".join(body), *below])


def report_markdown(tables: Sequence[Table], kind: str) -> str:
    """All tables, under a heading when `full`, merged into one when `compact`; ends with a newline."""
    if kind == "compact":
        return _merged(tables)
    return "\n\n".join(["# Report", LEGEND, *(table_markdown(table, kind) for table in tables)]) + "\n"


def _merged(tables: Sequence[Table]) -> str:
    """One table for a README: the work in its first column, the C++ program's figures beside ours."""
    body: list[str] = []
    notes: list[str] = []
    columns: list[Column] = []
    for table in tables:
        columns, cells, notes = grid(table, "compact", notes)
        work = f"{table['workload']} {table['dtype']}, {table['commands']:,}"
        for line, row in zip(table.lines, cells, strict=True):
            body.append(_pipes(map(_escaped, [work, *row[:-1], _peer_cell(table, line), row[-1]])))
    names = [column.heading for column in columns]
    rule = ["---" if column.is_text else "---:" for column in columns]
    head = [_pipes(["work, commands", *names[:-1], "C++ (shape)", names[-1]])]
    head += [_pipes(["---", *rule[:-1], "---:", rule[-1]])]
    places = list(dict.fromkeys(table["gpu"] or table["device"].upper() for table in tables))
    numbered = [f"({index}) {_escaped(note)}" for index, note in enumerate(notes, 1)]
    return "\n\n".join([f"{', '.join(places)}. {SHORT_LEGEND}", "\n".join([*head, *body]), *numbered]) + "\n"


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


def _escaped(text: str) -> str:
    """A status may hold anything: keep it on its line and in its cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
