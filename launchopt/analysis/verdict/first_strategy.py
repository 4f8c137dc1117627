"""Choice of the strategy to try first.

In: the judged lines of one stream, the baseline first. Out: a `Choice`.

Measured beats predicted. Modes that were certainly faster than the baseline and kept the order of commands are
candidates. Those within CLOSE_ENOUGH of the fastest count as equals; of them the one with the least effort for an
engine (`effort`) comes first. If no candidate was measured, the bottleneck determines which strategy usually helps, and
the roofline how much it can gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launchopt.analysis.metric import LATENCY, WALL
from launchopt.analysis.stream_rows import digits, is_independent
from launchopt.analysis.tables.strategies import StrategyLine
from launchopt.analysis.verdict.bound import Bound, Shares, Side
from launchopt.analysis.verdict.effort import effort
from launchopt.analysis.verdict.roofline import Prediction
from launchopt.statistics.interval import Verdict

CLOSE_ENOUGH = 1.05  # wall time over that of the fastest mode
NEAR_CEILING = 0.9  # share of the wall time for bytes or FLOPs at the ceiling, from which no strategy is worth trying
NEED_GPU = frozenset({"kernel", "pdl", "triton_batched"})  # those of the candidates that no CPU runs


@dataclass(frozen=True, slots=True)
class Judged:
    """A line with its prediction and its bottleneck."""

    strategy: StrategyLine
    prediction: Prediction
    bound: Bound
    side: Side
    evidence: list[str]
    shares: Shares

    @property
    def is_sound(self) -> bool:
        """Whether the line has a verdict: its outputs are verified, and no rate is impossible."""
        return self.bound not in (Bound.NO_VERDICT, Bound.IMPOSSIBLE)

    @property
    def roof(self) -> float:
        """Share of the wall time that bytes or FLOPs take at the ceiling."""
        return max(self.shares.bytes or 0.0, self.shares.flops or 0.0)

    @property
    def headroom(self) -> float | None:
        """Speed-up at the roofline; None if the wall time is not that of the work."""
        return self.prediction.headroom if self.is_sound and not self.shares.kept_up else None

    @property
    def kernel_headroom(self) -> float | None:
        """Speed-up if the line's own kernels ran without a gap."""
        busy = self.shares.busy
        return 1 / busy if self.is_sound and busy and not self.shares.kept_up else None

    @property
    def name(self) -> str:
        """Bottleneck and side: `launch-bound (launching thread)`."""
        return f"{self.bound} ({self.side})" if self.side else str(self.bound)


@dataclass(frozen=True, slots=True)
class Choice:
    """The strategy to try first. `judged` is None if it was not measured here."""

    mode: str
    judged: Judged | None


def first_to_try(lines: Sequence[Judged], refused: Mapping[str, str]) -> Choice | None:
    """Return the measured strategy to take, or the one to measure; None if none is worth it, or nothing is known."""
    subject = lines[0]
    if not subject.is_sound:
        return None
    gains = [each for each in lines if each.strategy.line.verdict is Verdict.FASTER and each.is_sound]
    gains = [each for each in gains if not each.strategy.line["quantised_inputs"]]  # their outputs are other ones
    gains = [each for each in gains if each.strategy.line.disorder in (None, subject.strategy.line.disorder)] or gains
    if gains:
        own = times_of(gains)
        fastest = min(own.values())
        equals = [each for each in gains if own[id(each)] <= CLOSE_ENOUGH * fastest]
        best = min(equals, key=lambda each: (effort(each.strategy.line), own[id(each)]))
        return Choice(best.strategy.line["mode"], best)
    if lacks_repeats(lines):
        return None
    tried = {each.strategy.line["mode"] for each in lines}
    open_ = [mode for mode in _candidates(subject) if mode not in tried and mode not in refused]
    open_ = [mode for mode in open_ if not (subject.shares.on_cpu and mode in NEED_GPU)]
    return Choice(open_[0], None) if open_ and subject.roof < NEAR_CEILING else None


def lacks_repeats(lines: Sequence[Judged]) -> bool:
    """Return whether a mode was measured, but too few times for an interval of its speed-up."""
    speedups = [each.strategy.line.speedup for each in lines if each.is_sound]
    return any(each is not None and each.low is None for each in speedups)


def times(ratio: float) -> str:
    """Return a factor to three digits: `1.23x`, `1,234x`."""
    return f"{digits(ratio, 3)}x"


def wall_ms(judged: Judged) -> float:
    """Return the measured wall time; 0 if it is unknown."""
    return judged.prediction.measured_ms or 0.0


def metric_of_all(judged: Sequence[Judged]) -> str:
    """Return the metric that compares lines: median latency if all speed-ups are in it, else wall time."""
    return LATENCY if all(each.strategy.line.metric == LATENCY for each in judged) else WALL


def times_of(judged: Sequence[Judged]) -> dict[int, float]:
    """Return the time of each line in `metric_of_all`, by its id."""
    in_latency = metric_of_all(judged) == LATENCY
    return {id(each): (each.strategy.line.median(LATENCY) or 0.0) if in_latency else wall_ms(each) for each in judged}


def _candidates(subject: Judged) -> Sequence[str]:
    """Return the modes that usually help against a bottleneck, the most promising first."""
    line = subject.strategy.line
    if subject.bound not in (Bound.LAUNCH, Bound.COMMAND, Bound.LATENCY):
        return ()
    if line["expert_routing"] is not None:
        return ("grouped",) if line["dtype"] == "fp32" and line["device"] == "cuda" else ("graph", "grouped")
    if line["weights"] is not None and line["device"] == "cuda":
        return ("batched", "triton_batched") if is_independent(line.rows[0]) else ("engine+graph+own",)
    if is_independent(line.rows[0]):
        return ("batched", "triton_batched", "pointer_array", "graph")
    if line["requests"] and line["requests"] > 1:
        return ("graph", "engine", "coalesced", "batched")
    return ("graph", "pdl", "kernel") if subject.bound is Bound.LAUNCH else ("pdl", "kernel", "graph")
