"""The search for an answer: a pilot, rounds of successive halving over the stacks, then the batching of the best one.

Stacks of one round are interleaved in one process, and only the last round decides. Every round before it leaves the
time for FEWEST_REPEATS repeats of the base and FINALISTS others. With less time, the last round has fewer stacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from launchopt.errors import ArenaMemoryError, RunError
from launchopt.recording.results import Row
from launchopt.statistics.interval import FEWEST_REPEATS
from runner.advise.batching import Batching, batching_of, default_batching
from runner.advise.halving import FINALISTS, Arms, Decision, by_arm, decision, ranked, survivors, wall_ms
from runner.advise.question import EXPERT_STEPS, LEAST_EXPERT_STEPS, LEAST_TOKENS, MOST_TOKENS, TOKENS, Question
from runner.advise.trials import Trials

TRIAL_SHARE = 1 / 400  # of the seconds left: wall time of one trial; around it are checks and data
MOST_REPEATS = 20
FIRST_ARMS = 12  # arms of the first round besides the base, whose costs are not known yet
NO_TIME = "no time within --budget-s"
CARE = 1.5  # times as long as estimated may a round take: of other arms, or beside other programs
FIRST_SHARE, FINAL_SHARE = 0.5, 0.7  # of the seconds left
_REPEATS = (FEWEST_REPEATS, 2 * FEWEST_REPEATS, MOST_REPEATS)  # of the last round, until the choice is decided


class Round(NamedTuple):
    """Arms that took turns in one process, and the folder of their results."""

    arms: Arms
    folder: Path


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
    enough_s: float | None = None  # a budget that suffices for an interval or more repeats; None if none is needed
    failed: Sequence[str] = ()  # stacks that broke or failed their check
    is_lone: bool = False  # whether no stack but the base runs the work without a fault

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
            f"the {trials.budget_s:.0f} s left of --budget-s are too few for the first trial: type the same with "
            f"--budget-s {2 * (trials.spent_s + trials.budget_s):.0f}"
        )
    question = _as_long_as_fits(question, wall_ms(pilot), able, base, layers, trials)
    first = Round(by_arm(pilot), trials.last)
    others = [label for label in able(question) if label != base]
    last, left_out = _halved(question, others, base, layers, trials)
    arms, folder = last if last.arms else first
    if base not in arms:
        raise RunError(f"{base}, the base of the gain, failed its check or its time: see {folder}")
    failed = [label for label, why in trials.dropped.items() if why != NO_TIME]
    arms = {label: rows for label, rows in arms.items() if label not in failed}
    is_lone = not set(others) - set(failed)
    order, limit = ranked(arms, question.limit, layers), question.limit
    fits = frozenset(label for label in arms if limit is None or limit.ms(arms[label], layers) <= limit.most_ms)
    eligible = [label for label in order if label in fits] or order
    fewest = min(map(len, arms.values()))
    has_interval = len(arms) > 1 and fewest >= FEWEST_REPEATS
    sure = Decision.left_out if left_out else decision(arms, order[0], eligible)
    enough_s = None if is_lone or (has_interval and not left_out) else _enough_s(trials)
    if sure is Decision.open and fewest < MOST_REPEATS:
        enough_s = _decisive_s(trials, len(arms), fewest)
    return Found(
        question,
        arms,
        base,
        order,
        fits,
        sure,
        default_batching(question) if is_lone else batching_of(question, order[0], layers, trials),
        layers,
        folder,
        enough_s,
        failed,
        is_lone,
    )


def _as_long_as_fits(
    question: Question,
    pilot_ms: float,
    able: Callable[[Question], Sequence[str]],
    base: str,
    layers: int | None,
    trials: Trials,
) -> Question:
    """Return the question with as many layers and tokens, or steps, as fit into a trial; the cost follows.

    A trial that takes too long gets fewer tokens, but TOKENS at least; then fewer layers; then fewer tokens again.
    """
    if layers is not None:
        ran = int(str(question.settings.get("workload.tokens", TOKENS)))
        fit = int(trials.left_s * TRIAL_SHARE * 1e3 / pilot_ms * ran)  # tokens of one layer in a trial
        tokens = min(MOST_TOKENS, max(LEAST_TOKENS, min(fit, max(TOKENS, fit // layers))))
        question = question.with_settings({"workload.tokens": tokens})
        question = _fitting(question, max(1, min(layers, fit // tokens)), base, able, trials)
        trials.cost = trials.cost.scaled(int(str(question.settings["workload.layers"])) * tokens / ran)
    elif question.is_of_experts:
        steps = int(trials.left_s * TRIAL_SHARE * 1e3 / pilot_ms * EXPERT_STEPS)
        steps = max(LEAST_EXPERT_STEPS, min(EXPERT_STEPS, steps))
        question = question.with_settings({"workload.steps": steps})
        trials.cost = trials.cost.scaled(steps / EXPERT_STEPS)
    return question


def _enough_s(trials: Trials) -> float:
    """Return a --budget-s that suffices for an interval, in tens of seconds."""
    lacking_s = trials.cost.of(FINALISTS + 1, 1) + _final_s(FINALISTS, trials)
    return _in_tens(trials, lacking_s)


def _decisive_s(trials: Trials, arms: int, ran: int) -> float:
    """Return a --budget-s in which a last round may take MOST_REPEATS repeats; fewer may decide, and take less."""
    *before, last = [each for each in _REPEATS if each > ran]
    lacking_s = sum(trials.cost.of(arms, each) for each in before) + trials.cost.of(arms, last) / FINAL_SHARE
    return _in_tens(trials, CARE * lacking_s)


def _in_tens(trials: Trials, lacking_s: float) -> float:
    return 10.0 * math.ceil((trials.spent_s + trials.budget_s + lacking_s) / 10)


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
) -> tuple[Round, list[str]]:
    """Return the last round that ran, without arms if none did, and finalists for which it had no time.

    Arms for which there is no time at all are dropped.
    """
    every: Arms = {}
    last = Round({}, trials.last)
    if trials.cost.of(2, 1) + _final_s(1, trials) <= trials.left_s:  # else the last round is the only one
        every, last = _tried(question, labels, base, trials)
    order = ranked(every, question.limit, layers) or list(labels)
    while len(survivors(order)) > FINALISTS:
        going = _with(base, survivors(order))
        round_s = trials.cost.of(len(going), 1)
        if round_s > min(FIRST_SHARE * trials.left_s, trials.left_s - _final_s(FINALISTS, trials)):
            break
        found = by_arm(trials.run(question, going, 1, 1 - _final_s(1, trials) / trials.left_s))
        if len(found) < len(survivors(order)):  # its limit ended it: the order of the rounds before is the better one
            break
        last, order = Round(found, trials.last), ranked(found, question.limit, layers)
    others = [label for label in order[:FINALISTS] if label != base and label not in trials.dropped]
    left_out = list[str]()
    while len(others) > 1 and _final_s(len(others), trials) > trials.left_s:
        left_out.append(others.pop())
    final = _final(question, _with(base, others), layers, trials, is_short=bool(left_out))
    while left_out and final.arms and _final_s(len(others) + 1, trials) <= trials.left_s:  # it took less than planned
        going = _with(base, [*others, left_out[-1]])
        more = _final(question, going, layers, trials, is_short=len(left_out) > 1)
        if len(more.arms) < len(going):
            break
        final, others = more, [*others, left_out.pop()]
    trials.dropped |= {label: NO_TIME for label in labels if not every and label not in final.arms}
    return (final, left_out if every else []) if final.arms else (last, [])


def _final(
    question: Question, going: Sequence[str], layers: int | None, trials: Trials, *, is_short: bool = False
) -> Round:
    """Run the arms FEWEST_REPEATS times, and more often until the choice is decided. Return the longest round.

    Of the first one, repeats that end within the budget count, however few. is_short: it is the only one.
    """
    longest, ran = Round({}, trials.last), 0
    for repeats in _REPEATS[:1] if is_short else _REPEATS:
        affordable = trials.cost.repeats_in((FINAL_SHARE if ran else 1.0) * trials.left_s, len(going))
        if affordable <= ran:
            break
        affordable = affordable if ran else repeats
        found = by_arm(trials.run(question, going, min(repeats, affordable)))
        fewest = min(map(len, found.values()), default=0)
        if fewest <= ran or going[0] not in found or len(found) < min(2, len(going)):
            break
        longest, ran = Round(found, trials.last), fewest
        best = ranked(found, question.limit, layers)[0]
        if ran < repeats or decision(found, best, list(found)) is Decision.decided:
            break
    return longest


def _final_s(others: int, trials: Trials) -> float:
    """Return the seconds to keep for the shortest last round with an interval, of the base and some others."""
    return CARE * trials.cost.of(others + 1, FEWEST_REPEATS)


def _tried(question: Question, labels: Sequence[str], base: str, trials: Trials) -> tuple[Arms, Round]:
    """Run as many arms once as fit into the first share of the time, the likely ones first.

    Return all arms that ran, and the round that had the fastest one. A round that took too long to set up all of its
    arms is tried again with half of them.
    """
    waiting, most = list(labels), FIRST_ARMS
    keep_s = max((1 - FIRST_SHARE) * trials.left_s, _final_s(FINALISTS, trials))
    every: dict[str, Sequence[Row]] = {}
    best = Round({}, trials.last)
    while waiting:
        spare_s = trials.left_s - keep_s
        fits = min(most, len(waiting), trials.cost.arms_in(spare_s / CARE, 1) - 1)
        if not every:  # only the base has run, and others can be many times as fast
            fits = max(fits, min(FINALISTS, most, len(waiting)))
        if fits < 1:
            break
        going = waiting[:fits]
        most_s = max(spare_s, trials.left_s - _final_s(1, trials))  # more than planned: it may compile
        found = by_arm(trials.run(question, [base, *going], 1, min(1.0, most_s / trials.left_s)))
        waiting = [label for label in waiting if label not in trials.dropped]
        if not found:
            most, keep_s = fits // 2, keep_s / 2
            continue
        most = len(waiting)
        if not best.arms or min(map(wall_ms, found.values())) < min(map(wall_ms, best.arms.values())):
            best = Round(found, trials.last)
        every |= found
        waiting = [label for label in waiting if label not in going]
    trials.dropped |= dict.fromkeys(waiting, NO_TIME)
    return every, best


def _with(base: str, labels: Sequence[str]) -> list[str]:
    return [base, *(label for label in labels if label != base)]
