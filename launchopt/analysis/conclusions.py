"""The conclusions of `launchopt.api`: the factor of each mode over its base, and the verdict on a folder of results.

In: rows and manifests of runs, or the outcome of a comparison. Out: a `Factor` for each pair, and a `Verdict`. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launchopt.analysis.comparison.answer import against, answer
from launchopt.analysis.comparison.outcome import Comparison
from launchopt.analysis.comparison.text import basis, marked, meaning, precise, title
from launchopt.analysis.stream_rows import stream_subtitle, stream_title
from launchopt.analysis.tables.columns import NOTHING, number
from launchopt.analysis.tables.markdown import NUMBER, TEXT, escaped, pipe_table
from launchopt.analysis.tables.rows import Line, bases_of
from launchopt.analysis.verdict.diagnosis import Diagnosis
from launchopt.errors import one_line
from launchopt.recording.results import Row


@dataclass(frozen=True, slots=True)
class Factor:
    """How many times as fast as its base a mode is. Above 1 the mode is the better.

    low and high: bounds of the 95% interval; None if there are too few repeats or processes for one. verdict: FASTER,
    SLOWER, SAME or UNDECIDED. metric: the column that is compared, mostly wall_ms. shown: the value with its interval.
    """

    work: str
    base: str
    mode: str
    metric: str
    value: float
    low: float | None
    high: float | None
    verdict: str
    shown: str
    text: str

    def __str__(self) -> str:
        return one_line(self.text)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run says: the factor of each mode over the base, what bounds the time, and what to try first.

    bounds: a sentence for each stream of commands. first_to_try: a mode for each stream for which there is one.
    errors: rates that cannot be true. `print` shows all of it.
    """

    factors: tuple[Factor, ...]
    bounds: tuple[str, ...]
    first_to_try: tuple[str, ...]
    errors: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(map(one_line, self._lines))

    def _repr_markdown_(self) -> str:
        return "\n".join(f"- {escaped(line)}" for line in self._lines)

    @property
    def _lines(self) -> list[str]:
        return [*map(str, self.factors), *self.bounds, *self.errors]


def verdict_of(factors: Iterable[Factor], diagnoses: Sequence[Diagnosis]) -> Verdict:
    """Return the verdict of factors and diagnoses."""
    tried = dict.fromkeys(one.first_to_try for one in diagnoses if one.first_to_try)
    errors = tuple(f"{one.title}: {error}" for one in diagnoses for error in one.errors)
    return Verdict(tuple(factors), tuple(f"{one.title}: {one.sentence}" for one in diagnoses), tuple(tried), errors)


def modes_of(rows: Sequence[Row], given: object = None) -> list[str]:
    """Return the modes of one run: the base, the measured mode, then the others.

    given: the modes of `against`, of which the first is the base; anything else where a manifest is damaged.
    """
    ran = sorted({str(row["mode"]) for row in rows})
    beside = [mode for mode in given if mode in ran] if isinstance(given, list) else []
    base = next(iter([*beside, *(mode for mode in bases_of(rows[0]) if mode in ran)]), ran[0])
    measured = [mode for mode in ran if mode != base and mode not in beside]
    return list(dict.fromkeys([base, *measured, *beside, *ran]))


def table_of(rows: Sequence[Row], modes: Sequence[str], factors: Iterable[Factor]) -> str:
    """Return the medians of each mode of one run as Markdown, with the factors over the first of the modes."""
    base, found = modes[0], {one.mode: one for one in factors}
    headings = dict.fromkeys(("mode",), TEXT) | dict.fromkeys(("repeats", "wall ms", "launch calls"), NUMBER)
    headings |= {f"times as fast as {escaped(base)}": NUMBER, "verdict": TEXT, "verified": TEXT}
    cells = []
    for mode in modes:
        line = Line([row for row in rows if row["mode"] == mode], None)
        factor, is_verified = found.get(mode), all(row["verified"] for row in line.rows)
        calls = line.median("launch_calls")
        numbers = [f"{len(line.rows)}", number(line.median("wall_ms")), NOTHING if calls is None else f"{calls:,.0f}"]
        judged = [factor.shown, factor.verdict] if factor else [NOTHING, NOTHING]
        named = f"{mode} (inputs {line['quantised_inputs']})" if line["quantised_inputs"] else mode
        cells.append([named, *numbers, *judged, "yes" if is_verified else "NO"])
    title = escaped(f"{stream_title(rows[0])}, {stream_subtitle(rows[0])}")
    return f"{title}\n\n{pipe_table(headings, cells)}\n"


def factors_of(rows: Sequence[Row], modes: Sequence[str], folder: str = "RUN") -> list[Factor]:
    """Return the factors of the modes of one run over the first of them. A mode with a failed repeat has none.

    folder: of the run, for commands that the text proposes.
    """
    base, *others = modes
    found = [one for mode in others if (one := against(rows, base, mode, folder=folder))]
    return [_factor(one, str(one.a["mode"]), str(one.b["mode"]), answer(one)) for one in found]


def factor_between(one: Comparison) -> Factor:
    """Return the factor of a comparison of two folders; the base is A."""
    factor = f"B is {precise(one.factor.interval)} as fast as A in {one.metric} ({basis(one)})"
    text = f"{title(one)}, {one.b.label}: {factor}. {marked(one)}: {meaning(one)}."
    return _factor(one, one.a.name, one.b.name, text)


def _factor(one: Comparison, base: str, mode: str, text: str) -> Factor:
    interval = one.factor.interval
    work, verdict = stream_title(one.b.rows[0]), str(one.verdict)
    bounds = (interval.value, interval.low, interval.high)
    return Factor(work, base, mode, one.metric, *bounds, verdict, precise(interval), text)


def objective(rows: Iterable[Row], mode: str, base: str | None) -> float:
    """Return the median wall time of a mode over that of its base, or without a base in ms. Smaller is better.

    Infinite if a repeat failed, or if there is none: an optimizer then goes elsewhere.
    """
    walls: Mapping[str, list[float]] = {name: [] for name in (mode, base) if name is not None}
    for row in rows:
        if row["mode"] in walls:
            walls[row["mode"]].append(row["wall_ms"] if row["status"] == "ok" and row["verified"] else math.inf)
    if not all(walls.values()) or math.inf in (each for times in walls.values() for each in times):
        return math.inf
    own = statistics.median(walls[mode])
    return own if base is None else own / statistics.median(walls[base])
