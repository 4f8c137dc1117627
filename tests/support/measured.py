"""Figures of the committed results, as the text around the tables states them.

In: files under outputs/reference. Out: numbers, or names of modes.
"""

from __future__ import annotations

import re
from statistics import median
from typing import Any

from launchopt.files import read_json
from launchopt.recording.manifest import LEFT_OUT
from launchopt.recording.results import read_summaries
from runner.bench import account, figures
from runner.report import weight_goals
from support.paths import ROOT

REFERENCE = ROOT / "outputs/reference"


def bench(folder: str, *cases: str) -> list[float]:
    rows = {row["case"]: row["median"] for row in figures.read(REFERENCE / folder)}
    return [float(rows[case]) for case in cases]


def ratio(values: list[float]) -> float:
    return values[0] / values[1]


def lone_answer() -> float:
    command = "one command there and back, 16x1x64 fp32, hot, "
    return ratio(
        bench("gpu/bench/resident", f"{command}its words alone, p50", f"{command}its outputs with the host, p50")
    )


def nothing_multiplied(dtype: str) -> float:
    stream = f"a command of 4,000 256x1x256 {dtype}"
    return ratio(bench("gpu/bench/stream", f"{stream}, nothing multiplied", f"{stream}, as they wait in the ring"))


def command_bytes(dtype: str) -> float:
    """The time of a command's bytes, which is in proportion to them."""
    case = f"a command of 4,000 256x1x256 {dtype}, its bytes at the measured copy bandwidth"
    return bench("gpu/bench/stream", case)[0]


def decode_account() -> list[dict[str, Any]]:
    return [row for row in account.read(REFERENCE / "gpu/bench/megakernel") if row["case"] == "decode fp16, 1 request"]


def share_of_waits() -> float:
    rows = decode_account()
    wait, work, between = (sum(row[f"own_{part}_us"] for row in rows) for part in ("wait", "work", "between"))
    return float(wait / (wait + work + between))


def token_ms(column: str) -> float:
    """Median time a token of the megakernel in decode with one request: TPOT, or of the whole run."""
    rows = [row for row in read_summaries([REFERENCE / "gpu/resident/decode_1"]) if row["mode"] == "megakernel"]
    return median(row[column] / (row["tokens"] if column == "wall_ms" else 1) for row in rows)


def orders_noticed() -> tuple[int, int]:
    """The barriers, fences and waits that were removed, and how many of those were noticed."""
    lines = (REFERENCE / "gpu/resident/kernel_orders.txt").read_text().partition("\n\n")[2].splitlines()
    removed = sum(bool(line) and not line.startswith(" ") for line in lines)
    return removed, removed - sum("not noticed" in line for line in lines)


def lowest_clock() -> int:
    manifests = [read_json(path) for path in (REFERENCE / "gpu/ahead").glob("*/*/manifest.json")]
    return min(clock for each in manifests for clock in each[LEFT_OUT]["sm_clock_mhz"])


def weight_goal(name: str, row: int) -> tuple[float, float, float]:
    """Read floor, goal and median of a row of the goals of quantised weights or experts, in us; the goal may be NaN."""
    path = REFERENCE / name / weight_goals.FILE
    cells = weight_goals._cells(path.parent, read_json(path)["goals"][row])[2:5]
    floor, goal, median = (float(re.sub(r"[^\d.]", "", cell.partition(" ")[0]) or "nan") for cell in cells)
    return floor, goal, median


def over_read(name: str, row: int) -> float:
    floor, _, median = weight_goal(name, row)
    return median - floor


def behind_triton() -> float:
    modes = {"own": "graph+route+activate+combine+pdl", "triton": "triton_experts+graph+pdl"}
    rows = read_summaries([REFERENCE / "experts/bf16_64"])
    own, triton = (median(row["wall_ms"] for row in rows if row["mode"] == mode) for mode in modes.values())
    return own / triton - 1


def throttled_share(folder: str) -> float:
    rows = read_summaries([REFERENCE / folder])
    return sum(bool(row["throttled"]) for row in rows) / len(rows)


def fastest_modes(folder: str) -> list[str]:
    """The mode with the smallest median wall time in each run below a folder."""
    walls: dict[str, dict[str, list[float]]] = {}
    for row in read_summaries([REFERENCE / folder]):
        walls.setdefault(row["run_id"], {}).setdefault(row["mode"], []).append(row["wall_ms"])
    return [min(modes, key=lambda mode: median(modes[mode])) for modes in walls.values()]
