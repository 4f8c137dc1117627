"""Choose a mode for some work from similar works that were measured. The rule of mode=auto.

In: rows and manifests of runs. Out: an `Entry` for each run that had two or more modes in turn, and a `Choice`. Pure:
reads no file and knows no device.

Works are compared only on one device, for the same size of a number, and if both are steps, or independent commands,
or commands in order (a list with groups, a layer with experts).
The distance of two works is the sum of the doublings between their columns and between the sizes of their weights,
WORKLOAD more if their workloads differ, and ALONE more if only one of them has a single column, so that nothing can be
coalesced.

Entries have different modes. So one factor for each mode is fitted to all of them: time of an entry = time of its work
x factor of the mode, by least squares of the logarithms. An entry weighs 1 / (distance + NEAR)^2. The mode with the
smallest factor that can run is chosen. Without a similar work, RULES has the modes to take, the first that can run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from launchopt.analysis.conclusions import factors_of
from launchopt.recording.results import Row

WORKLOAD = 2.0  # distance between two workloads: two doublings
ALONE = 1.0  # distance between one column and several: one doubling
NEAR = 0.1  # so that the same work weighs 100 times as much as one that is a doubling away
IN_ORDER = " in order"  # behind the name of a workload
ORDERED = ("list", "moe")  # workloads without steps of requests that can be in order; they have one request then
# Modes to take without a table, for each kind of work.
RULES = {
    "steps": ("engine+graph", "graph", "engine", "coalesced", "batched", "baseline"),
    "independent commands": ("batched", "baseline"),
    "commands in order": ("graph", "batched", "baseline"),  # a graph has the whole list, a batch ends with its group
}
SMALLEST = 1e-4  # weight of a factor of 1 for each mode and work
MARGIN = 1.05  # a choice may take this many times as long as the best mode
MOST = 1e18  # of a number in a manifest
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


class Work(NamedTuple):
    """What a choice depends on. columns: of one launch, if all commands that may share it do. weight_bytes: mean."""

    device: str
    has_steps: bool
    item_bytes: int
    workload: str
    columns: float
    weight_bytes: float

    @property
    def kind(self) -> str:
        """The key of RULES."""
        if self.has_steps:
            return "steps"
        return "commands in order" if self.workload.endswith(IN_ORDER) else "independent commands"

    def __str__(self) -> str:
        return f"{self.workload}, {self.columns:,.0f} columns, weights of {self.weight_bytes / 1e6:,.3g} MB"


class Entry(NamedTuple):
    """One measured work: the median wall time of each of its modes, in ms, and the run that measured it."""

    work: Work
    run: str
    wall_ms: Mapping[str, float]


class Choice(NamedTuple):
    """The chosen mode, and the reason in words."""

    mode: str
    why: str


class Standing(Enum):
    """Where a choice stands: what the interval of its time / that of the best mode says about MARGIN."""

    close = "within"  # the whole interval is at most MARGIN
    open = "undecided"  # the interval has MARGIN in it: the run cannot tell the two apart
    behind = "behind"  # the whole interval is above MARGIN


class Judged(NamedTuple):
    """A choice for the work of an entry. low and high: limits of its time / that of the best mode."""

    entry: Entry
    choice: Choice
    best: str
    low: float
    high: float

    @property
    def standing(self) -> Standing:
        """Return where the choice stands."""
        if self.high <= MARGIN:
            return Standing.close
        return Standing.behind if self.low > MARGIN else Standing.open


def workload_of(name: str, requests: int | None) -> str:
    """Return the workload of a work: IN_ORDER is added to a list with groups, whose commands are of one request.

    And to a layer with experts, which is always in order.
    """
    return name + IN_ORDER if name in ORDERED and requests == 1 else name


def work_of(
    workload: str, has_steps: bool, device: str, dtype: str, shapes: Mapping[str, int], together: int
) -> Work | None:
    """Return the work of a stream; None for a dtype or shapes of another version. workload: see `workload_of`.

    shapes: how often each one occurs, such as 1024x1x4096 or relu:1024x1x1024. together: most commands of a launch.
    """
    gemms = {shape: count for shape, count in shapes.items() if ":" not in shape} or shapes
    counts = list(gemms.values())
    if not counts or dtype not in ITEM_BYTES or not all(isinstance(one, int) and 0 < one < MOST for one in counts):
        return None
    total = sum(counts)
    columns = weights = 0.0
    for shape, count in gemms.items():
        sizes = shape.rpartition(":")[2].split("x")
        if len(sizes) != 3 or not all(size.isdecimal() for size in sizes):
            return None
        m, n, k = map(float, sizes)
        columns += n * count / total
        weights += m * k * count / total
    if not (0 < columns < MOST and 0 < weights < MOST):
        return None
    item_bytes = ITEM_BYTES[dtype]
    return Work(device, has_steps, item_bytes, workload, columns * max(1, together), weights * item_bytes)


def entries_of(rows: Iterable[Row], manifests: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Return the entries of runs that can teach, of two or more modes.

    A mode with a failed or wrong repeat is left out.
    """
    by_run: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if _can_teach(row):
            by_run.setdefault(str(row["run_id"]), {}).setdefault(str(row["mode"]), []).append(row)
    found = []
    for manifest in manifests:
        run = str(manifest.get("run_id"))
        modes = {mode: each for mode, each in by_run.get(run, {}).items() if all(map(_is_measured, each))}
        if len(modes) < 2:
            continue
        first = next(iter(modes.values()))[0]
        about = (manifest.get("environment") or {}).get("device") or {}
        work = work_of(
            workload_of(str(first["workload"]), first["requests"]),
            first["tokens"] is not None,
            str(first["gpu"] or about.get("name")),
            str(first["dtype"]),
            (manifest.get("stream") or {}).get("shapes") or {},
            min(first["requests"] or 1, first["max_batch"] or 1),
        )
        if work is not None:
            walls = {mode: statistics.median(row["wall_ms"] for row in each) for mode, each in modes.items()}
            found.append(Entry(work, run, walls))
    return found


