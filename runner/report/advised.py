"""The advice of `launchopt advise` beside the best stack of a sweep, as a table of a page.

In: advised.json, `{"advised": [{"run"}, ...]}`. `run` is a folder of scripts/advised.py, relative to that file: its
answer.json has the advice and its lines, and its sweep all stacks in turn. Out: Markdown.

The advised stack is good enough if the fastest stack of the sweep is at most 5% faster. The upper limit of the 95%
interval of the factor, which compares the two repeat by repeat, decides.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launchopt.analysis.conclusions import Factor, factors_of
from launchopt.analysis.stream_rows import counted, number_types
from launchopt.analysis.tables.columns import NOTHING, number
from launchopt.analysis.tables.markdown import escaped, plain
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json
from launchopt.recording import results
from launchopt.recording.results import Row
from runner.advise.halving import Decision

FILE, ANSWER, SWEEP = "advised.json", "answer.json", "sweep"
SLOW = 3.0  # the sweep leaves out stacks that took this many times as long as the fastest in a short run
MARGIN = 0.05
YES, MEDIAN, NO = "yes", "in the median", "NO"
UNSURE = "no"
LEGEND = (
    "Advised: the stack that `launchopt advise` chose. Took: seconds of the whole command, once compiled. "
    "Fastest: the stack with the smallest median wall time of all that advise can choose from; they run in turn in one "
    f"process, after the advice. Those over {SLOW:g} times as slow as the fastest in a short run are left out. "
    "Factor: how many times as fast as the advised stack the fastest is, with the 95% interval. Within 5%: yes if the "
    f"whole interval is at most {1 + MARGIN:g}, NO if the median is above it. Sure: yes if the answer said that "
    f"{Decision.decided.value}, no if it called this undecided, or if only one stack ran. Layers: those that ran, of "
    "those in the config.json. All stacks have the default batching."
)
_HEADINGS = {"work": "---", "layers": "---:", "took, of a budget": "---:", "advised": "---", "fastest": "---"}
_HEADINGS |= {"factor": "---:", "within 5%": "---", "sure": "---", "stacks, repeats": "---:"}
Arms = Mapping[str, Sequence[Row]]


class Judged(NamedTuple):
    """The fastest stack of a sweep, its factor over the advised one (None: it is the advised one), and the verdict."""

    fastest: str
    factor: Factor | None
    within: str


def markdown(path: Path) -> str:
    """Return the legend, the table, and how many rows are within 5%; DataError for a file or a run that has none."""
    try:
        runs = [path.parent / each["run"] for each in read_json(path)["advised"]]
        lines = [_cells(run, read_json(run / ANSWER)) for run in runs]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of advices ({type(error).__name__}: {error})") from None
    return f"{LEGEND}\n\n{plain(_HEADINGS, lines)}\n{_count(lines)}\n"


def _count(lines: Sequence[Sequence[str]]) -> str:
    """Return how many answers are within the margin: of all, and of those that were sure."""
    within, sure = (list(_HEADINGS).index(name) for name in ("within 5%", "sure"))

    def counts(some: Sequence[Sequence[str]]) -> str:
        verdicts = [line[within] for line in some]
        return f"{verdicts.count(YES)} of {len(some)}; in the median {verdicts.count(MEDIAN)} more"

    return f"Within 5%: {counts(lines)}. Of the sure ones: {counts([line for line in lines if line[sure] == YES])}."


def _cells(run: Path, answer: JsonObject) -> list[str]:
    arms = _arms(run / SWEEP)
    advised = str(answer["advised"])
    judged = judge(arms, advised)
    first = next(iter(arms.values()))[0]
    requests = counted(int(answer["requests"]), "request")
    return [
        f"{escaped(str(first['model']))} {number_types(first)}, {requests}, {escaped(first['gpu'] or 'CPU')}",
        f"{first['layers']} of {answer['layers']}",
        f"{number(float(answer['took_s']))} s of {float(answer['budget_s']):g}",
        escaped(advised),
        "the same" if judged.fastest == advised else escaped(judged.fastest),
        judged.factor.shown if judged.factor else NOTHING,
        judged.within,
        YES if any(Decision.decided.value in line for line in answer["lines"]) else UNSURE,
        f"{len(arms)} of {answer['stacks']}, {min(map(len, arms.values()))}",
    ]


def _arms(folder: Path) -> Arms:
    """Return the rows of each stack; none of a stack with a failed or wrong repeat."""
    found: dict[str, list[Row]] = {}
    for row in results.read_summaries([folder]):
        found.setdefault(str(row["mode"]), []).append(row)
    arms = {
        mode: rows for mode, rows in found.items() if all(row["status"] == "ok" and row["verified"] for row in rows)
    }
    if len(arms) < 2:
        raise DataError(folder, None, "fewer than two stacks")
    return arms


def judge(arms: Arms, advised: str) -> Judged:
    """Return what a sweep says about the advised stack."""
    fastest = min(arms, key=lambda mode: statistics.median(row["wall_ms"] for row in arms[mode]))
    if advised == fastest:
        return Judged(fastest, None, YES)
    if advised not in arms:
        return Judged(fastest, None, f"{NO}: did not run")
    found = factors_of([*arms[advised], *arms[fastest]], [advised, fastest])
    if not found:
        return Judged(fastest, None, f"{NO}: not comparable")
    (factor,) = found
    if factor.value > 1 + MARGIN:
        return Judged(fastest, factor, NO)
    return Judged(fastest, factor, YES if factor.high is not None and factor.high <= 1 + MARGIN else MEDIAN)
