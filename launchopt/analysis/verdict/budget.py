"""Cost of launches per day: host hours inside launch calls, and hours in which the GPU has nothing to run.

In: tokens per day and the model (`Ask`), and the lines of measured streams. Out: a `Budget`: a line per mode and
stream, and every assumption in words. Pure: reads no file, prints nothing.

    hours(10e6, 1200, 5)        # 16.7: the textbook's 1,200 launches a token at 5 us, 10 M tokens a day

A model that was not measured is scaled: its commands per token are the commands per layer times its layers. Each mode
keeps its measured launches per command and cost per launch. A graph is replayed once per step for any number of layers,
so its launches per token are kept. Its GPU idle time is then an upper bound, since larger kernels hide more
launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from launchopt.analysis.line_names import told_apart
from launchopt.analysis.stream_rows import cached, digits, number_types, weight_bytes
from launchopt.analysis.tables.bandwidth import unsteady
from launchopt.analysis.tables.strategies import StrategyLine, StrategyTable, build_strategies
from launchopt.analysis.verdict.budget_question import (
    Ask,
    commands_per_token,
    is_scaled,
    ops_a_layer,
    scaling_of,
    title_of,
    tokens_of,
)
from launchopt.analysis.verdict.evidence import launching_ms
from launchopt.analysis.verdict.roofline import predict, recorded_launches, replays_graphs
from launchopt.errors import ConfigError, DataError
from launchopt.recording.results import Row

US_AN_HOUR = 3600e6


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One mode on one stream, for a day. `idle_is_bound`: the idle hours are an upper bound. None: unknown."""

    work: str
    mode: str
    launches_per_token: float
    launch_us: float
    host_hours: float
    gpu_idle_hours: float | None
    idle_is_bound: bool
    cost: float | None


@dataclass(frozen=True, slots=True)
class Budget:
    """The lines, in stream order with the baseline first, and their assumptions, a sentence each."""

    lines: list[BudgetLine]
    assumptions: list[str]


def hours(tokens: float, launches_per_token: float, launch_us: float) -> float:
    """Return the hours of all launches of a day, one after another."""
    return tokens * launches_per_token * launch_us / US_AN_HOUR


def textbook(ask: Ask) -> Budget:
    """Return the budget from the figures in `ask` alone, without a measured run.

    Raise ConfigError if a figure that it needs is missing.
    """
    if ask.launch_us is None:
        raise ConfigError("launch_us", "", "missing: give it, or from=RUN with measured costs")
    launches, source = ask.launches_per_token, "launches a token as given"
    if launches is None:
        if ask.layers is None:
            raise ConfigError(
                "launches_per_token", "", "missing: give it, or model=, or from=RUN with measured launches"
            )
        per_layer, kind = (ask.launches_per_layer, "as given") if ask.launches_per_layer else ops_a_layer(ask)
        launches = per_layer * ask.layers
        source = f"launches a token: {digits(per_layer)} a layer ({kind}) x {ask.layers} layers of {ask.model}"
    host = hours(ask.tokens_per_day, launches, ask.launch_us)
    assumptions = [
        source,
        f"{digits(ask.launch_us)} us a launch as given, all one after the other",
        "GPU idle: at most the host hours, if the GPU waits for every launch and runs nothing meanwhile",
        f"{_tokens_a_day(ask)}; prompts are not counted",
        *_shared_assumptions(ask),
    ]
    return Budget(
        [BudgetLine("as given", "—", launches, ask.launch_us, host, host, True, _cost(ask, host))], assumptions
    )


def measured(ask: Ask, rows: Iterable[Row], source: str, own: Mapping[str, Sequence[str]] | None = None) -> Budget:
    """Return the budget of every mode in `rows`; DataError naming `source` where no row gives one.

    own: what `own_bases` returns.
    """
    tables = build_strategies(rows, own=own)
    usable = [table for table in tables if commands_per_token(ask, table.stream).asked is not None]
    if not usable:
        why = "no untraced run generated tokens of a model: take decode, layer or moe, or give launches_per_token="
        raise DataError(source, None, why)
    pairs = [(table, each, _line(ask, table, each)) for table in usable for each in table.strategies]
    lines = [line for _, _, line in pairs if line is not None]
    if not lines:
        raise DataError(source, None, "no run that is verified, and whose launches were timed")
    left_out = [
        f"left out: {each.line['mode']} of {title_of(table.stream)}, {_reason(each)}"
        for table, each, line in pairs
        if line is None
    ]
    kinds = dict.fromkeys(table.stream["workload"] for table in tables if table not in usable)
    skipped = [f"left out: {', '.join(kinds)}, which generate no tokens of a model"] if kinds else []
    return Budget(lines, [*_measured_assumptions(ask, usable), *_shared_assumptions(ask), *left_out, *skipped])


def _reason(strategy: StrategyLine) -> str:
    return " ".join((strategy.line.problem or "its launches were not timed").split())


