"""Compare two sets of runs: reasons against it, pairs of repeats, and the verdict.

In: two `arms.Side`s. Out: an `Outcome` with a `Comparison` for each stream of commands, mode and configuration that
occurs in both, and a reason for each that was refused. Pure.

Repeats of one run that interleaved its modes are compared pair by pair. Two runs are compared by their processes:
`statistics.processes` gives the factor and its certainty.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from launchopt.analysis.comparison.arms import Arm, Side, arms_of, matched
from launchopt.analysis.comparison.likeness import differing, other_machine, remarks, unlike_settings, unlike_work
from launchopt.analysis.comparison.outcome import Comparison, Outcome
from launchopt.analysis.metric import (
    ONCE_A_PROCESS,
    RATES,
    WALL,
    is_overloaded,
    metric_of,
    metrics,
    no_metric,
    on_open_loop,
    unit_of,
)
from launchopt.analysis.stream_rows import disorder
from launchopt.analysis.tables.rows import SAME_RUN, SEPARATE_RUNS, by_process, problem_of
from launchopt.errors import ConfigError, DataError, choices, explained
from launchopt.statistics.interval import SMALLEST_EFFECT, Verdict, verdict
from launchopt.statistics.power import (
    detectable_effect,
    repeats_needed,
)
from launchopt.statistics.processes import (
    CALIBRATED,
    FEWEST_PROCESSES,
    Groups,
    ProcessNoise,
    levels,
    median_of,
    ratio_levels,
    same_processes,
    separate,
)
from launchopt.statistics.shift import Factor

SEPARATELY = f"{SEPARATE_RUNS}; a drift of the machine between them (clocks, neighbours) is not in the interval"
CALIBRATED_METRIC = WALL  # the metric whose noise between processes the doctor measures


def compare(
    a: Side,
    b: Side,
    *,
    metric: str | None = None,
    smallest_effect: float = SMALLEST_EFFECT,
    force: bool = False,
    noise: ProcessNoise | None = None,
) -> Outcome:
    """Compare all arms that occur on both sides. `force` sets aside every objection but failed or unverified repeats.

    metric: a column of `metrics()`; None: what `metric_of` chooses for each pair of arms.
    noise: between processes of this machine, for sides with too few processes. A side with one mode is compared
    whatever the mode of the other. Raises ConfigError for an unknown metric, and for a side without the mode that it
    names.
    """
    if metric is not None and metric not in metrics():
        raise ConfigError("--metric", metric, no_metric(metric))
    ours, theirs = arms_of(a, "A"), arms_of(b, "B")
    modes, others = _modes(ours), _modes(theirs)
    found = matched(ours, theirs, any_mode=bool(a.mode or modes[1:] == []) and bool(b.mode or others[1:] == []))
    if not found.matches and not found.ambiguous:
        problem = f"no mode of A in it: A has {choices(modes)}, B has {choices(others)}"
        raise ConfigError("B", b.name, explained(problem, "", _meant(a, modes, b, others)))
    if found.matches and all(_is_same(one, other) for one, other in found.matches):
        raise ConfigError("B", b.name, explained("the same repeats as A", "", _two_modes(a, b)))
    if found.unlike and not force:
        raise DataError(b.name, None, _unlike(*found.matches[0]))
    comparisons, refused = [], list(found.ambiguous)
    for one, other in found.matches:
        try:
            chosen = metric or metric_of([*one.rows, *other.rows])
            _check(one, other, chosen, force)
            found_here = _comparison(one, other, chosen, smallest_effect, noise)
            comparisons.append(replace(found_here, command=_command((a, b), found_here)))
        except DataError as error:
            refused.append(str(error))
    used = {one.metric for one in comparisons}
    metric = metric or (used.pop() if len(used) == 1 else None)
    return Outcome(a.name, b.name, metric, smallest_effect, force, comparisons, refused, found.alone)


def _meant(a: Side, modes: Sequence[str], b: Side, others: Sequence[str]) -> list[str]:
    """Return words to type for two sides without a common mode: those of one side if the other has one mode only."""
    if len(modes) > 1 and len(others) > 1:
        return [f"{a.folder}:{modes[0]} {b.folder}:{others[0]}"]
    side, several = (b, others) if len(others) > 1 else (a, modes)
    return [f"{side.folder}:{mode}" for mode in several]


def _two_modes(a: Side, b: Side) -> list[str]:
    """Return the words that compare two modes of the same runs, of which one may be named; none for a single mode."""
    known = [mode for mode in a.modes if mode in b.modes]
    named = next((arms_of(side, "")[0]["mode"] for side in (a, b) if side.mode is not None), None)
    other = next((mode for mode in known if mode != (named or known[0])), None)
    if other is None:
        return []
    ours, theirs = (named or known[0], other) if a.mode is not None or b.mode is None else (other, named)
    return [f"{a.folder}:{ours} {b.folder}:{theirs}"]


def _command(sides: tuple[Side, Side], one: Comparison) -> str:
    """Return the command that compares the two modes again: `launchopt compare RUN:baseline RUN:batched`."""
    arms = zip(sides, (one.a, one.b), strict=True)
    words = [side.name if side.mode else f"{side.name}:{arm['mode']}" for side, arm in arms]
    if one.metric != metric_of([*one.a.rows, *one.b.rows]):
        words += ["--metric", one.metric]
    return shlex.join(["launchopt", "compare", *words, *["--force"] * bool(one.overridden)])


def _check(a: Arm, b: Arm, metric: str, force: bool) -> None:
    """Raise DataError for two arms that must not be compared."""
    if broken := _broken(a, b, metric):
        raise DataError(_what(a, b), None, f"cannot be compared: {'; '.join(broken)}")
    forbidden = _forbidden(a, b)
    if forbidden and not force:
        why = f"not comparable: {'; '.join(forbidden)} (--force compares all the same)"
        raise DataError(_what(a, b), None, why)


def _comparison(a: Arm, b: Arm, metric: str, smallest_effect: float, noise: ProcessNoise | None) -> Comparison:
    is_once = metric in ONCE_A_PROCESS
    shared = None if is_once else _shared_repeats(a, b)
    groups = (by_process(arm.rows, metric, shared) for arm in (a, b))
    ours, theirs = ([values[:1] if is_once else values for values in each] for each in groups)
    above, below = (theirs, ours) if metric.endswith(tuple(RATES)) else (ours, theirs)
    unit = unit_of(metric)
    paired = shared is not None
    known_noise = noise if metric == CALIBRATED_METRIC else None
    found = same_processes(above, below) if paired else separate(above, below, known_noise)
    samples = _samples(above, below, paired=paired)
    return Comparison(
        *(a, b, metric, smallest_effect, len(shared) if shared else None),
        processes=(len(ours), len(theirs)),
        medians=(median_of(ours, unit=unit), median_of(theirs, unit=unit)),
        factor=found,
        verdict=_verdict(found, smallest_effect),
        repeats_needed=repeats_needed(*samples, paired=paired, smallest_effect=smallest_effect),
        detectable_effect=detectable_effect(*samples, paired=paired, smallest_effect=smallest_effect),
        overridden=_forbidden(a, b),
        notes=[*_notes(a, b, metric, shared), *_calibration(found, noise)],
    )


def _samples(above: Groups, below: Groups, *, paired: bool) -> tuple[Sequence[float], Sequence[float]]:
    """Return the values of both arms whose spread decides: levels of processes, or repeats."""
    if not paired:
        return levels(above), levels(below)
    if len(above) >= FEWEST_PROCESSES:
        return ratio_levels(above, below), [1.0] * len(above)
    return list(chain.from_iterable(above)), list(chain.from_iterable(below))


def _verdict(found: Factor, smallest_effect: float) -> Verdict:
    """Return the verdict. Noise of another workload can show a difference, but not that there is none."""
    conclusion = verdict(found.interval, smallest_effect)
    is_weak = found.method == CALIBRATED and conclusion is Verdict.SAME
    return Verdict.UNDECIDED if is_weak else conclusion


def _modes(arms: Sequence[Arm]) -> list[str]:
    return sorted({str(arm["mode"]) for arm in arms})


def _is_same(a: Arm, b: Arm) -> bool:
    return a.run.identity == b.run.identity and a["mode"] == b["mode"]


def _what(a: Arm, b: Arm) -> str:
    return a.name if a.name == b.name else f"{a.name} and {b.name}"


def _unlike(a: Arm, b: Arm) -> str:
    found = "; ".join(unlike_work(a.rows[0], b.rows[0]))
    return f"no work in common with A; nearest, {_what(a, b)}: {found} (--force compares all the same)"


def _broken(a: Arm, b: Arm, metric: str) -> list[str]:
    """Return the reasons against a comparison that `force` does not set aside."""
    found = []
    if _is_same(a, b):
        found.append("A and B are the same repeats")
    for side, arm in (("A", a), ("B", b)):
        repeats = [row["repeat"] for row in arm.rows]
        if problem := problem_of(arm.rows):
            found.append(f"{side}: {problem}")
        elif len(set(repeats)) < len(repeats):
            found.append(f"{side}: several rows for one repeat")
        elif not all(row[metric] is not None and row[metric] > 0 for row in arm.rows):
            found.append(f"{side}: {metric} was not measured, or not above 0, in each repeat")
    return found


def _forbidden(a: Arm, b: Arm) -> list[str]:
    """Return the reasons against a comparison that `force` sets aside."""
    found = unlike_work(a.rows[0], b.rows[0])
    one, other = a.run.manifest, b.run.manifest
    if a.run.identity != b.run.identity:
        found += other_machine(one, other)
        if one is not None and other is not None and not unlike_work(a.rows[0], b.rows[0]):
            found += unlike_settings(one, other)
    for side, arm in (("A", a), ("B", b)):
        if arm.throttled:
            reasons = {row["throttle_reasons"] for row in arm.rows if row["throttled"] and row["throttle_reasons"]}
            because = f" ({', '.join(sorted(reasons))})" if reasons else ""
            found.append(f"{side}: {arm.throttled} of {len(arm.rows)} repeats throttled{because}")
    return found


def _shared_repeats(a: Arm, b: Arm) -> list[int] | None:
    """Return the repeats of the run that interleaved both arms; None if the arms are of two runs."""
    if a.run.identity != b.run.identity or not all(row["interleaved"] for row in (*a.rows, *b.rows)):
        return None
    return sorted({row["repeat"] for row in a.rows} & {row["repeat"] for row in b.rows}) or None


def _notes(a: Arm, b: Arm, metric: str, shared: list[int] | None) -> list[str]:
    found = []
    if metric in ONCE_A_PROCESS:
        found.append(f"{metric} is measured once a process: more repeats add nothing, more processes do")
    elif shared is None:
        found.append(SAME_RUN if a.run.identity == b.run.identity else SEPARATELY)
    elif len(shared) < max(len(a.rows), len(b.rows)):
        found.append(f"of {len(a.rows)} and {len(b.rows)} repeats only those in both are used")
    if "closed" not in (a["arrival"], b["arrival"]):
        found += on_open_loop(metric, overloaded=is_overloaded([*a.rows, *b.rows]))
    found += [f"{side}: {text}" for side, arm in (("A", a), ("B", b)) if (text := disorder(arm.rows[0]))]
    unlike = ("max_batch", "timeout_us", "quantised_inputs")
    found += [differing(name, a[name], b[name]) for name in unlike if a[name] != b[name]]
    found.append(f"throttled repeats: {_throttling(a)} in A, {_throttling(b)} in B")
    if a.run.identity != b.run.identity and a.run.manifest is not None and b.run.manifest is not None:
        found += remarks(a.run.manifest, b.run.manifest)
    return found


def _calibration(found: Factor, noise: ProcessNoise | None) -> list[str]:
    if found.method != CALIBRATED or noise is None:
        return []
    return [f"noise between processes that the doctor measured: {noise.deviation:.2%}; other work may have more"]


def _throttling(arm: Arm) -> str:
    return "not read" if arm.throttled is None else f"{arm.throttled} of {len(arm.rows)}"