def _can_teach(row: Row) -> bool:
    """Return whether a row is of a closed loop on one GPU, without a tracer and without quantised weights.

    Fewer modes can run quantised weights, or a model that is split over GPUs; its times hold waits for other GPUs.
    """
    has_one_gpu = row["gpus"] is None
    return row["arrival"] == "closed" and not row["traced"] and row["weights"] is None and has_one_gpu


def _is_measured(row: Row) -> bool:
    return bool(row["status"] == "ok" and row["verified"] and row["wall_ms"] and 0 < row["wall_ms"] < MOST)


def distance(one: Work, other: Work) -> float:
    """Return how different two works are; infinite if one says nothing about the other."""
    if one[:3] != other[:3] or one.kind != other.kind:
        return math.inf
    columns, weights = one.columns, one.weight_bytes
    doublings = abs(math.log2(columns) - math.log2(other.columns))  # their ratio may be too small for a number
    doublings += abs(math.log2(weights) - math.log2(other.weight_bytes))
    return doublings + WORKLOAD * (one.workload != other.workload) + ALONE * ((columns <= 1) != (other.columns <= 1))


def choose(entries: Iterable[Entry], work: Work, runs_here: Callable[[str], bool]) -> Choice | None:
    """Return the mode with the smallest fitted factor that can run here; None if RULES have no such mode, either."""
    known = [(distance(entry.work, work), entry) for entry in entries]
    near = sorted((each for each in known if each[0] < math.inf), key=lambda each: (each[0], -len(each[1].wall_ms)))
    factors = _factors(near)
    for mode in sorted(factors, key=lambda mode: factors[mode]):
        if runs_here(mode):
            away, entry = next(each for each in near if mode in each[1].wall_ms)
            which = "in this work" if not away else f"in the most similar work that has it ({entry.work})"
            count = sum(mode in each.wall_ms for _, each in near)
            works = f"{count} measured works" if count > 1 else "1 measured work"
            most = factors[mode] + math.log(MARGIN)
            others = [each for each in factors if each != mode and factors[mode] <= factors[each] <= most]
            tied = [each for each in sorted(others, key=lambda each: factors[each]) if runs_here(each)]
            tie = f"; within {MARGIN - 1:.0%} of it: {', '.join(tied)}" if tied else ""
            return Choice(mode, f"expected to be the fastest by {works}{tie}; measured {which}, {entry.run}")
    for mode in RULES[work.kind]:
        if runs_here(mode):
            return Choice(mode, f"nothing similar was measured on {work.device}; the first that can run {work.kind}")
    return None


