"""Columns of tables of runs: a heading and a function that fills its cells.

In: a `rows.Line`. Out: cells as text. A column belongs to one or more of three sets: `full` (a report), `compact` (a
README) and `terminal` (about 140 characters).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from launchopt.analysis.metric import unless_wall
from launchopt.analysis.stream_rows import digits, is_independent, rate
from launchopt.analysis.tables.bandwidth import memory_share
from launchopt.analysis.tables.rows import Line
from launchopt.recording.results import Row

NOTHING = "—"
AT_THE_PEAK = "at the measured peak"  # of a share above 100%
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A heading, the function from a line or a point to its cell, and the sets that contain the column."""

    heading: str
    cell: Callable[[T], str]
    sets: frozenset[str]
    is_text: bool = False


def number(value: float | None) -> str:
    """Return a measured quantity: thousands separated, fewer decimals for larger values."""
    if value is None:
        return NOTHING
    return f"{value:,.{1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3}f}"


def three_digits(value: float) -> str:
    """Return a factor in three digits, from 100 on as a whole number: 0.971, 25.0, 125, 1,250."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def count(value: float | None) -> str:
    """Return a whole number with thousands separated."""
    return NOTHING if value is None else f"{value:,.0f}"


def mode_name(line: Line) -> str:
    """Return the mode, followed by the violation of the commands' order if there was one."""
    return f"{line['mode']} ({line.disorder})" if line.disorder else str(line["mode"])


def without_empty(
    columns: Sequence[Column[T]], cells: Sequence[Sequence[str]]
) -> tuple[list[Column[T]], list[list[str]]]:
    """Return the columns that have a value in some line, and their cells."""
    kept = [at for at in range(len(columns)) if any(line[at] != NOTHING for line in cells)]
    return [columns[at] for at in kept], [[line[at] for at in kept] for line in cells]


def short_configuration(line: Line) -> str:
    """Return max_batch and timeout: `512, 150 us`."""
    return line.configuration.removeprefix("max_batch ").replace(" timeout ", " ")


def _ordering(line: Line) -> str:
    if line.disorder:
        return f"({line.disorder})" if line["ordering"] == "violated" else line.disorder
    return "independent" if is_independent(line.rows[0]) else str(line["ordering"]).replace("_", " ")


def speedup(line: Line) -> str:
    """Return the speed-up with its interval, and its metric if not wall time; or the reason why there is none."""
    if line.problem is not None:
        return f"FAILED: {line.problem}"
    return f"{line.speedup}{unless_wall([line.metric])}" if line.speedup else NOTHING


def short_speedup(line: Line) -> str:
    """Return the speed-up for a narrow cell. `left_out` returns the texts that do not fit."""
    if line.problem is not None:
        return "FAILED"
    return str(line.speedup).partition(" (")[0] if line.speedup else NOTHING


def left_out(line: Line) -> list[str]:
    """Return notes for texts that are too long for a cell of a terminal."""
    notes = [f"failed: {' '.join(line.problem.split())}"] if line.problem is not None else []
    if line.speedup is not None and line.speedup.low is None:
        notes.append(f"no interval: {str(line.speedup).partition('(')[2].rstrip(')')}")
    if line.speedup is not None and (named := unless_wall([line.metric])):
        notes.append(f"speed-up{named}")
    return [*notes, *([line.disorder] if line.disorder else [])]


