"""Tables as Markdown: columns, footnotes, and blocks inside a README.

In: `rows.Table`. Out: Markdown, or cells for a terminal, in sets of columns (`columns`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from launchopt.analysis.stream_rows import arrivals, counted, stream_details
from launchopt.analysis.tables.columns import (
    BATCHING,
    COLUMNS,
    COMPACT,
    NOTHING,
    OVERLOADED,
    TOKEN_COLUMNS,
    Column,
    T,
    below_table,
    left_out,
    remarks_by_column,
)
from launchopt.analysis.tables.rows import BASELINE, Line, Table
from launchopt.errors import DataError, one_line, printable

SHORT = ("terminal", "piped")  # sets of columns that leave out what says nothing, up to 8 of them piped
TEXT, NUMBER = "---", "---:"  # alignment of a column in Markdown: left, right

LEGEND = (
    "Median over repeats. Speed-up: wall time of the baseline over that of the line, or the metric that the cell "
    "names, paired repeat by repeat; it can differ from the ratio of the medians. In []: its 95% interval; below five "
    "repeats the range in (). The verdict calls up to 1% the same. GPU time is the span between two events on the "
    "work's stream. Memory bandwidth: bytes "
    "that had to move, as a share of the measured peak; a weight that requests share counts once, and inputs in a "
    "cache give none. C++ loop: the ratio that a C++ program got from strided batches of the same shape."
)
SHORT_LEGEND = (
    "Medians; speed-up of wall time over `baseline`, or of the metric that a cell names, with its 95% interval in [], "
    "below five repeats the range in ()."
)
_BANDWIDTH_LEGEND = " Memory bandwidth: bytes that had to move; a weight that requests share counts once."
PEER_LEGEND = (
    " C++: GPU span per command of a C++ program with cuBLASLt on a GPU of the same name, for one shape of the"
    " workload, in a loop and in strided batches."
)
HISTORY_LEGEND = "gpu-kernel-batcher printed these speed-ups on an RTX 3060, which are no comparison: "
TOKENS_LEGEND = (
    "Medians. TTFT: arrival of a request to its first token. TPOT: a request's mean time a token after the first. "
    "Percentiles are over requests. Goodput: requests a second that met the objective in brackets."
)
BLOCK_START = re.compile(r"^([#>~`=])")  # would begin a heading, a quotation or a block of code
FORGES = re.compile(r"@(?=\w)|#(?=\d)|:(?=//)|www(?=\.)", re.IGNORECASE)  # a forge makes a mention or a link of these


def tokens_grid(table: Table, kind: str) -> tuple[Sequence[Column[Line]], list[list[str]]]:
    """Return the columns of a set and the cells of every line that generated tokens."""
    columns = _with_runs(_shown(TOKEN_COLUMNS, table, kind), table, kind)
    lines = [line for line in table.lines if line.median("tokens") is not None]
    return columns, [[column.cell(line) for column in columns] for line in lines]


def grid(table: Table, kind: str, known: Sequence[str] = ()) -> tuple[list[Column[Line]], list[list[str]], list[str]]:
    """Return the columns of a set, the cells of every line, and the notes, numbered after the `known` ones.

    `remarks_by_column` says which column has the number of a note.
    """
    columns = [column for column in _shown(COLUMNS, table, kind) if not _is_empty_overload(column, table)]
    columns = _with_runs(columns, table, kind)
    notes = list(known)
    cells: list[list[str]] = []
    for line in table.lines:
        remarks = remarks_by_column(line, columns, left_out(line) if kind in SHORT else ())
        notes += [each for texts in remarks.values() for each in texts if each not in notes]
        marks = {name: "".join(f" ({notes.index(each) + 1})" for each in texts) for name, texts in remarks.items()}
        cells.append([c.cell(line) + marks.get(c.heading, "") for c in columns])
    return columns, cells, notes


def _with_runs(columns: Sequence[Column[Line]], table: Table, kind: str) -> list[Column[Line]]:
    """Return the columns, with one for the run if the table has several: the first, or in a short set the second."""
    if kind == "compact" or len({line["run_id"] for line in table.lines}) == 1:
        return [*columns]
    run: Column[Line] = Column("run", lambda line: str(line["run_id"]), frozenset({kind}), is_text=True)
    at = int(kind != "full")
    return [*columns[:at], run, *columns[at:]]


def _shown(columns: Sequence[Column[Line]], table: Table, kind: str) -> list[Column[Line]]:
    """Return the columns of a set.

    Of a short set a column without any value is left out, and so is a configuration that all lines share: it is part of
    the caption (`short_caption`).
    """
    chosen = [column for column in columns if kind in column.sets]
    if kind not in SHORT:
        return chosen
    is_shared = len({line.configuration for line in table.lines}) == 1
    return [
        column
        for column in chosen
        if not (is_shared and column.heading == BATCHING) and any(column.cell(line) != NOTHING for line in table.lines)
    ]


def short_caption(table: Table) -> str:
    """Return device and work, with the configuration that all lines share."""
    configurations = {line.configuration for line in table.lines}
    return ", ".join([table.subtitle, *(configurations if len(configurations) == 1 else [])])


def _is_empty_overload(column: Column[Line], table: Table) -> bool:
    """Return whether a column is that of overload, and no line has an open loop of independent commands."""
    return column.heading == OVERLOADED and all(column.cell(line) == NOTHING for line in table.lines)


def table_markdown(table: Table, kind: str) -> str:
    """Return one table with its title above. Below are its notes and the figures of other programs."""
    columns, cells, notes = grid(table, kind)
    name = escaped(table.title)
    title = f"**{name}**" if kind == "compact" else f"## {name}"
    below = [
        *(f"({index}) {escaped(note)}" for index, note in enumerate(notes, 1)),
        *map(escaped, below_table(table.lines, columns)),
        *([str(table.peer)] if table.peer else []),
    ]
    below += [str(table.history)] if table.history else []
    if table.has_tokens:
        below += ["### Tokens", TOKENS_LEGEND, body(*tokens_grid(table, kind))]
    caption = short_caption(table) if kind in SHORT else table.subtitle
    return "\n\n".join([title, escaped(caption), body(columns, cells), *below])


def body(columns: Sequence[Column[T]], cells: Iterable[Sequence[str]]) -> str:
    """Return headings, rule and lines."""
    rule = [TEXT if column.is_text else NUMBER for column in columns]
    head = [_pipes(column.heading for column in columns), _pipes(rule)]
    return "\n".join([*head, *(_pipes(map(escaped, line)) for line in cells)])


def pipe_table(headings: Mapping[str, str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of escaped cells, without a newline at its end. headings: name to rule, TEXT or NUMBER."""
    return plain(headings, (list(map(escaped, row)) for row in rows)).rstrip("\n")


