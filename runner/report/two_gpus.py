"""What two GPUs gain over one, as a table of a page.

In: two_gpus.json, `{"rows": [{"work", "one", "two", "of", "goal"}, ...]}`. `one` lists folders of runs on one GPU, and
`two` on two, relative to that file. `of` is a rate in summary.parquet, such as tokens_per_s, or JOBS: then the folders
are sweeps, and their time from start to end counts. Out: Markdown.

Runs on one GPU before those on two and behind them show whether the machine changed meanwhile.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from launchopt.analysis.stream_rows import grouped
from launchopt.analysis.tables.columns import NOTHING, number
from launchopt.analysis.tables.markdown import escaped, plain
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json
from launchopt.recording import results
from launchopt.recording.results import Row
from launchopt.statistics.interval import Interval
from launchopt.statistics.processes import separate

FILE, SWEEP, JOBS = "two_gpus.json", "sweep.json", "jobs/s"
UNITS = {"tokens_per_s": "tokens/s", "commands_per_s": "commands/s", JOBS: JOBS}
LEGEND = (
    "One GPU, two GPUs: the median over processes of their median repeats. Factor: in [] its 95% interval, from the "
    "spread between processes; without one the range in (). Met: yes if the whole interval is at least the goal, NO if "
    "the factor is below it. Imbalance: most commands of one GPU over the mean, less 1. Producer: the commands per s "
    "that it can route."
)
_HEADINGS = {"work": "---", "one GPU": "---:", "two GPUs": "---:", "factor": "---:", "goal": "---:", "met": "---"}
_HEADINGS |= {"imbalance": "---:", "producer": "---:"}


def markdown(path: Path) -> str:
    """Return the legend and the table; DataError for a file or a run that has none, and for a wrong output."""
    try:
        lines = [_cells(path.parent, each) for each in read_json(path)["rows"]]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of runs on two GPUs ({type(error).__name__}: {error})") from None
    return f"{LEGEND}\n\n{plain(_HEADINGS, lines)}\n"


def _cells(folder: Path, row: JsonObject) -> list[str]:
    of, goal = str(row["of"]), float(row["goal"])
    rates: dict[str, list[list[float]]] = {}
    on_two: Sequence[Row] = ()
    for side in ("one", "two"):
        places = [folder / each for each in row[side]]
        if of == JOBS:
            rates[side] = [[_jobs_per_s(place)] for place in places]
        else:
            on_two = [each for place in places for each in _verified(place)]
            rates[side] = [[each[of] for each in rows] for rows in grouped(on_two, ("run_id", "process"))]
    found = separate(rates["two"], rates["one"]).interval
    shown = [f"{number(statistics.median(map(statistics.median, rates[side])))} {UNITS[of]}" for side in ("one", "two")]
    met = "NO" if found.value < goal else "yes" if (found.low or found.value) >= goal else "in the median"
    return [escaped(str(row["work"])), *shown, _shown(found), f"{goal:g}x", met, *_of_gpus(on_two)]


def _verified(place: Path) -> Sequence[Row]:
    found = results.read_summaries([place])
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


def _of_gpus(rows: Sequence[Mapping[str, float | None]]) -> list[str]:
    """Return the imbalance, and the rate of the producer."""
    known = {
        name: [value for row in rows if (value := row[name]) is not None]
        for name in ("gpu_imbalance", "producer_commands_per_s")
    }
    imbalance, rate = known.values()
    return [
        f"{statistics.median(imbalance):.1%}" if imbalance else NOTHING,
        f"{number(statistics.median(rate))} commands/s" if rate else NOTHING,
    ]
