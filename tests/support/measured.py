"""Figures of the committed results, as the text around the tables states them.

In: files under outputs/reference. Out: numbers, or names of modes.
"""

from __future__ import annotations

import re
from statistics import mean, median, stdev
from typing import Any

from launchopt.analysis.submits import submit_ms
from launchopt.analysis.tables.columns import number
from launchopt.files import read_json
from launchopt.recording.manifest import LEFT_OUT
from launchopt.recording.results import Row, read_summaries
from runner.bench import account, figures
from support.paths import ROOT

REFERENCE = ROOT / "outputs/reference"
PROFILERS = "gpu/profilers"
GEMVS = ("gpu/strategies/gemv_micro", "goals/independent", "gpu/gpu_kernel_batcher/gemv_micro_fp32")


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


def all_reduce_is_fastest() -> bool:
    """Whether our all-reduce is the fastest of each size, captured and eager."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in figures.read(REFERENCE / "gpu/bench/collectives"):
        size, by, how = row["case"].split(", ")
        found.setdefault((size, how), {})[by] = row["median"]
    return all(min(times, key=times.__getitem__) == "one-shot" for times in found.values())


def cases(folder: str, part: str) -> list[float]:
    """The medians of the cases of a benchmark whose name has `part`."""
    return [float(row["median"]) for row in figures.read(REFERENCE / folder) if part in row["case"]]


def goals_met(folder: str) -> dict[str, bool]:
    """Whether each case of a benchmark that has a goal meets it."""
    rows = figures.read(REFERENCE / folder)
    return {row["case"]: row["goal_met"] for row in rows if row["goal"] is not None}


def missed_goals(folder: str, part: str) -> int:
    """How many goals of a benchmark are missed by cases with `part` in their name."""
    return sum(part in case and not is_met for case, is_met in goals_met(folder).items())


def more_work() -> float:
    """Share of gate_up and down in what 16 requests add to the work of one, in a step of Llama by the megakernel."""
    rows = account.read(REFERENCE / "gpu/bench/megakernel")
    one, many = (
        {row["op"]: row["work_sum_us"] for row in rows if row["case"] == f"Llama 3.2 1B bf16, {requests}"}
        for requests in ("1 request", "16 requests")
    )
    added = {op: many[op] - one[op] for op in one}
    return sum(added[op] for op in added if "16384x2048" in op or "2048x8192" in op) / sum(added.values())


def throttled_share(folder: str) -> float:
    rows = read_summaries([REFERENCE / folder])
    return sum(bool(row["throttled"]) for row in rows) / len(rows)


def fastest_modes(folder: str) -> list[str]:
    """The mode with the smallest median wall time in each run below a folder."""
    walls: dict[str, dict[str, list[float]]] = {}
    for row in read_summaries([REFERENCE / folder]):
        walls.setdefault(row["run_id"], {}).setdefault(row["mode"], []).append(row["wall_ms"])
    return [min(modes, key=lambda mode: median(modes[mode])) for modes in walls.values()]


def repeats_of(folder: str, **known: object) -> list[Row]:
    """All repeats below a folder whose columns have the values of `known`."""
    rows = read_summaries([REFERENCE / folder])
    return [row for row in rows if all(row[column] == value for column, value in known.items())]


def values_of(folder: str, *columns: str) -> set[tuple[object, ...]]:
    """The values that columns have together, of all repeats below a folder."""
    return {tuple(row[column] for column in columns) for row in repeats_of(folder)}


def middle(folder: str, column: str, mode: str) -> float:
    """Median of a column over the repeats of a mode below a folder."""
    return median(row[column] for row in repeats_of(folder, mode=mode))


def command_us(folder: str, mode: str) -> float:
    """The wall time of a mode by its commands, in us, of repeats that were not traced."""
    return median(row["wall_ms"] / row["commands"] * 1e3 for row in repeats_of(folder, mode=mode, traced=False))


def gain(folder: str, column: str, mode: str) -> float:
    """Median of a column in `baseline` over that in a mode."""
    return middle(folder, column, "baseline") / middle(folder, column, mode)


def arms(folder: str) -> dict[tuple[str, str], list[Row]]:
    """The repeats below a folder that were not traced, by run and mode."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in repeats_of(folder, traced=False):
        found.setdefault((row["run_id"], row["mode"]), []).append(row)
    return found