def remarks_by_column(line: Line, columns: Sequence[Column[T]], more: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the remarks of a line by the heading of the column that carries their numbers. more: further ones.

    That is the speed-up, or the mode if there is none. Remarks about rates go to a column of rates; without one they
    are left to `below_table`.
    """
    headings = [column.heading for column in columns]
    found = {MARKED if MARKED in headings else "mode": [*line.remarks, *more]}
    if rates := next((heading for heading in headings if heading in RATES), None):
        found[rates] = line.about_rates
    return found


def below_table(lines: Iterable[Line], columns: Sequence[Column[T]]) -> list[str]:
    """Return the remarks about rates, which stand below a table without a column of rates, without a number."""
    if any(column.heading in RATES for column in columns):
        return []
    return list(dict.fromkeys(remark for line in lines for remark in line.about_rates))


def _times(value: float | None) -> str:
    return NOTHING if value is None else f"{number(value)}x"


def of_peak(share: float) -> str:
    """Return a share of a peak. Above 100% it is only reached, since the peak was measured without an interval."""
    return f"{100 * share:.1f}%" if share <= 1 else AT_THE_PEAK


def _memory_share(line: Line) -> str:
    share = line.median_of(memory_share)
    return NOTHING if share is None else of_peak(share)


def verified(line: Line) -> str:
    """Return whether the outputs of every repeat were right."""
    return "yes" if all(row["verified"] for row in line.rows) else "NO"


def largest_error(line: Line) -> str:
    """Return the largest relative error over all repeats."""
    error = line.worst("max_rel_error")
    return NOTHING if error is None else f"{error:.1e}"


def _span_us(line: Line) -> str:
    span_ms_a_command = line.median_ratio("gpu_span_ms", "commands")
    return NOTHING if span_ms_a_command is None else number(span_ms_a_command * 1e3)


def cpu_us_per_launch(line: Line) -> str:
    """Return the host's mean time in a launch call."""
    host_ns = line.median("host_submit_ns_per_launch")
    return NOTHING if host_ns is None else number(host_ns / 1e3)


def median(column: str, write: Callable[[float | None], str] = number) -> Callable[[Line], str]:
    """Return a cell function: the median of a column over the repeats."""
    return lambda line: write(line.median(column))


def _p50_p99(name: str, unit: str) -> Callable[[Line], str]:
    return lambda line: pair(line.median(f"{name}_p50_{unit}"), line.median(f"{name}_p99_{unit}"))


def pair(p50: float | None, p99: float | None) -> str:
    """Return `p50 / p99`."""
    return NOTHING if p50 is None and p99 is None else f"{number(p50)} / {number(p99)}"


def overload(rows: Sequence[Row]) -> str:
    """Return whether the arrivals of an open loop overloaded any of a mode's repeats, with the rates if they did."""
    known = [row["overloaded"] for row in rows if row["overloaded"] is not None]
    if not any(known):
        return "no" if known else NOTHING
    line = Line(list(rows), None)
    reached, due = line.median("completed_rate_per_s"), line.median("arrival_rate_per_s")
    if reached is None or due is None or reached >= due:  # the last: a late rush, which drains fast
        return "YES"
    return f"YES: {rate(reached)} of {rate(due)}"


def _overloaded(line: Line) -> str:
    return overload(line.rows)


def _overloaded_commands(line: Line) -> str:
    """Return whether independent commands were overloaded; tokens have a table of their own."""
    return _overloaded(line) if line["tokens"] is None else NOTHING


BATCHING = "max_batch, timeout"
OVERLOADED = "overloaded"  # a table of a closed loop has no such column
MARKED = "speed-up"  # the column whose cells carry the numbers of notes
RATES = ("memory bandwidth, % of peak", "roofline")  # columns whose cells carry those of notes about rates
FULL, COMPACT, TERMINAL, PIPED = (frozenset({name}) for name in ("full", "compact", "terminal", "piped"))
ALL = FULL | COMPACT | TERMINAL | PIPED

COLUMNS: Sequence[Column[Line]] = (
    Column("configuration", lambda line: line.configuration, FULL, is_text=True),
    Column("mode", lambda line: str(line["mode"]), FULL | TERMINAL, is_text=True),
    Column("mode", mode_name, COMPACT | PIPED, is_text=True),
    Column(BATCHING, short_configuration, TERMINAL | PIPED, is_text=True),
    Column("ordering", _ordering, FULL, is_text=True),
    Column("repeats", lambda line: str(len(line.rows)), FULL),
    Column("wall ms", median("wall_ms"), ALL),
    Column("GPU ms", median("gpu_span_ms"), FULL | TERMINAL),
    Column("GPU us a command", _span_us, COMPACT),
    Column("launch calls", median("launch_calls", count), ALL),
    Column("commands a launch", lambda line: number(line.median_ratio("commands", "launch_calls")), FULL),
    Column("commands/s", median("commands_per_s", count), FULL),
    Column("CPU us per launch", cpu_us_per_launch, FULL),
    Column("latency p50 / p99 us", _p50_p99("latency", "us"), FULL | TERMINAL),
    Column(MARKED, speedup, FULL | COMPACT | PIPED),
    Column(MARKED, short_speedup, TERMINAL),
    Column("verdict", lambda line: str(line.verdict or NOTHING), FULL | TERMINAL | PIPED, is_text=True),
    Column("C++ loop", lambda line: line.peer_ratio or NOTHING, FULL),
    Column("launch reduction", lambda line: _times(line.launch_reduction), FULL),
    Column(RATES[0], _memory_share, FULL | COMPACT | TERMINAL),
    Column(OVERLOADED, _overloaded_commands, FULL | TERMINAL, is_text=True),
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
    objective = [
        f"{n.upper()} {digits(line[f'slo_{n}_ms'])} ms" for n in ("ttft", "tpot") if line[f"slo_{n}_ms"] is not None
    ]
    return NOTHING if per_s is None else f"{rate(per_s)} ({', '.join(objective) or 'no objective'})"


def _sound(line: Line) -> str:
    return "yes" if line.problem is None else "NO"


TOKEN_COLUMNS: Sequence[Column[Line]] = (
    Column("configuration", lambda line: line.configuration, FULL, is_text=True),
    Column("mode", lambda line: str(line["mode"]), TERMINAL | PIPED, is_text=True),
    Column(BATCHING, short_configuration, TERMINAL | COMPACT | PIPED, is_text=True),
    Column("mode", mode_name, FULL | COMPACT, is_text=True),
    Column("requests", lambda line: count(line["requests"]), FULL | COMPACT),
    Column("scheduler", _scheduler, FULL | COMPACT, is_text=True),
    Column("sampling", _sampling, FULL | COMPACT, is_text=True),
    Column("tokens/s", median("tokens_per_s", count), ALL),
    Column("TTFT p50 / p99 ms", _p50_p99("ttft", "ms"), ALL),
    Column("TPOT p50 / p99 ms", _p50_p99("tpot", "ms"), ALL),
    Column("sampling us a token", _sampling_us, FULL | TERMINAL),
    Column("goodput", _goodput, FULL | COMPACT | PIPED),
    Column(OVERLOADED, _overloaded, ALL, is_text=True),
    Column("verified", _sound, ALL, is_text=True),
)
