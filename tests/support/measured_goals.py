"""Figures of the goals of steps, weights, experts and several GPUs, as the text around the tables states them.

In: files under outputs/reference. Out: numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import median

from launchopt.files import JsonObject, read_json
from launchopt.recording.results import read_summaries
from runner.advise.halving import Decision
from runner.report import advised, several_gpus, weight_goals
from runner.report import step_goals as shown_goals
from support.measured import REFERENCE


def weight_cells(name: str, row: int) -> list[str]:
    """A row of the goals of quantised weights or experts, as pages show it."""
    path = REFERENCE / name / weight_goals.FILE
    return weight_goals._cells(path.parent, read_json(path)["goals"][row])


def weight_goal(name: str, row: int) -> tuple[float, float, float]:
    """Read floor, goal and median of a row of the goals of quantised weights or experts, in us; the goal may be NaN."""
    cells = weight_cells(name, row)[2:5]
    floor, goal, median = (float(re.sub(r"[^\d.]", "", cell.partition(" ")[0]) or "nan") for cell in cells)
    return floor, goal, median


def beside(cell: str) -> dict[str, float]:
    """The times of the modes that a cell has from the same run, in us."""
    parts = (each.split() for each in cell.split("<br>"))
    return {mode: float(time.replace(",", "")) for mode, time, *_ in parts}


def of_floor(mode: str, rows: int) -> list[float]:
    """Times of a mode over the read floor, in the first rows of the goals of quantised weights."""
    return [beside(weight_cells("quantised", row)[7])[mode] / weight_goal("quantised", row)[0] for row in range(rows)]


def excess(tokens: int, weights: str) -> float:
    """How far the layer with experts is above its goal for a number of tokens, as a share of the goal."""
    row = [1, 4, 16, 64].index(tokens) + 4 * (weights == "fp8")
    _, goal, median = weight_goal("experts", row)
    return median / goal - 1


def step_goals() -> list[list[str]]:
    """The rows of the goals of decode steps, as pages show them."""
    path = REFERENCE / "goals" / shown_goals.FILE
    return [shown_goals._cells(path.parent, goal) for goal in read_json(path)["goals"]]


def megakernel_within() -> list[bool]:
    """Of each goal of a decode step whether the megakernel, in the same run, is within it."""
    return [
        beside(others)["megakernel"] <= float(wanted.split()[0].replace(",", ""))
        for _, _, wanted, _, _, _, others, _ in step_goals()
    ]


def graph_is_slower() -> bool:
    """Whether `graph` takes longer than `engine` in the runs of all goals of decode steps."""
    return all(beside(row[6])["graph"] > beside(row[6])["engine"] for row in step_goals())


def missed(name: str) -> list[int]:
    """By how many per cent each median that misses its goal misses it."""
    rows = [weight_goal(name, row) for row in range(len(read_json(REFERENCE / name / weight_goals.FILE)["goals"]))]
    return [round(100 * (median / goal - 1)) for _, goal, median in rows if median > goal]


def over_read(name: str, row: int) -> float:
    floor, _, median = weight_goal(name, row)
    return median - floor


def behind_triton(tokens: int) -> float:
    modes = {"own": "graph+route+activate+combine+pdl", "triton": "triton_experts+graph+pdl"}
    rows = read_summaries([REFERENCE / f"experts/bf16_{tokens}"])
    own, triton = (median(row["wall_ms"] for row in rows if row["mode"] == mode) for mode in modes.values())
    return own / triton - 1


def answers(place: str) -> list[tuple[Path, JsonObject]]:
    """The folder and the answer of each row of advice."""
    folder = REFERENCE / "advised" / place
    runs = [folder / each["run"] for each in read_json(folder / "advised.json")["advised"]]
    return [(run, read_json(run / advised.ANSWER)) for run in runs]


def behind_though_sure() -> list[bool]:
    """Of each answer that was sure and over 5% behind in the median: whether its interval includes 5%."""
    sure, limit = Decision.decided.value, 1 + advised.MARGIN
    judged = [
        advised.judge(advised._arms(run / advised.SWEEP), answer["advised"])
        for place in ("gpu", "cpu2")
        for run, answer in answers(place)
        if any(sure in line for line in answer["lines"])
    ]
    factors = [each.factor for each in judged if each.within == advised.NO]
    return [each is not None and each.low is not None and each.low <= limit for each in factors]


def unsure(place: str) -> tuple[object, ...]:
    """Words of answers that were not sure, each with its count; then the least and the most budget that they named."""
    lines = [line for _, answer in answers(place) for line in answer["lines"]]
    words = ("undecided", "alone ran in time")
    counts = [sum(word in line and "budget-s" in line for line in lines) for word in words]
    budgets = [int(found[1]) for line in lines if (found := re.search(r"--budget-s (\d+)", line))]
    return *(each for pair in zip(words, counts, strict=True) for each in pair), min(budgets), max(budgets)


def advice(place: str) -> list[tuple[int, str]]:
    """The requests of each row of advice, and the fastest stack."""
    return [
        (answer["requests"], advised.judge(advised._arms(run / advised.SWEEP), answer["advised"]).fastest)
        for run, answer in answers(place)
    ]


def split_factors() -> list[float]:
    """The factors of two GPUs that split a model over one, row by row."""
    path = REFERENCE / "gpus/split" / "several_gpus.json"
    cells = [several_gpus._cells(path.parent, row)["factor"] for row in read_json(path)["rows"]]
    return [float(cell.partition("x")[0]) for cell in cells]


STEP_CLAIMS: list[tuple[str, Callable[[], bool]]] = [  # about the goals of decode steps, on two pages
    (
        "The fused stack, ` `, meets one goal of five",
        lambda: [row[4] for row in step_goals()] == ["NO", "NO", "yes", "NO", "NO"],
    ),
    (
        "With Llama 3.2 1B, and with one request of Llama 3 8B, ` ` is within the goal that the stack misses",
        lambda: megakernel_within() == [True, True, True, True, False],
    ),
    (
        "With one request of Llama 3.2 1B ` ` misses its",
        lambda: [row[7].endswith("NO") for row in step_goals()] == [True, False, False, False, False],
    ),
]
