"""The search for an answer: a pilot, rounds of successive halving over the stacks, then the batching of the best one.

Stacks of one round are interleaved in one process, and only the last round decides. Batching is tried in sweeps, which
do not interleave, so another batching than the default is advised only if two of them show a gain of over MARGIN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from launchopt.errors import ArenaMemoryError, RunError
from launchopt.recording.results import Row
from launchopt.statistics.interval import FEWEST_REPEATS
from runner.advise.halving import FINALISTS, MARGIN, Arms, Decision, by_arm, decision, ranked, survivors, wall_ms
from runner.advise.question import LEAST_TOKENS, PLAIN_BATCH, TIMEOUT_US, TOKENS, Question
from runner.advise.trials import Trials

TRIAL_SHARE = 1 / 400  # of the budget: wall time of one trial; around it are checks and data
MOST_REPEATS = 20
FIRST_ARMS = 12  # arms of the first round besides the base, whose costs are not known yet
BATCH_REPEATS = 3
FIRST_SHARE, FINAL_SHARE = 0.5, 0.7  # of the seconds left


@dataclass(frozen=True, slots=True)
class Batching:
    """When a batch is flushed. gain: time with the default / time with this. tried: number of settings that ran.

    kept_ms: of another batching than the default, what is limited: it is within the limit. None without a limit.
    """

    max_batch: int
    timeout_us: float
    tried: int = 0
    gain: float = 1.0
    kept_ms: float | None = None


class Grid(NamedTuple):
    """The settings of a sweep of batching."""

    sizes: Sequence[int]
    timeouts: Sequence[float]

    @property
    def jobs(self) -> int:
        """Number of combinations."""
        return len(self.sizes) * len(self.timeouts)


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search. order: labels of the last round, the best first. layers: those of the model, or None."""

    question: Question
    arms: Arms
    base: str
    order: Sequence[str]
    fits: frozenset[str]  # labels that keep the limit
    decision: Decision
    batching: Batching
    layers: int | None
    folder: Path  # of the last round of stacks

    @property
    def best(self) -> str:
        """The label of the advised stack."""
        return self.order[0]


def search(
    question: Question, able: Callable[[Question], Sequence[str]], base: str, layers: int | None, trials: Trials
) -> Found:
    """Return what was found within the budget. RunError if not even the base ran in it.

    able: returns the stacks that can run a trial, the likely ones first. The number of layers decides about some.
    """
    pilot = trials.run(question, [base], 1)
    if not pilot:
        raise RunError(
            f"the {trials.budget_s:.0f} s left of --budget-s ended before the first trial. What it compiled is kept: "
            "type the same again, or give more"
        )
    if layers is not None:
        ran = int(str(question.settings.get("workload.tokens", TOKENS)))
        fit = trials.budget_s * TRIAL_SHARE * 1e3 / (wall_ms(pilot) * TOKENS / ran)  # layers in a trial
        tokens = max(LEAST_TOKENS, min(TOKENS, int(TOKENS * fit)))
        question = question.with_settings({"workload.tokens": tokens})
        question = _fitting(question, max(1, min(layers, int(fit))), base, able, trials)
        trials.cost = trials.cost.scaled(int(str(question.settings["workload.layers"])) * tokens / ran)
    first = trials.last
    arms, folder = _halved(question, [label for label in able(question) if label != base], base, layers, trials)
    arms, folder = (arms, folder) if arms else (by_arm(pilot), first)
    if base not in arms:
        raise RunError(f"{base}, the base of the gain, failed its check or its time: see {folder}")
    order, limit = ranked(arms, question.limit, layers), question.limit
    fits = frozenset(label for label in arms if limit is None or limit.ms(arms[label], layers) <= limit.most_ms)
    eligible = [label for label in order if label in fits] or order
    return Found(
        question,
        arms,
        base,
        order,
        fits,
        decision(arms, order[0], eligible),
        _batching(question, order[0], arms[order[0]], layers, trials),
        layers,
        folder,
    )


def _fitting(
    question: Question, layers: int, base: str, able: Callable[[Question], Sequence[str]], trials: Trials
) -> Question:
    """Return the question with as many of `layers` as the memory has space for; ArenaMemoryError if one is too much."""
    while True:
        sized = question.with_settings({"workload.layers": layers})
        try:
            trials.require_memory(sized, _with(base, able(sized)))
            return sized
        except ArenaMemoryError:
            if layers == 1:
                raise
            layers //= 2


def _halved(
    question: Question, labels: Sequence[str], base: str, layers: int | None, trials: Trials
) -> tuple[Arms, Path]:
    """Return the arms of the last round that ran, and its folder. Arms for which there is no time are dropped."""
    every, arms, folder = _tried(question, labels, base, trials)
    order = ranked(every, question.limit, layers)
    while len(survivors(order)) > FINALISTS:
        going = _with(base, survivors(order))
        if trials.cost.of(len(going), 1) > FIRST_SHARE * trials.left_s:
            break
        if not (found := by_arm(trials.run(question, going, 1))):
            break
        arms, folder, order = found, trials.last, ranked(found, question.limit, layers)
    going, repeats = _with(base, order[:FINALISTS]), FEWEST_REPEATS
    while repeats <= MOST_REPEATS:
        affordable = trials.cost.repeats_in(FINAL_SHARE * trials.left_s, len(going))
        if affordable < 1 or not (found := by_arm(trials.run(question, going, min(repeats, affordable)))):
            break
        arms, folder = found, trials.last
        best = ranked(arms, question.limit, layers)[0]
        if affordable < repeats or decision(arms, best, list(arms)) is Decision.decided:
            break
        repeats *= 2
    return arms, folder