def plain(headings: Mapping[str, str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already; ends with a newline. headings: name to rule."""
    return "\n".join(map(_pipes, [list(headings), list(headings.values()), *lines])) + "\n"


def report_markdown(tables: Sequence[Table], kind: str) -> str:
    """Return all tables: `compact` merged into one, or each under a heading; ends with a newline."""
    if kind == "compact":
        return _merged(tables)
    return "\n\n".join(["# Report", LEGEND, *(table_markdown(table, kind) for table in tables)]) + "\n"


_WORK: Column[Line] = Column("work, commands", lambda line: str(line["workload"]), COMPACT, is_text=True)
_PEER: Column[Line] = Column("C++ (shape)", lambda line: line.peer_ratio or NOTHING, COMPACT)


def _work(table: Table) -> str:
    """Return workload, types and number of commands, with the requests and arrivals if there are any."""
    more = f", {counted(table['requests'], 'request')}" if table.has_tokens else ""
    if table["arrival_rate_per_s"] is not None:
        more += f", {arrivals(table.lines[0].rows[0])}"
    return f"{table['workload']} {table.number_types}, {table['commands']:,}{more}"


def _works(tables: Sequence[Table]) -> list[str]:
    """Return the work of each table, with the first settings that tell it from works of the same kind and requests."""
    works = [_work(table) for table in tables]
    kinds = [
        (table["workload"], table.number_types, table["requests"], table["arrival_rate_per_s"]) for table in tables
    ]
    details = [stream_details(table.lines[0].rows[0]) for table in tables]
    for kind in dict.fromkeys(kinds):
        places = [place for place, each in enumerate(kinds) if each == kind]
        own = [[text for text in details[i] if not all(text in details[j] for j in places)] for i in places]
        counts = range(max(map(len, own)) + 1)
        count = next((n for n in counts if len({*map(tuple, (texts[:n] for texts in own))}) == len(places)), counts[-1])
        for place, texts in zip(places, own, strict=True):
            works[place] = ", ".join([works[place], *texts[:count]])
    return works


def _merged(tables: Sequence[Table]) -> str:
    """Return all tables as one for a README, with legend and notes; then a table of tokens, if any work has them.

    The first column is the work. If a C++ program that uses cuBLASLt was measured for some of it (`reference.Peer`), a
    column has its figures.
    """
    merged: list[list[str]] = []
    notes: list[str] = []
    columns: list[Column[Line]] = []
    tokens: list[list[str]] = []
    has_peers = any(table.peer for table in tables)
    for table, work in zip(tables, _works(tables), strict=True):
        columns, cells, notes = grid(table, "compact", notes)
        for line, row in zip(table.lines, cells, strict=True):
            peer = [_peer_cell(table, line)] if has_peers else []
            merged.append([work, *row[:-1], *peer, row[-1]])
        _, token_cells = tokens_grid(table, "compact")
        tokens += [[work, *row] for row in token_cells]
    places = list(dict.fromkeys(escaped(table["gpu"] or table["device"].upper()) for table in tables))
    heads = [_WORK, *columns[:-1], *([_PEER] if has_peers else []), columns[-1]]
    parts = [
        f"{', '.join(places)}. {SHORT_LEGEND}{_BANDWIDTH_LEGEND}{PEER_LEGEND if has_peers else ''}",
        body(heads, merged),
    ]
    parts += [f"({index}) {escaped(note)}" for index, note in enumerate(notes, 1)]
    if printed := [f"{table['workload']} {table['dtype']} {table.history.factor}" for table in tables if table.history]:
        parts.append(HISTORY_LEGEND + ", ".join(printed) + ".")
    if tokens:
        parts += [TOKENS_LEGEND, body([_WORK, *(c for c in TOKEN_COLUMNS if "compact" in c.sets)], tokens)]
    return "\n\n".join(parts) + "\n"


def _peer_cell(table: Table, line: Line) -> str:
    peer = table.peer
    if peer is None:
        return NOTHING
    shape = f"({peer.m}x{peer.n}x{peer.k})"
    return f"{peer.loop_us} us {shape}" if line["mode"] == BASELINE else f"{peer.batch}: {peer.ratio}"


def sync_blocks(text: str, path: Path, render: Callable[[str], str]) -> str:
    """Return `text` with render(NAME) between `<!-- report:NAME -->` and `<!-- /report:NAME -->`.

    Raises DataError, naming `path` and the line, for a marker without its partner, and for a text without markers.
    """
    openings = list(re.finditer(r"<!-- (?P<slash>/?)report:(?P<name>\S+) -->", text))
    if not openings:
        raise DataError(path, None, "no <!-- report:FOLDER --> marker in it")
    parts, done = [], 0
    # With an odd number of markers the last one has no partner: it is paired with None.
    for start, end in zip(openings[::2], [*openings[1::2], None], strict=False):
        name = start["name"]
        if start["slash"] or end is None or not end["slash"] or end["name"] != name:
            line = text.count("\n", 0, start.start()) + 1
            raise DataError(path, line, f"marker {start[0]} is not paired with the one that follows")
        parts += [text[done : start.end()], "\n", render(name)]
        done = end.start()
    return "".join([*parts, text[done:]])


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Return a text of one line that is Markdown for itself: no markup, no end of its cell, no control characters.

    A name or status may contain any character. A link or picture in it would be shown or loaded, and an entity such as
    `&#8238;` would become a bidi mark. An empty comment divides `@name`, `#12` and a bare address: forges look for them
    after they have removed backslashes.
    """
    plain_text = printable(" ".join(text.split())).replace("|", "\\|").replace("&", "&amp;").replace("<", "&lt;")
    inert = BLOCK_START.sub(r"\\\1", plain_text).replace("](", "]\\(").replace("]:", "]\\:")
    return FORGES.sub(r"\g<0><!-- -->", inert)


def code_span(text: str) -> str:
    """Return a name in one line as Markdown that shows it as it is, also with backticks in it."""
    shown = one_line(text)
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{shown}{space}{fence}"