def _factors(near: Sequence[tuple[float, Entry]]) -> dict[str, float]:
    """Return the fitted time of each mode over that of others, as a logarithm. near: entries with their distances.

    The time of each work has a closed form for given factors. So only the normal equations of the factors are solved,
    which are as many as the modes.
    """
    modes = sorted({mode for _, entry in near for mode in entry.wall_ms})
    number = {mode: at for at, mode in enumerate(modes)}
    matrix, right = SMALLEST**2 * np.eye(len(modes)), np.zeros(len(modes))  # else only differences are known
    for away, entry in near:
        at = [number[mode] for mode in entry.wall_ms]
        times = np.log(np.array([*entry.wall_ms.values()], float))
        weight = 1 / (away + NEAR) ** 2
        of_work = weight / (weight * len(at) + SMALLEST**2)
        matrix[np.ix_(at, at)] += weight * (np.eye(len(at)) - of_work)
        right[at] += weight * (times - of_work * times.sum())
    return dict(zip(modes, map(float, np.linalg.solve(matrix, right)), strict=True)) if modes else {}


def is_another_work(one: Work, other: Work) -> bool:
    """Return whether two works differ in anything."""
    return one != other


def is_another_workload(one: Work, other: Work) -> bool:
    """Return whether two works are of different workloads."""
    return one.workload != other.workload


def judged_unseen(
    entries: Sequence[Entry], rows: Iterable[Row], may_count: Callable[[Work, Work], bool] = is_another_work
) -> list[Judged]:
    """Return the choice for the work of each entry by entries of other works alone, and how far it is behind.

    may_count: returns whether an entry with the first work counts for the second one. A mode that did not run in an
    entry cannot be chosen for it. Entries without any mode of a choice are left out.
    """
    by_run: dict[str, list[Row]] = {}
    for row in rows:
        by_run.setdefault(str(row["run_id"]), []).append(row)
    found = []
    for entry in entries:
        others = [each for each in entries if may_count(each.work, entry.work)]
        choice = choose(others, entry.work, entry.wall_ms.__contains__)
        if choice is not None:
            best = min(entry.wall_ms, key=lambda mode: entry.wall_ms[mode])
            found.append(Judged(entry, choice, best, *_limits(by_run[entry.run], choice.mode, best)))
    return found


def counts_of(judged: Iterable[Judged]) -> dict[Standing, int]:
    """Return how many choices stand where."""
    counts = dict.fromkeys(Standing, 0)
    for each in judged:
        counts[each.standing] += 1
    return counts


def _limits(rows: Sequence[Row], mode: str, best: str) -> tuple[float, float]:
    """Return the 95% interval of the times of `mode` over those of `best`.

    Below five repeats there is no interval: the smallest and the largest ratio of two repeats in turn count.
    """
    if mode == best:
        return 1.0, 1.0
    factors = factors_of(rows, [mode, best])
    if factors and factors[0].low is not None and factors[0].high is not None:
        return float(factors[0].low), float(factors[0].high)
    walls = {name: {row["repeat"]: row["wall_ms"] for row in rows if row["mode"] == name} for name in (mode, best)}
    ratios = [float(walls[mode][at]) / float(walls[best][at]) for at in walls[mode].keys() & walls[best].keys()]
    return min(ratios), max(ratios)