def _launch_share(rows: list[Row]) -> float:
    """Share of the wall time in launch calls."""
    return median((submit_ms(row) or 0.0) / row["wall_ms"] for row in rows)


def least_launch_share(folder: str, mode: str) -> float:
    """The smallest share of the wall time in launch calls that a mode has in the runs below a folder."""
    return min(_launch_share(rows) for (_, each), rows in arms(folder).items() if each == mode)


def share_within(folder: str, low: float, high: float, *, are_launches: bool) -> float:
    """Share of the modes whose standard deviation of wall times over their mean lies from `low` to `high`.

    are_launches: of modes that spend over half of the wall time in launch calls; else of the others.
    """
    walls = [
        [row["wall_ms"] for row in rows]
        for rows in arms(folder).values()
        if (_launch_share(rows) > 0.5) == are_launches
    ]
    return mean(low <= stdev(each) / mean(each) <= high for each in walls)


def slowdowns(column: str) -> list[float]:
    """The smallest and the largest factor of a column under a profiler over the same without one."""
    profiled = {"plain": ("baseline", "batched", "graph"), "events": ("torch_eager", "torch_graph")}
    tools = {"plain": ("cupti", "nsys"), "events": ("torch",)}
    factors = [
        middle(f"{PROFILERS}/{mode}/{tool}_{mode}", column, mode)
        / middle(f"{PROFILERS}/{mode}/{plain}_{mode}", column, mode)
        for plain, modes in profiled.items()
        for mode in modes
        for tool in tools[plain]
    ]
    return [round(min(factors), 1), round(max(factors), 1)]


def shared_cores() -> set[tuple[int, float]]:
    """How many parts ran at a time, and their share of the host's cores, of all results beside another part."""
    found = set()
    for path in REFERENCE.rglob("manifest.json"):
        before = read_json(path).get("part", {}).get("before", {})
        if before.get("at_once", 1) > 1:
            all_cores = int(re.findall(r"(\d+) cores", before["processor"])[0])
            found.add((before["at_once"], len(before["cores"]) / all_cores))
    return found


def job_walls_ms() -> list[str]:
    """Median wall times of a job beside another and alone: of baseline, then of batched, as tables print them."""
    places = [f"gpus/jobs_joblib/{place}" for place in ("two", "one_before")]
    return [number(middle(place, "wall_ms", mode)) for mode in ("baseline", "batched") for place in places]


def stream_ns() -> list[float]:
    """Each repeat of the stream of 256x256, in ns a command."""
    return [row["wall_ms"] / row["commands"] * 1e6 for row in repeats_of("gpu/resident/gemv_256", mode="persistent")]


def met_shares(scheduler: str) -> dict[str, float]:
    """Share of the requests of the Azure replay that met the objective, by mode."""
    rows = repeats_of("gpu/azure_llama_3_8b", scheduler=scheduler)
    return {
        mode: median(
            row["goodput_per_s"] * row["wall_ms"] / 1e3 / row["requests"] for row in rows if row["mode"] == mode
        )
        for mode in ("engine", "batched", "baseline")
    }


def ranked_shares() -> list[float]:
    """The shares of `met_shares` with both schedulers, in rising order."""
    return sorted(share for scheduler in ("none", "continuous") for share in met_shares(scheduler).values())


def overloaded_points(folder: str) -> tuple[int, int]:
    """How many points of a sweep are overloaded, and of how many."""
    points = [any(row["overloaded"] for row in rows) for rows in arms(folder).values()]
    return sum(points), len(points)


def share_of_prompts(folder: str) -> float:
    """Share of the time of `baseline` that the GEMMs of prompts take at least, at the measured peak of fp32."""
    shapes = read_json(REFERENCE / folder / "manifest.json")["stream"]["shapes"]
    sizes = [([int(each) for each in shape.split("x")], count) for shape, count in shapes.items()]
    flops = sum(2 * m * n * k * count for (m, n, k), count in sizes if n > 1)
    peak_tflops = read_json(REFERENCE / "gpu/calibration/calibration.json")["floors"]["peak_tflops_fp32"]["value"]
    return float(flops / (peak_tflops * 1e9) / middle(folder, "wall_ms", "baseline"))