def _tried(question: Question, labels: Sequence[str], base: str, trials: Trials) -> tuple[Arms, Arms, Path]:
    """Run as many arms once as fit into the first share of the time, the likely ones first.

    Return all arms that ran; then those of the round that had the fastest one, and its folder. A round that took too
    long to set up all of its arms is tried again with half of them.
    """
    waiting, most, keep_s = list(labels), FIRST_ARMS, (1 - FIRST_SHARE) * trials.left_s
    every: dict[str, Sequence[Row]] = {}
    best: tuple[Arms, Path] = ({}, trials.last)
    while waiting:
        spare_s = trials.left_s - keep_s
        fits = min(most, len(waiting), trials.cost.arms_in(spare_s, 1) - 1)
        if not every:  # only the base has run, and others can be many times as fast
            fits = max(fits, min(FINALISTS, most, len(waiting)))
        if fits < 1:
            break
        going = waiting[:fits]
        most_s = max(spare_s, trials.left_s - trials.cost.of(FINALISTS + 1, 1))  # more than planned: it may compile
        found = by_arm(trials.run(question, [base, *going], 1, min(1.0, most_s / trials.left_s)))
        waiting = [label for label in waiting if label not in trials.dropped]
        if not found:
            most, keep_s = fits // 2, keep_s / 2
            continue
        most = len(waiting)
        if not best[0] or min(map(wall_ms, found.values())) < min(map(wall_ms, best[0].values())):
            best = (found, trials.last)
        every |= found
        waiting = [label for label in waiting if label not in going]
    trials.dropped |= dict.fromkeys(waiting, "no time within --budget-s")
    return every, *best


def _with(base: str, labels: Sequence[str]) -> list[str]:
    return [base, *(label for label in labels if label != base)]


def _batching(question: Question, best: str, ran: Sequence[Row], layers: int | None, trials: Trials) -> Batching:
    """Return the batching to set for the best stack: the default, unless another one that keeps the limit gains.

    ran: rows of the stack. Without time for the whole sweep, only other sizes are tried. Jobs of a sweep do not take
    turns, so a gain counts only if a second sweep, in which that batching runs before the default, shows it again.
    """
    most = question.requests or PLAIN_BATCH
    sizes = sorted({most, max(1, most // 2), max(1, most // 4)}, reverse=True)
    timeouts = [0.0, TIMEOUT_US]
    jobs = int(trials.left_s / trials.job_s(ran, BATCH_REPEATS))
    if jobs < len(sizes) * len(timeouts):
        timeouts = [TIMEOUT_US]
        sizes = sizes[:jobs]
    grid = Grid(sizes, timeouts)
    if grid.jobs < 2:
        return Batching(most, TIMEOUT_US)
    found = _swept(question, best, grid, layers, trials)
    if (found.max_batch, found.timeout_us) == (most, TIMEOUT_US):
        return found
    again = Grid([*dict.fromkeys((found.max_batch, most))], [*dict.fromkeys((found.timeout_us, TIMEOUT_US))])
    if again.jobs * trials.job_s(ran, BATCH_REPEATS) > trials.left_s:
        return Batching(most, TIMEOUT_US, found.tried)
    second = _swept(question, best, again, layers, trials)
    if (second.max_batch, second.timeout_us) != (found.max_batch, found.timeout_us):
        return Batching(most, TIMEOUT_US, found.tried)
    return replace(found, gain=min(found.gain, second.gain))


def _swept(question: Question, best: str, grid: Grid, layers: int | None, trials: Trials) -> Batching:
    """Return the best batching of one sweep: the default, unless another one that keeps the limit gains."""
    most = question.requests or PLAIN_BATCH
    axes: dict[str, Sequence[object]] = {"batching.max_batch": grid.sizes, "batching.timeout_us": grid.timeouts}
    rows: dict[tuple[int, float], list[Row]] = {}
    for row in trials.sweep(question, best, axes, BATCH_REPEATS):
        if row["status"] == "ok" and row["verified"]:
            rows.setdefault((int(row["max_batch"]), float(row["timeout_us"])), []).append(row)
    own = rows.get((most, TIMEOUT_US))
    limit = question.limit
    able = [key for key, each in rows.items() if limit is None or limit.ms(each, layers) <= limit.most_ms]
    if own is None or not able:
        return Batching(most, TIMEOUT_US, len(rows))
    first = min(able, key=lambda key: wall_ms(rows[key]))
    gain = wall_ms(own) / wall_ms(rows[first])
    if gain <= 1 + MARGIN and (most, TIMEOUT_US) in able:
        return Batching(most, TIMEOUT_US, len(rows))
    return Batching(*first, len(rows), gain, None if limit is None else limit.ms(rows[first], layers))
