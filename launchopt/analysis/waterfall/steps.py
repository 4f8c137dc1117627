"""What each choice of a stack brings: differences between successive arms of one run, which add up to the whole.

In: rows as `results.read_summaries` gives them, and the orders of arms by run, from manifests. Out: a `Waterfall` per
run and order. Pure: reads no file, prints nothing.

Times are wall times a step, which is one token of every request; of commands without steps, a command. A time of an
arm is the mean over the repeats that all arms of the run have. So the differences add up to the whole exactly, and two
orders with the same ends have the same whole. `statistics.difference` has the estimate and its interval. With three
processes or more a sample is the mean of a process. An arm with a failed or unverified repeat is left out: the next
difference spans it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from launchopt.analysis.stack_choices import choices_of
from launchopt.analysis.stream_rows import STREAM, grouped, stream_order, without_copies
from launchopt.analysis.tables.rows import problem_of
from launchopt.files import JsonObject
from launchopt.recording.manifest import Manifest
from launchopt.recording.results import Row
from launchopt.recording.summary_columns import SUMMARY_COLUMNS
from launchopt.stack import Kernels, Submit
from launchopt.statistics.difference import difference
from launchopt.statistics.interval import FEWEST_REPEATS, Interval
from launchopt.statistics.processes import FEWEST_PROCESSES

OUTLIER = 1.5  # a repeat that takes this many times the median of its arm moves the mean visibly
Orders = Mapping[str, Sequence[Sequence[str]]]  # run_id -> the orders of its arms
_SHOWN = {
    "own": "own kernels",
    "triton": "Triton's kernels",
    "torch": "PyTorch's kernels",
    "cublaslt": "cuBLASLt",
    "numpy": "NumPy",
}
_VALUES = {*map(str, Submit), *map(str, Kernels)}
_STREAM_COLUMNS = tuple(each.name for each in SUMMARY_COLUMNS if each.name in STREAM)


@dataclass(frozen=True, slots=True)
class Step:
    """One choice more: the arm with it, times before and after, and their difference. share: of the whole."""

    choice: str
    mode: str
    before_us: float
    after_us: float
    brings: Interval  # us; negative: the choice costs time
    share: float | None  # None: the whole is 0

    @property
    def sign(self) -> int | None:
        """1: the choice saves time; -1: it costs time; 0: the interval leaves that open; None: there is no interval."""
        if self.brings.low is None or self.brings.high is None:
            return None
        return (self.brings.low > 0) - (self.brings.high < 0)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The steps of one order of arms in a run. number: of the order, from 1 to `orders`."""

    stream: Row
    number: int
    orders: int
    first: str  # the arm that it begins with
    steps: list[Step]
    whole: Step  # from the first to the last arm
    repeats: int  # of each arm
    left_out: dict[str, str]  # arm of the order -> the reason
    outliers: dict[str, float]  # arm -> its slowest repeat over its median, from OUTLIER on

    @property
    def unit(self) -> str:
        """`us a step`, or `us a command` where there are no steps."""
        return "us a step" if _has_steps(self.stream) else "us a command"


def orders_of(manifests: Iterable[Manifest]) -> Orders:
    """Return the orders of each run that has some."""
    return {str(each.get("run_id")): each["waterfall"] for each in manifests if each.get("waterfall")}


def build_waterfalls(
    rows: Iterable[Row], orders: Orders, refusals: Mapping[str, Mapping[str, str]] | None = None
) -> list[Waterfall]:
    """Return the waterfalls of all untraced runs that have an order, by stream of commands.

    refusals: run_id -> arm -> the reason why it cannot run. Raises DataError if two different rows claim to be the same
    repeat.
    """
    untraced = [row for row in without_copies(rows) if not row["traced"] and row["run_id"] in orders]
    runs = sorted(grouped(untraced, (*STREAM, "run_id")), key=stream_order)
    return [one for run in runs for one in _of_run(run, orders, (refusals or {}).get(str(run[0]["run_id"]), {}))]


def _of_run(rows: list[Row], orders: Orders, refused: Mapping[str, str]) -> list[Waterfall]:
    mine = [list(dict.fromkeys(order)) for order in orders[str(rows[0]["run_id"])]]
    named = {label for order in mine for label in order}
    arms = {str(members[0]["mode"]): members for members in grouped(rows, ("mode",)) if members[0]["mode"] in named}
    problems = {label: why for label, members in arms.items() if (why := _problem(members)) is not None}
    kept = _shared({label: members for label, members in arms.items() if label not in problems})
    absent = dict.fromkeys(sorted(named - arms.keys() - refused.keys()), "no untraced repeat")
    left_out = {**refused, **absent, **problems}
    return [
        _waterfall({label: kept[label] for label in order if label in kept}, at, len(mine), _only(order, left_out))
        for at, order in enumerate(mine, 1)
        if sum(label in kept for label in order) > 1
    ]


def _only(order: Sequence[str], left_out: Mapping[str, str]) -> dict[str, str]:
    """Return the arms of an order that are left out, with their reasons."""
    return {label: left_out[label] for label in order if label in left_out}


