"""The answer of a run in words: the fastest mode, and the factor of each mode over the base with its verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from launchopt.analysis.comparison.arms import Run, Side
from launchopt.analysis.comparison.compare import compare
from launchopt.analysis.comparison.outcome import Comparison
from launchopt.analysis.comparison.text import precise, too_noisy
from launchopt.analysis.metric import metric_of, name_of
from launchopt.analysis.stream_rows import counted
from launchopt.errors import ConfigError, DataError
from launchopt.recording.results import Row
from launchopt.statistics.interval import FEWEST_REPEATS, SMALLEST_EFFECT, Verdict

MEDIANS_DIFFER = 0.01  # by more than this a ratio of medians is explained
OPEN = (Verdict.SAME, Verdict.UNDECIDED)  # verdicts on two modes that cannot be told apart


def against(
    rows: Sequence[Row], base: str, mode: str, metric: str | None = None, folder: str = "RUN"
) -> Comparison | None:
    """Return the comparison of `mode` with `base`; None if a repeat failed or the two cannot be compared.

    metric: None: what `metric_of` chooses for the two. folder: of the run, for commands that the text proposes.
    """
    run = Run("", "this run", list(rows), None)
    try:
        a, b = (Side(f"{folder}:{each}", each, [run]) for each in (base, mode))
        return next(iter(compare(a, b, metric=metric).comparisons), None)
    except (ConfigError, DataError):
        return None


def fastest(rows: Sequence[Row], modes: Sequence[str]) -> str:
    """Return the fastest mode with its factor over the first of `modes`, and the modes that are as good as it.

    It is one that is shown to be faster than the first; if none is, the first or no mode. No text without a
    comparison, or with fewer than FEWEST_REPEATS repeats, which tell no two modes apart.
    """
    base, *others = modes
    metric = metric_of(rows)  # one for all modes, so that their factors can be ranked
    found = [one for mode in others if (one := against(rows, base, mode, metric))]
    if not found or any(one.factor.interval.low is None for one in found):
        return ""
    faster = [one for one in found if one.verdict is Verdict.FASTER]
    if not faster:
        alike = [str(one.b["mode"]) for one in found if one.verdict in OPEN]
        if alike:
            return f"No mode is shown to be faster than {base}: {_listed(alike)} cannot be told apart from it."
        return f"Fastest: {base}."
    best = max(faster, key=lambda one: one.factor.interval.value)
    name, factor = str(best.b["mode"]), f"{precise(best.factor.interval)} as fast as {base} in {name_of(metric)}"
    compared = {mode: against(rows, mode, name, metric) for mode in others if mode != name}
    alike = [mode for mode, one in compared.items() if one and one.verdict in OPEN]
    others_too = f"; {_listed(alike)} cannot be told apart from it" if alike else ""
    return f"Fastest: {name}, {factor}{others_too}.{_unlike_medians(best)}"


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def answer(one: Comparison) -> str:
    """Return the verdict with the factor over its base, in one or two sentences."""
    mode, base = one.b["mode"], one.a["mode"]
    what = name_of(one.metric)
    factor = one.factor.interval
    if factor.range is None and factor.low is None:
        said = f"{mode} is {factor.value:.3f}x as fast as {base} in {what}"
        return f"{said}. One repeat gives no verdict: repeats={FEWEST_REPEATS} gives one."
    if factor.low is None:
        spread = "range {:.3f} to {:.3f}".format(*(factor.range or ()))
        return (
            f"{mode} is {factor.value:.3f}x as fast as {base} in {what} ({spread}): "
            f"no verdict with fewer than {FEWEST_REPEATS} repeats.{_unlike_medians(one)}"
        )
    border = f"{100 * SMALLEST_EFFECT:g}%"
    endings = {
        Verdict.FASTER: f"it is faster by more than {border}",
        Verdict.SLOWER: f"it is slower by more than {border}",
        Verdict.SAME: f"the two differ by no more than {border}",
        Verdict.UNDECIDED: f"whether they differ by more than {border} is open",
    }
    taken = counted(one.repeats, "interleaved repeat")
    taken += f" of {counted(one.processes[0], 'process')}" if one.processes[0] > 1 else ""
    noise = too_noisy(one)
    return (
        f"{mode} is {precise(factor)} as fast as {base} in {what} (95% interval, {taken}). "
        f"{one.verdict}: {endings[one.verdict]}.{_unlike_medians(one)}{f' {noise}.' if noise else ''}"
    )


def _unlike_medians(one: Comparison) -> str:
    """Return a sentence if the ratio of the medians in the table differs from the factor; else no text."""
    medians, factor = one.ratio_of_medians, one.factor.interval.value
    if one.pairs is None or abs(medians / factor - 1) <= MEDIANS_DIFFER:
        return ""
    return f" The factor is the typical ratio of one repeat; the medians in the table give {medians:.3f}x."
