"""What two GPUs gain over one, as a table of a page.

In: two_gpus.json, `{"rows": [{"work", "one", "two", "of", "goal"}, ...]}`. `one` lists folders of runs on one GPU, and
`two` on two, relative to that file. `of` is a rate in summary.parquet, such as tokens_per_s, or JOBS: then the folders
are sweeps, and their time from start to end counts. With `modes` only the rows of these stacks count, the first on one
GPU, the second on two. `goal` may be absent. Out: Markdown.

Runs on one GPU before those on two and behind them show whether the machine changed meanwhile.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from launchopt.analysis.stream_rows import grouped
from launchopt.analysis.tables.columns import NOTHING
from launchopt.analysis.tables.markdown import escaped, plain
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json
from launchopt.recording import results
from launchopt.recording.results import Row
from launchopt.statistics.interval import Interval
from launchopt.statistics.processes import separate
from runner.bench.figures import quantity

FILE, SWEEP, JOBS = "two_gpus.json", "sweep.json", "jobs/s"
UNITS = {"tokens_per_s": "tokens/s", "commands_per_s": "commands/s", JOBS: JOBS}
LEGEND = (
    "One GPU, two GPUs: the median over processes of their median repeats. Factor: in [] its 95% interval, from the "
    "spread between processes; without one the range in (). Met: yes if the whole interval is at least the goal, NO if "
    "the factor is below it."
)
LEGENDS = {
    "imbalance": "Imbalance: most commands of one GPU over the mean, less 1.",
    "producer": "Producer: the commands per s that it can route.",
    "all-reduce": "All-reduce: the mean time of one, and the part in which it waits for the other GPU.",
}
_HEADINGS = {"work": "---", "one GPU": "---:", "two GPUs": "---:", "factor": "---:", "goal": "---:", "met": "---"}


def markdown(path: Path) -> str:
    """Return the legend and the table; DataError for a file or a run that has none, and for a wrong output."""
    try:
        found = [_cells(path.parent, each) for each in read_json(path)["rows"]]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of runs on two GPUs ({type(error).__name__}: {error})") from None
    more = [name for name in LEGENDS if any(name in cells for cells in found)]
    lines = [[cells.get(name, NOTHING) for name in (*_HEADINGS, *more)] for cells in found]
    legend = " ".join([LEGEND, *(LEGENDS[name] for name in more)])
    return f"{legend}\n\n{plain(_HEADINGS | dict.fromkeys(more, '---:'), lines)}\n"


def _cells(folder: Path, row: JsonObject) -> dict[str, str]:
    of = str(row["of"])
    rates: dict[str, list[list[float]]] = {}
    on_two: Sequence[Row] = ()
    for side, mode in zip(("one", "two"), row.get("modes", (None, None)), strict=True):
        places = [folder / each for each in row[side]]
        if of == JOBS:
            rates[side] = [[_jobs_per_s(place)] for place in places]
        else:
            on_two = [each for place in places for each in _verified(place, mode)]
            rates[side] = [[each[of] for each in rows] for rows in grouped(on_two, ("run_id", "process"))]
    found = separate(rates["two"], rates["one"]).interval
    shown = [
        f"{quantity(statistics.median(map(statistics.median, rates[side])))} {UNITS[of]}" for side in ("one", "two")
    ]
    cells = dict(zip(_HEADINGS, [escaped(str(row["work"])), *shown, _shown(found)], strict=False)) | _of_gpus(on_two)
    if "goal" in row:
        goal = float(row["goal"])
        met = "NO" if found.value < goal else "yes" if (found.low or found.value) >= goal else "in the median"
        cells |= {"goal": f"{goal:g}x", "met": met}
    return cells


def _verified(place: Path, mode: str | None) -> Sequence[Row]:
    """Return the rows of a stack, or of all; DataError if one of them is wrong, or there are none."""
    found = [row for row in results.read_summaries([place]) if mode in (None, row["mode"])]
    if not found:
        raise DataError(place, None, f"no mode {mode!r}")
    for row in found:
        if row["status"] != "ok" or not row["verified"]:
            raise DataError(place, None, f"repeat {row['repeat']}: {row['status']}")
    return found


def _jobs_per_s(place: Path) -> float:
    """Return the jobs of a sweep by the time from its start to its end; DataError unless all are ok."""
    sweep = read_json(place / SWEEP)
    if sweep["status"] != "ok":
        raise DataError(place, None, f"the sweep is {sweep['status']}")
    began, ended = (datetime.fromisoformat(sweep[name]) for name in ("started_utc", "ended_utc"))
    return len(sweep["jobs"]) / (ended - began).total_seconds()


def _shown(found: Interval) -> str:
    if found.low is not None and found.high is not None:
        return f"{found.value:.3f}x [{found.low:.3f}, {found.high:.3f}]"
    low, high = found.range or (found.value, found.value)
    return f"{found.value:.3f}x" + (f" ({low:.3f} to {high:.3f})" if high > low else "")


def _of_gpus(rows: Sequence[Mapping[str, float | None]]) -> dict[str, str]:
    """Return what is known of imbalance, producer and all-reduces."""
    names = ("gpu_imbalance", "producer_commands_per_s", "all_reduce_us", "all_reduce_wait_us")
    known = {name: [value for row in rows if (value := row[name]) is not None] for name in names}
    imbalance, rate, all_reduce, wait = (statistics.median(values) if values else None for values in known.values())
    cells = {}
    if imbalance is not None:
        cells["imbalance"] = f"{imbalance:.1%}"
    if rate is not None:
        cells["producer"] = f"{quantity(rate)} commands/s"
    if all_reduce is not None and wait is not None:
        cells["all-reduce"] = f"{quantity(all_reduce)} us, {quantity(wait)} of them waiting"
    return cells