def _line(ask: Ask, table: StrategyTable, strategy: StrategyLine) -> BudgetLine | None:
    line, stream = strategy.line, table.stream
    calls, commands, own_ms = line.median("launch_calls"), line.median("commands"), launching_ms(line)
    if line.problem is not None or not calls or not commands or own_ms is None:
        return None
    was, wanted = commands_per_token(ask, stream)
    if wanted is None:
        return None
    is_replayed = was is not None and replays_graphs(line)
    launches = calls / (tokens_of(stream) or 1) if is_replayed else wanted * calls / commands
    us = own_ms / calls * 1e3 if ask.launch_us is None else ask.launch_us
    idle_ms, is_bound = _idle_ms(strategy)
    # Idle time scales with commands, not with launches: a graph has gaps between its nodes, too.
    idle = None if idle_ms is None else ask.tokens_per_day * wanted * idle_ms / commands * 1e3 / US_AN_HOUR
    is_bound = is_bound or was != wanted or is_scaled(ask, stream)
    host = hours(ask.tokens_per_day, launches, us)
    return BudgetLine(title_of(stream), _name(strategy, table), launches, us, host, idle, is_bound, _cost(ask, idle))


def _name(strategy: StrategyLine, table: StrategyTable) -> str:
    """Return a label: the mode, what tells it from other lines of that mode, and a note if order was not kept."""
    line = strategy.line
    name = ", ".join([str(line["mode"]), *told_apart(line, [each.line for each in table.strategies])])
    return f"{name} ({line.disorder})" if line.disorder else name


def _idle_ms(strategy: StrategyLine) -> tuple[float | None, bool]:
    """Return the GPU's idle time, and whether it is an upper bound.

    Without a trace the bound is the wall time beyond the roofline's. Idle time is unknown in an open loop, where the
    GPU also waits for requests, and on a CPU.
    """
    line, wall_ms = strategy.line, strategy.line.median("wall_ms")
    if wall_ms is None or line["device"] != "cuda" or line["arrival"] != "closed":
        return None, False
    if strategy.busy_ms is not None:  # from a traced run, which is useless if it was slower
        return (wall_ms - strategy.busy_ms, False) if strategy.busy_ms <= wall_ms else (None, False)
    floor_ms = predict(strategy).work.floor_ms
    return (None, False) if floor_ms is None else (max(0.0, wall_ms - floor_ms), True)


def _cost(ask: Ask, gpu_idle_hours: float | None) -> float | None:
    return None if ask.gpu_hour_cost is None or gpu_idle_hours is None else ask.gpu_hour_cost * gpu_idle_hours


def _tokens_a_day(ask: Ask) -> str:
    return f"{ask.tokens_per_day:,.0f} generated tokens a day"


def _shared_assumptions(ask: Ask) -> list[str]:
    notes = ["one GPU and one thread that launches; with tensor parallelism every rank launches as much again"]
    if ask.gpu_hour_cost is not None:
        notes.append(f"cost: {digits(ask.gpu_hour_cost)} an hour of a GPU x its idle hours")
    return notes


def _measured_assumptions(ask: Ask, tables: Sequence[StrategyTable]) -> list[str]:
    cost = (
        "as given"
        if ask.launch_us is not None
        else "measured: time in launch calls, without waits for a full launch queue"
    )
    notes = [f"us a launch: {cost}"]
    if any(table.stream["device"] == "cpu" for table in tables):
        notes.append("on the CPU a launch call is also its work: host hours hold both, of the layers that ran")
    for table in tables:
        stream = table.stream
        was, wanted = commands_per_token(ask, stream)
        how = "as measured" if was == wanted else "as given" if ask.launches_per_token else scaling_of(ask, stream)
        notes.append(f"{title_of(stream)}: {digits(wanted or 0, 4)} commands a token, {how}")
        if stream["expert_routing"] is not None:
            notes.append(f"{stream['workload']}: the experts of a layer, without its attention")
        if stream["cached_tokens"] is not None:
            notes.append(f"{title_of(stream)}: {cached(stream)}, so launches of prompts have fewer columns")
        if is_scaled(ask, stream):
            notes.append(_kernels(ask, table))
    if any(replays_graphs(each.line) for table in tables for each in table.strategies):
        notes.append("a graph is replayed once a step: its launches a token do not grow with the layers")
    notes.append("GPU idle: wall time less GPU busy (of a traced run; else less the roofline), a command, x commands")
    notes.append("GPU idle holds all waiting: for launches, between kernels, and for the token before; ≤: a bound")
    return [*notes, f"{_tokens_a_day(ask)}; launches of prompts count with the tokens that they led to in the run"]


def _kernels(ask: Ask, table: StrategyTable) -> str:
    """Return a sentence: by the roofline, whether a linear of the model in the question takes longer than a launch."""
    stream, baseline = table.stream, table.strategies[0].line
    ran = f"kernels were those of {stream['model'] or stream['workload']}"
    rates = [rate for rate in map(baseline.median, ("read_gb_per_s", "copy_gb_per_s")) if rate]
    own_ms, calls = launching_ms(baseline), recorded_launches(baseline)
    if why := unsteady(baseline.rows):
        return f"{ran}; {why}"
    if not ask.linears or not rates or own_ms is None or not calls:
        return f"{ran}; larger ones hide more launches"
    least_us = fmean(weight_bytes(stream, m, k) for m, k in ask.linears) / max(rates) / 1e3
    us = own_ms / calls * 1e3
    verdict = "which can hide: expect far less GPU idle" if least_us > us else "which cannot hide"
    return (
        f"{ran}; a linear of {ask.model} asks {digits(least_us, 3)} us or more of one GPU ({number_types(stream)},"
        f" {max(rates):,.0f} GB/s), a launch {digits(us, 3)} us of the host, {verdict}"
    )
