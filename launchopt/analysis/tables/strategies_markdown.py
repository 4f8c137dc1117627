"""Strategies as text: columns, the parts of each setup cost, and refusals.

In: `strategies.StrategyTable`. Out: Markdown, or cells for a terminal, in sets of columns as in `columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launchopt.analysis.stream_rows import counted, stream_subtitle, stream_title
from launchopt.analysis.tables.columns import (
    ALL,
    COMPACT,
    FULL,
    MARKED,
    NOTHING,
    RATES,
    TERMINAL,
    Column,
    below_table,
    count,
    cpu_us_per_launch,
    largest_error,
    left_out,
    median,
    mode_name,
    number,
    of_peak,
    remarks_by_column,
    short_configuration,
    short_speedup,
    speedup,
    verified,
)
from launchopt.analysis.tables.markdown import body, escaped
from launchopt.analysis.tables.rows import Line
from launchopt.analysis.tables.strategies import StrategyLine, StrategyTable, refusal_kind

LEGEND = (
    "Medians over repeats. Speed-up: wall time of the first mode over that of the mode, or the metric that the cell "
    "names, paired repeat by repeat; it can differ from the ratio of the medians. In []: its 95% interval; below five "
    "repeats the range in (). Setup: the time to make the mode ready (plans, capture, compile, tune). Break-even: the "
    "number of tokens, or of commands in work without tokens, that repays the setup, in brackets the time of the mode "
    "for them; `never`: the mode is no faster; `undecided`: there is no "
    "interval, or it leaves open whether it is."
)
FULL_LEGEND = (
    "CPU time per launch: mean, with waits for a full launch queue. Kernels and GPU busy are counted by CUPTI in "
    "traced runs of the same work; all other values are from untraced runs. p99: of a command's latency, enqueue to "
    "results on the device. Roofline: the larger share of measured bandwidth and measured FLOPs; a weight that "
    "requests share counts once. Padded: commands executed for nothing, to fill a batch up."
)
_PARTS = ("tuning", "compile", "capture", "instantiate", "upload")
_WITH_PARTS = "setup ms"


def _of_line(write: Callable[[Line], str]) -> Callable[[StrategyLine], str]:
    return lambda strategy: write(strategy.line)


def _mode(strategy: StrategyLine) -> str:
    streams = strategy.line["streams"]
    return mode_name(strategy.line) + (f" ({streams} streams)" if streams is not None and streams > 1 else "")


def _short_break_even(strategy: StrategyLine) -> str:
    found = strategy.break_even
    if isinstance(found, int):
        return counted(found, "token") if strategy.unit == "tokens" else count(found)
    return NOTHING if found is None else found.value


def _break_even(strategy: StrategyLine) -> str:
    work_ms = strategy.break_even_ms
    return _short_break_even(strategy) + ("" if work_ms is None else f" ({number(work_ms)} ms)")


def _roofline(strategy: StrategyLine) -> str:
    if strategy.roofline is None:
        return NOTHING
    share, what = strategy.roofline
    return f"{of_peak(share)} {what}" if share <= 1 else f"{what}: {of_peak(share)}"


COLUMNS: Sequence[Column[StrategyLine]] = (
    Column("mode", _mode, FULL | COMPACT, is_text=True),
    Column("mode", lambda strategy: str(strategy.line["mode"]), TERMINAL, is_text=True),
    Column("repeats", lambda strategy: str(len(strategy.line.rows)), FULL),
    Column("wall ms", _of_line(median("wall_ms")), ALL),
    Column("CPU us per launch", _of_line(cpu_us_per_launch), ALL),
    Column("launch calls", _of_line(median("launch_calls", count)), ALL),
    Column("kernels", lambda strategy: count(strategy.kernels), FULL),
    Column("GPU span ms", _of_line(median("gpu_span_ms")), FULL),
    Column("GPU busy ms", lambda strategy: number(strategy.busy_ms), FULL),
    Column("p99 us", _of_line(median("latency_p99_us")), FULL | TERMINAL),
    Column(_WITH_PARTS, _of_line(median("setup_ms")), ALL),
    Column("break-even", _break_even, FULL | COMPACT),
    Column("break-even", _short_break_even, TERMINAL),
    Column(RATES[1], _roofline, FULL | TERMINAL),
    Column(MARKED, _of_line(speedup), FULL | COMPACT),
    Column(MARKED, _of_line(short_speedup), TERMINAL),
    Column("verdict", lambda strategy: str(strategy.line.verdict or NOTHING), FULL, is_text=True),
    Column("padded", _of_line(median("padded_commands", count)), FULL),
    Column("verified", _of_line(verified), ALL, is_text=True),
    Column("max rel error", _of_line(largest_error), FULL),
)
_DIFFERING: dict[str, Callable[[Line], str]] = {
    "max_batch, timeout": short_configuration,
    "run": lambda line: str(line["run_id"]),
}


def _parts(strategy: StrategyLine) -> list[str]:
    """Return notes on the parts of a setup cost, and on costs that occur again in every run."""
    parts = [(part, strategy.line.median(f"{part}_ms")) for part in _PARTS]
    spelled = [f"{part} {number(ms)} ms" for part, ms in parts if ms is not None]
    replays, update_ms = strategy.line.median("graph_replays"), strategy.line.median("update_ms")
    more = [f"{count(replays)} replays"] if replays is not None else []
    more += [f"updates {number(update_ms)} ms in all"] if update_ms is not None else []
    notes = [f"{', '.join(spelled)}"] if spelled else []
    return ["; ".join(notes + ([f"during the run {', '.join(more)}"] if more else []))] if notes or more else []


def strategies_grid(table: StrategyTable, kind: str) -> tuple[list[Column[StrategyLine]], list[list[str]], list[str]]:
    """Return the columns of a set, the cells of every mode, and notes. Runs and settings that differ come first."""
    columns = [column for column in COLUMNS if kind in column.sets]
    for heading, write in _DIFFERING.items():
        if len({write(strategy.line) for strategy in table.strategies}) > 1:
            columns.insert(0, Column(heading, _of_line(write), frozenset({kind}), is_text=True))
    notes: list[str] = []

    def marks(texts: list[str]) -> str:
        notes.extend(text for text in texts if text not in notes)
        return "".join(f" ({notes.index(text) + 1})" for text in texts)

    cells = []
    for strategy in table.strategies:
        remarks = remarks_by_column(strategy.line, columns, left_out(strategy.line) if kind == "terminal" else ())
        notable = {_WITH_PARTS: _parts(strategy), **remarks}
        cells.append([column.cell(strategy) + marks(notable.get(column.heading, [])) for column in columns])
    return columns, cells, notes


def strategies_subtitle(table: StrategyTable) -> str:
    """Return device and work, with the settings where all lines share them."""
    settings = {strategy.line.configuration for strategy in table.strategies}
    return ", ".join([stream_subtitle(table.stream), *(settings if len(settings) == 1 else [])])


def refusals(table: StrategyTable) -> list[str]:
    """Return a line per reason: the modes, and the reason."""
    modes: dict[str, list[str]] = {}
    for mode, reason in table.refused.items():
        modes.setdefault(reason, []).append(mode)
    return [f"{refusal_kind(reason)}: {', '.join(sorted(names))} ({reason})" for reason, names in modes.items()]


def strategies_markdown(tables: Sequence[StrategyTable], kind: str) -> str:
    """Return a table per stream, `full` under a heading or `compact` for a README; ends with a newline."""
    parts = ["# Strategies", f"{LEGEND} {FULL_LEGEND}"] if kind == "full" else [LEGEND]
    for table in tables:
        columns, cells, notes = strategies_grid(table, kind)
        title, subtitle = escaped(stream_title(table.stream)), escaped(strategies_subtitle(table))
        parts += [f"## {title}" if kind == "full" else f"**{title}**", subtitle, body(columns, cells)]
        parts += [f"({index}) {escaped(note)}" for index, note in enumerate(notes, 1)]
        parts += map(escaped, below_table((each.line for each in table.strategies), columns))
        parts += ["\n".join(f"- {escaped(line)}" for line in refusals(table))] if table.refused else []
    return "\n\n".join(parts) + "\n"