def _problem(rows: list[Row]) -> str | None:
    """Return the reason why an arm proves nothing, or None."""
    if (why := problem_of(rows)) is not None:
        return why if why == "failed" else f"failed: {why}"
    return "failed: no wall time" if any(_time_us(row) is None for row in rows) else None


def _shared(arms: Mapping[str, list[Row]]) -> dict[str, list[Row]]:
    """Return the repeats that all arms have, in order; nothing if they share none."""
    shared = set.intersection(*({row["repeat"] for row in rows} for rows in arms.values())) if arms else set()
    return {
        label: sorted((row for row in rows if row["repeat"] in shared), key=lambda row: int(row["repeat"]))
        for label, rows in arms.items()
        if shared
    }


def _waterfall(arms: Mapping[str, list[Row]], number: int, orders: int, left_out: dict[str, str]) -> Waterfall:
    first, *_, last = arms
    whole = _step(arms, first, last, None)
    steps = [_step(arms, before, after, whole.brings.value) for before, after in pairwise(arms)]
    slowest = {label: _slowest(rows) for label, rows in arms.items()}
    outliers = {label: ratio for label, ratio in slowest.items() if ratio >= OUTLIER}
    return Waterfall(arms[first][0], number, orders, first, steps, whole, len(arms[first]), left_out, outliers)


def _slowest(rows: Sequence[Row]) -> float:
    """Return the time of the slowest repeat over the median."""
    times = [float(row["wall_ms"]) for row in rows]
    return max(times) / statistics.median(times)


def _step(arms: Mapping[str, list[Row]], before: str, after: str, whole_us: float | None) -> Step:
    """Return the step between two arms. whole_us: None: this step is the whole."""
    times, others = _samples(arms[before]), _samples(arms[after])
    fewest = FEWEST_PROCESSES if _is_by_process(arms[before]) else FEWEST_REPEATS
    has_interval = len(arms[before]) >= FEWEST_REPEATS
    brings = difference(times, others, unit=" us", fewest=fewest if has_interval else len(times) + 1)
    whole_us = brings.value if whole_us is None else whole_us
    choice = choice_between(arms[before][0], arms[after][0])
    means = (statistics.fmean(times), statistics.fmean(others))
    return Step(choice, after, *means, brings, brings.value / whole_us if whole_us else None)


def _is_by_process(rows: Sequence[Row]) -> bool:
    return len({row["process"] for row in rows}) >= FEWEST_PROCESSES


def _samples(rows: Sequence[Row]) -> list[float]:
    """Return the time of each repeat; with FEWEST_PROCESSES or more, the mean of each process."""
    times = [time for row in rows if (time := _time_us(row)) is not None]
    if not _is_by_process(rows):
        return times
    groups: dict[object, list[float]] = {}
    for row, time in zip(rows, times, strict=True):
        groups.setdefault(row["process"], []).append(time)
    return list(map(statistics.fmean, groups.values()))


def _has_steps(row: Row) -> bool:
    return bool(row["tokens"] or row["steps"])


def _time_us(row: Row) -> float | None:
    """Return the wall time of one token of every request, or of one command; None if it was not measured."""
    count, parts = (row["tokens"], row["requests"]) if row["tokens"] else (row["steps"] or row["commands"], 1)
    wall_ms = row["wall_ms"]
    is_known = all(each is not None and 0 < each < math.inf for each in (wall_ms, count, parts))
    return float(wall_ms) * 1e3 * float(parts) / float(count) if is_known else None


def choice_between(before: Row, after: Row) -> str:
    """Return the choices that a stack adds to the stack before it, or the name of its mode if both stacks are equal.

    Choices that were dropped follow, as in `graph, without norm`. A new value of `submit` or `kernels` replaces the old
    one, which is not mentioned. A megakernel has fusions of its own.
    """
    old, new = choices_of(before), choices_of(after)
    added = [_SHOWN.get(each, each) for each in new if each not in old]
    is_whole = {Submit.megakernel, Submit.persistent, Kernels.torch} & set(new)
    absent = [] if is_whole else [each for each in old if each not in new and each not in _VALUES]
    without = [f"without {', '.join(absent)}"] if absent else []
    return ", ".join([*added, *without]) or str(after["mode"])


def waterfalls_json(found: Sequence[Waterfall]) -> JsonObject:
    """Return all waterfalls, as `launchopt report --waterfall --json` prints them. Times are in us."""
    return {"waterfalls": [_json(each) for each in found]}


def _json(one: Waterfall) -> JsonObject:
    return {
        **{name: one.stream[name] for name in ("run_id", *_STREAM_COLUMNS)},
        "order": one.number,
        "unit": one.unit,
        "repeats": one.repeats,
        "first_mode": one.first,
        "steps": list(map(_step_json, one.steps)),
        "whole": _step_json(one.whole),
        "left_out": one.left_out,
        "outliers": one.outliers,
    }


def _step_json(one: Step) -> JsonObject:
    return {
        **{"choice": one.choice, "mode": one.mode, "before_us": one.before_us, "after_us": one.after_us},
        **{"brings": _interval(one.brings), "share": one.share},
    }


def _interval(us: Interval) -> JsonObject:
    return {"us": us.value, "low": us.low, "high": us.high, "range": us.range}
