"""Every strategy on one stream of commands: its gain, its setup cost, and the commands that repay it.

In: rows as `results.read_summaries` gives them, and the modes that refused the work, by run. Out: a `StrategyTable` per
stream of commands, with a `StrategyLine` per mode that ran it. Pure: reads no file, prints nothing.

Times are those of untraced runs. Kernels and GPU busy need a tracer: they come from traced runs of the same work in the
same mode, and nothing else does. `rows` defines which lines may claim a speed-up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from launchopt.analysis.metric import WALL
from launchopt.analysis.stream_rows import STREAM
from launchopt.analysis.tables.bandwidth import memory_share
from launchopt.analysis.tables.rows import Line, Table, build_tables
from launchopt.recording.results import Row
from launchopt.statistics.interval import Verdict

_SETTINGS = ("mode", "ordering", "max_batch", "timeout_us")

Refusals = Mapping[str, Mapping[str, str]]  # run_id -> mode -> the reason why it cannot run that work


class Payback(StrEnum):
    """Results of `break_even` that are no number."""

    AT_ONCE = "at once"  # the setup costs no more than that of the baseline
    NEVER = "never"  # the mode saves nothing
    UNDECIDED = "undecided"  # unknown whether the mode saves anything


@dataclass(frozen=True, slots=True)
class StrategyLine:
    """One mode on a stream of commands. `traced` has the same mode in runs under a tracer."""

    line: Line
    traced: Line | None

    @property
    def kernels(self) -> float | None:
        """Number of kernels that a tracer counted."""
        return self.traced.median("kernels") if self.traced else None

    @property
    def busy_ms(self) -> float | None:
        """GPU busy time by a tracer."""
        return self.traced.median("gpu_busy_ms") if self.traced else None

    @property
    def roofline(self) -> tuple[float, str] | None:
        """The larger of the shares of measured bandwidth and measured FLOPs, and its name."""
        shares = {
            "memory": self.line.median_of(memory_share),
            "compute": self.line.median_ratio("achieved_tflops", "peak_tflops"),
        }
        return max(((share, what) for what, share in shares.items() if share is not None), default=None)

    @property
    def unit(self) -> str:
        """Unit of `break_even`: tokens of a workload that has them, else commands."""
        return "tokens" if self.line.median("tokens") else "commands"

    @property
    def break_even(self) -> int | Payback | None:
        """Number of tokens, or commands, that repays the setup beyond the baseline's; None: unknown.

        Tuning is left out: the first mode of a run that needs an algorithm pays for all. In an open loop that kept up
        it is unknown: the wall time follows the arrivals, so it says nothing about what a command saves.
        """
        line, baseline = self.line, self.line.baseline
        if baseline is None or line.speedup is None or line.metric != WALL:
            return None
        cost, base_cost = _untuned_ms(line), _untuned_ms(baseline)
        time, base_time = (each.median_ratio("wall_ms", self.unit) for each in (line, baseline))
        if cost is None or base_cost is None or time is None or base_time is None:
            return None
        return break_even(cost - base_cost, base_time - time, line.verdict)

    @property
    def break_even_ms(self) -> float | None:
        """Time that the mode takes for `break_even` tokens, or commands; None if that is no number."""
        count, time = self.break_even, self.line.median_ratio("wall_ms", self.unit)
        return count * time if isinstance(count, int) and time is not None else None


def _untuned_ms(line: Line) -> float | None:
    """Return the setup time without tuning; None: unknown."""
    setup_ms = line.median("setup_ms")
    return None if setup_ms is None else setup_ms - (line.median("tuning_ms") or 0.0)


@dataclass(frozen=True, slots=True)
class StrategyTable:
    """All modes that ran one workload stream on one device, and the reasons of the modes that refused it."""

    stream: Row
    strategies: list[StrategyLine]
    refused: dict[str, str]


def refusal_kind(reason: str) -> str:
    """Return whether a mode that did not run lacks a package, or cannot run the work."""
    return "Not installed" if "pip install" in reason else "Not applicable"


def break_even(extra_ms: float, saved_ms_each: float, verdict: Verdict | None = None) -> int | Payback:
    """Return the number of tokens, or commands, whose savings repay `extra_ms`. saved_ms_each: saved by one of them.

    verdict: whether the saving is more than noise; None if nothing says.
    """
    if verdict is Verdict.UNDECIDED:
        return Payback.UNDECIDED
    if saved_ms_each <= 0 or verdict in (Verdict.SLOWER, Verdict.SAME):
        return Payback.NEVER
    if extra_ms <= 0:
        return Payback.AT_ONCE
    return max(math.ceil(extra_ms / saved_ms_each), 1)  # a saving may round to 0


def build_strategies(
    rows: Iterable[Row], refusals: Refusals | None = None, own: Mapping[str, Sequence[str]] | None = None
) -> list[StrategyTable]:
    """Return a table per untraced stream of commands; in each the baseline first, then the fastest.

    own: what `own_bases` returns. Raises DataError if two different rows claim to be the same repeat.
    """
    tables = build_tables(rows, own)
    traced = {_stream(table): table for table in tables if table["traced"]}
    return [_table(table, traced.get(_stream(table)), refusals or {}) for table in tables if not table["traced"]]


def _stream(table: Table) -> tuple[object, ...]:
    return tuple(table[name] for name in STREAM if name != "traced")


def _table(table: Table, traced: Table | None, refusals: Refusals) -> StrategyTable:
    sound = [line for line in traced.lines if line.problem is None and line.median("kernels")] if traced else []
    counted = {_settings(line): line for line in sound}
    lines = sorted(table.lines, key=_rank)
    ran = {line["mode"] for line in lines}
    refused = {
        mode: reason
        for run in dict.fromkeys(line["run_id"] for line in table.lines)
        for mode, reason in refusals.get(run, {}).items()
        if mode not in ran
    }
    return StrategyTable(
        lines[0].rows[0], [StrategyLine(line, counted.get(_settings(line))) for line in lines], refused
    )


def _settings(line: Line) -> tuple[object, ...]:
    return tuple(line[name] for name in _SETTINGS)


def _rank(line: Line) -> tuple[bool, bool, float]:
    wall_ms = line.median("wall_ms")
    return not line.is_baseline, line.problem is not None, math.inf if wall_ms is None else wall_ms
