"""Goals beside measured figures, as a table of a page.

In: goals.json, `{"goals": [{"what", "unit", "most" or "least", ...}]}`. Each goal names its figure, relative to that
file. `"bench": FOLDER, "case"`: a median of a benchmark. `"run": FOLDER, "mode", "figure"`: the median of a run's
repeats (FIGURES); with `"over": FOLDER` its ratio to another run. `beside`: modes of the same run, whose figures are
shown beside it. Out: Markdown. A figure of a run with a wrong output meets no goal. A token has two times, and both
must meet the goal: TPOT, which leaves out the first token, and the wall time of the run by its steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launchopt.analysis.stream_rows import digits
from launchopt.analysis.tables.bandwidth import needed_gb_per_s, unsteady
from launchopt.analysis.tables.markdown import plain
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json
from launchopt.recording import results
from launchopt.recording.results import Row
from runner.bench import figures

FILE = "goals.json"
Figure = Callable[[Row], float]
FIGURES: Mapping[str, Mapping[str, Figure]] = {  # the ways to measure a figure; the page names them where there are two
    "command_ns": {"wall": lambda row: float(row["wall_ms"] * 1e6 / row["commands"])},
    "copy_percent": {"wall": lambda row: _copy_percent(row)},
    "token_us": {
        "TPOT": lambda row: float(1e3 * row["tpot_p50_ms"]),
        "wall": lambda row: float(1e3 * row["wall_ms"] * row["requests"] / row["tokens"]),
    },
}
_HEADINGS = {"goal": "---", "wanted": "---:", "measured": "---:", "repeats": "---:", "unit": "---", "beside": "---"}
_HEADINGS |= {"met": "---", "verified": "---", "from": "---"}
VERIFIED = {True: "yes", False: "NO", None: "by the benchmark"}


@dataclass(frozen=True, slots=True)
class Measured:
    """The median, the smallest and the largest sample of one run, and whether all outputs were right.

    verified: None for a benchmark, which writes no figure if it finds a wrong output.
    """

    median: float
    low: float | None
    high: float | None
    verified: bool | None

    @property
    def is_right(self) -> bool:
        """Whether no output is known to be wrong."""
        return self.verified is not False


def _copy_percent(row: Row) -> float:
    """Return the rate of the bytes that had to move, in % of the copy bandwidth; ValueError where that changed."""
    if why := unsteady([row]):
        raise ValueError(f"copy_percent of {row['run_id']}: {why}; measure it again")
    return float(100 * (needed_gb_per_s(row) or 0.0) / row["copy_gb_per_s"])


def markdown(path: Path) -> str:
    """Return the table of a file of goals; DataError for another file, or a goal without its figure."""
    try:
        lines = [_cells(path, goal) for goal in read_json(path)["goals"]]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of goals ({type(error).__name__}: {error})") from None
    return plain(_HEADINGS, lines)


def _cells(path: Path, goal: JsonObject) -> list[str]:
    if ("most" in goal) == ("least" in goal):
        raise ValueError(f"{goal['what']}: most, or least")
    ways, places = _measured(path, goal)
    found = next(iter(ways.values()))
    is_most = "most" in goal
    wanted = float(goal["most"] if is_most else goal["least"])
    met = all(each.is_right and (each.median <= wanted if is_most else each.median >= wanted) for each in ways.values())
    measured = [f"{digits(each.median, 4)}{f' {way}' if len(ways) > 1 else ''}" for way, each in ways.items()]
    repeats = "-" if found.low is None or found.high is None else f"{digits(found.low, 4)} to {digits(found.high, 4)}"
    return [
        str(goal["what"]),
        f"{'<=' if is_most else '>='} {digits(wanted)}",
        ", ".join(measured),
        repeats,
        str(goal["unit"]),
        ", ".join(_beside(path, goal)),
        "yes" if met else "NO",
        VERIFIED[found.verified],
        ", ".join(places),
    ]


def _measured(path: Path, goal: JsonObject) -> tuple[dict[str, Measured], list[str]]:
    """Return the figure by each way to measure it, and the folders that it comes from."""
    if "bench" in goal:
        return {"": _of_bench(path.parent / goal["bench"], str(goal["case"]))}, [_name(path, goal["bench"])]
    folders = [str(goal[key]) for key in ("run", "over") if key in goal]
    ways = {}
    for way, figure in FIGURES[goal["figure"]].items():
        one, *others = (_of_run(path.parent / folder, str(goal["mode"]), figure) for folder in folders)
        ways[way] = _ratio(one, others[0]) if others else one
    return ways, [_name(path, folder) for folder in folders]


def _ratio(one: Measured, other: Measured) -> Measured:
    return Measured(one.median / other.median, None, None, one.is_right and other.is_right)


def _name(path: Path, folder: str) -> str:
    """Return a folder relative to the parent of the goals' folder."""
    return folder[3:] if folder.startswith("../") else f"{path.parent.name}/{folder}"


def _of_bench(folder: Path, case: str) -> Measured:
    found = next((row for row in figures.read(folder) if row["case"] == case), None)
    if found is None:
        raise DataError(folder, None, f"no case {case!r}")
    return Measured(found["median"], min(found["samples"]), max(found["samples"]), verified=None)


def _of_run(folder: Path, mode: str, figure: Figure) -> Measured:
    rows = [row for row in results.read_summaries([folder]) if row["mode"] == mode]
    if not rows:
        raise DataError(folder, None, f"no mode {mode!r}")
    samples = [figure(row) for row in rows]
    verified = all(row["status"] == "ok" and row["verified"] is True for row in rows)
    return Measured(statistics.median(samples), min(samples), max(samples), verified)


def _beside(path: Path, goal: JsonObject) -> Iterator[str]:
    for mode in goal.get("beside", []):
        ways = FIGURES[goal["figure"]]
        found = {way: _of_run(path.parent / goal["run"], mode, figure) for way, figure in ways.items()}
        medians = [f"{digits(each.median, 4)}{f' {way}' if len(ways) > 1 else ''}" for way, each in found.items()]
        yield f"{mode} {' / '.join(medians)}{'' if all(each.is_right for each in found.values()) else ' FAILED'}"
