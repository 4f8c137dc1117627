"""A comparison as text: a block of lines, a table row, Markdown for a pull request, and JSON.

In: `compare.Outcome`. Out: text; this module prints nothing. A factor has enough decimals that its interval shows two
digits.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from launchopt.analysis.comparison.arms import Arm
from launchopt.analysis.comparison.outcome import Comparison, Outcome
from launchopt.analysis.stream_rows import counted, digits, stream_subtitle, stream_title
from launchopt.analysis.tables.markdown import NUMBER, TEXT, code_span, escaped, pipe_table
from launchopt.statistics.interval import FEWEST_REPEATS, Interval, Verdict
from launchopt.statistics.power import AFFORDABLE, POWER
from launchopt.statistics.processes import FEWEST_PROCESSES

HEADINGS = {  # alignment in Markdown, by heading
    **dict.fromkeys(("work", "A", "B", "metric"), TEXT),
    **dict.fromkeys(("A median", "B median", "factor"), NUMBER),
    "verdict": TEXT,
}
LEGEND = (
    "Factor: above 1, B is the better; Hodges-Lehmann estimate on log ratios. The verdict rests on its 95% interval. "
    "In []: a 95% interval. In (): a range, where there are too few repeats or processes for an interval."
)
LINE_WIDTH = 100  # a longer line is wrapped
_WIDTH = 10  # width of a label


def block(one: Comparison) -> list[tuple[str, str]]:
    """Return the lines of one comparison as (label, text). The label is empty on a continued line."""
    a, b = one.medians
    interval = one.factor.interval
    lines = [("work", title(one)), ("", stream_subtitle(one.a.rows[0]))]
    lines += [("FORCED", text) for text in one.overridden]
    lines += [
        ("A", one.a.name),
        ("", f"{one.metric} {precise(a)}, {_counts(one, one.a, one.processes[0])}"),
        ("B", one.b.name),
        ("", f"{one.metric} {precise(b)}, {_counts(one, one.b, one.processes[1])}"),
        ("factor", f"{precise(interval)}, above 1 where B is the better; {pairing(one)}"),
        ("", basis(one)),
        ("medians", f"{digits(one.ratio_of_medians, 4)}x, the ratio of the two medians"),
        ("verdict", f"{marked(one)}: {meaning(one)}"),
    ]
    lines += [("repeats", text) for text in advice(one)]
    return lines + [("note", text) for text in one.notes]


def written(label: str, text: str, width: int = LINE_WIDTH) -> str:
    """Return a label and its text, `  verdict   FASTER: ...`, wrapped between words."""
    indent = " " * (_WIDTH + 2)
    return textwrap.fill(
        text,
        min(width, LINE_WIDTH),
        initial_indent=f"  {label:{_WIDTH}}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def summary(comparisons: Sequence[Comparison]) -> str:
    """Return how often each verdict was reached: `3 comparisons: 2 FASTER, 1 SAME`."""
    found = Counter(one.verdict for one in comparisons)
    return f"{counted(len(comparisons), 'comparison')}: {', '.join(f'{found[v]} {v}' for v in Verdict if found[v])}"


def title(one: Comparison) -> str:
    """Return the work that both sides did; with `force` it may differ, and the title names both."""
    ours, theirs = stream_title(one.a.rows[0]), stream_title(one.b.rows[0])
    return ours if ours == theirs else f"{ours} (A) against {theirs} (B)"


def banner(outcome: Outcome) -> str | None:
    """Return a warning if `--force` set objections aside."""
    if not outcome.forced:
        return None
    count = sum(bool(one.overridden) for one in outcome.comparisons)
    return f"FORCED: --force was given; {count} of {len(outcome.comparisons)} comparisons would have been refused"


def _counts(one: Comparison, arm: Arm, processes: int) -> str:
    if one.is_once:
        return "one measurement" + (f" in each of {counted(processes, 'process')}" if processes > 1 else "")
    more = f" of {counted(processes, 'process')}" if processes > 1 else ""
    return f"{counted(len(arm.rows), 'repeat')}{more}"


def basis(one: Comparison) -> str:
    """Return what the interval rests on, or why there is none."""
    ours, theirs = one.processes
    if one.factor.method is not None:
        between = f", over {ours} and {theirs} processes" if one.pairs is None else f", over {ours} processes"
        return one.factor.method + (between if one.rests_on_processes else "")
    if one.is_once:
        return f"no interval and no verdict: {one.metric} is measured once a process, in {ours} and {theirs} so far"
    if one.repeats < FEWEST_REPEATS:
        return f"no interval: {counted(one.repeats, 'repeat')}, and {FEWEST_REPEATS} are the fewest"
    return f"no interval: {counted(ours, 'process')} against {theirs}, and {FEWEST_PROCESSES} a side are the fewest"


def pairing(one: Comparison) -> str:
    """Return how repeats were paired."""
    if one.pairs is None:
        return f"{counted(one.processes[0], 'process')} against {one.processes[1]}"
    return f"paired, {counted(one.pairs, 'repeat')} taken in turn"


def marked(one: Comparison) -> str:
    """Return the verdict, and whether it was forced."""
    return f"{one.verdict}{' (FORCED)' if one.overridden else ''}"


def meaning(one: Comparison) -> str:
    """Return the verdict in words."""
    border = _percent(one.smallest_effect)
    words = {
        Verdict.FASTER: f"B is faster than A by more than {border}",
        Verdict.SLOWER: f"B is slower than A by more than {border}",
        Verdict.SAME: f"A and B differ by no more than {border}",
        Verdict.UNDECIDED: f"whether A and B differ by more than {border} is open",
    }
    return words[one.verdict]


def advice(one: Comparison) -> list[str]:
    """Return how many repeats or processes would decide, and what to run next, if the verdict is undecided."""
    if one.verdict is not Verdict.UNDECIDED:
        return []
    few = _few(one)
    if one.repeats_needed is None:
        found = [f"{few}: too few to measure the noise and say how many would decide"]
    elif one.repeats_needed > one.samples:
        found = [
            f"about {one.repeats_needed:,} would decide (now {few}), with probability {POWER:.0%} by the normal "
            "approximation on log ratios; more where the factor lies within "
            f"{_percent(one.smallest_effect)} of the border"
        ]
    else:
        found = [f"{few} are enough for this noise: the factor lies at the border, so try another --effect"]
    if one.detectable_effect is not None:
        found.append(f"With {few} only differences above {_effect(one.detectable_effect)} are likely to be found")
    if noise := too_noisy(one):
        return [noise, *found]
    again = "the same run" if one.pairs is not None or one.a.run.identity == one.b.run.identity else "both runs again"
    return [*found, f"next: {again} with {one.setting}={one.next_samples}"]


def too_noisy(one: Comparison) -> str | None:
    """Return what to do if no affordable number of repeats or processes would decide; else None."""
    if not one.is_too_noisy:
        return None
    most = f"{max(AFFORDABLE, one.samples):,} {one.setting}"
    said = f"Noise is too large for {most} to decide: quiet the machine"
    if (effect := one.deciding_effect) is None:
        return said
    return f"{said}, or accept a larger difference ({one.command} --effect {effect})"


def missing(one: Comparison) -> str | None:
    """Return what would decide an undecided comparison; None if it is decided.

    `more processes: 4 of A (now 1), 3 of B (now 2); run each with processes=5`, or to quiet the machine.
    """
    if one.verdict is not Verdict.UNDECIDED:
        return None
    if noise := too_noisy(one):
        return noise
    needed = one.next_samples
    if one.pairs is None:
        sides = zip("AB", one.processes, strict=True)
        lacks = [f"{needed - have} of {side} (now {have})" for side, have in sides if have < needed]
        return f"more processes: {', '.join(lacks)}; run each with processes={needed}"
    return f"more {one.setting}: {needed - one.samples} (now {one.samples}); run it with {one.setting}={needed}"


def missing_runs(outcome: Outcome) -> list[str]:
    """Return a line for each undecided comparison, and for each arm without a partner: what to run."""
    lines = [(one, missing(one)) for one in outcome.comparisons]
    return [*(f"{one.b.name}: {text}" for one, text in lines if text), *outcome.alone]


def _few(one: Comparison) -> str:
    if one.rests_on_processes:
        return counted(one.samples, "process") + (" a side" if one.pairs is None else "")
    return counted(one.repeats, "pair")


def cells(one: Comparison) -> list[str]:
    """Return the row of a comparison, in the order of `HEADINGS`."""
    a, b = one.medians
    return [
        title(one),
        one.a.name,
        one.b.name,
        one.metric,
        precise(a),
        precise(b),
        precise(one.factor.interval),
        marked(one),
    ]


def markdown(outcome: Outcome) -> str:
    """Return the outcome for a pull request: the warning, a table, and notes on its rows."""
    loud = banner(outcome)
    lines = [f"**{loud}**", ""] if loud else []
    lines += [f"B = {code_span(outcome.b)} against A = {code_span(outcome.a)}. {LEGEND}", ""]
    if outcome.comparisons:
        lines += [pipe_table(HEADINGS, map(cells, outcome.comparisons)), ""]
    for one in outcome.comparisons:
        lines += [f"- {escaped(title(one))}: {escaped(one.a.name)} / {escaped(one.b.name)}", *_points(one)]
    lines += [f"- Refused: {escaped(text)}" for text in outcome.refused]
    lines += [f"- Not compared, {escaped(text)}" for text in outcome.alone]
    return "\n".join(lines).rstrip() + "\n"


def _points(one: Comparison) -> Iterator[str]:
    forced = [f"**FORCED**: {escaped(text)}" for text in one.overridden]
    rest = [f"{one.verdict}: {meaning(one)}; {pairing(one)}", *advice(one), *one.notes]
    yield from (f"  - {text}" for text in [*forced, *map(escaped, rest)])


def fields(outcome: Outcome) -> dict[str, object]:
    """Return the outcome for JSON. A factor without an interval has null bounds."""
    return {
        **{"a": outcome.a, "b": outcome.b, "metric": outcome.metric},
        **{"smallest_effect": outcome.smallest_effect, "forced": outcome.forced, "warning": banner(outcome)},
        "comparisons": [_fields(one) for one in outcome.comparisons],
        **{"refused": outcome.refused, "not_compared": outcome.alone},
    }


def _fields(one: Comparison) -> dict[str, object]:
    arms = {
        side: {"run_id": arm["run_id"], "mode": arm["mode"], "label": arm.label, "median": _bounds(median)}
        | {"repeats": len(arm.rows), "processes": processes, "throttled": arm.throttled}
        for side, arm, median, processes in zip("ab", (one.a, one.b), one.medians, one.processes, strict=True)
    }
    return {
        **{
            "work": title(one),
            "metric": one.metric,
            **arms,
            "verdict": str(one.verdict),
            "factor": _bounds(one.factor.interval),
        },
        **{"method": one.factor.method, "basis": basis(one), "rests_on_processes": one.rests_on_processes},
        "ratio_of_medians": _bounds(Interval(one.ratio_of_medians, None, None)),
        **{"paired": one.pairs is not None, "pairs": one.pairs, "repeats_needed": one.repeats_needed},
        **{"detectable_effect": one.detectable_effect, "missing": missing(one)},
        **{"forced": one.overridden, "notes": one.notes},
    }


def _bounds(interval: Interval) -> dict[str, object]:
    bounds = {"value": interval.value, "low": interval.low, "high": interval.high, "unit": interval.unit}
    return bounds | {"range": interval.range}


def precise(interval: Interval) -> str:
    """Return a factor whose interval or range has two digits: `1.0512x [1.0493, 1.0533]`, `1.05x (1.02 to 1.09)`."""
    space = "" if interval.unit in ("", "x") else " "
    is_interval = interval.low is not None and interval.high is not None
    ends = (interval.low, interval.high) if is_interval else interval.range
    low, high = (interval.value, interval.value) if ends is None else (ends[0] or 0.0, ends[1] or 0.0)
    half = (high - low) / 2
    decimals = _decimals(half, 1) if half > 0 else _decimals(interval.value, 3)
    decimals = max(decimals, 2) if interval.unit == "x" else decimals
    value, first, last = (f"{number:,.{decimals}f}" for number in (interval.value, low, high))
    bounds = f"[{first}, {last}]" if is_interval else f"({first} to {last})" if ends else "(1 repeat)"
    return f"{value}{space}{interval.unit} {bounds}"


def _decimals(size: float, digits: int) -> int:
    return 0 if size == 0 else min(9, max(0, digits - math.floor(math.log10(abs(size)))))


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


def _effect(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else f"a factor of {digits(1 + share, 3)}"
