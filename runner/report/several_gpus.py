"""What several GPUs gain over one, as a table of a page.

In: several_gpus.json, `{"rows": [{"work", "gpus", "one", "several", "of", "goal"}, ...]}`. `one` lists folders of runs
on one GPU, and `several` on `gpus` of them, relative to that file. `of` is a rate in summary.parquet, such as
tokens_per_s, or JOBS: then the folders are sweeps, and their time from start to end counts. With `modes` only the rows
of these stacks count, the first on one GPU, the second on several. `goal` may be absent. Out: Markdown.
Rows with the same `line` are a line of the picture: at each count of GPUs the best rate, over the best on one GPU.

Runs on one GPU before the others and behind them show whether the machine changed meanwhile.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
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

FILE, SWEEP, JOBS = "several_gpus.json", "sweep.json", "jobs/s"
UNITS = {"tokens_per_s": "tokens/s", "commands_per_s": "commands/s", JOBS: JOBS}
LEGEND = (
    "One GPU, several GPUs: the median over processes of their median repeats. Factor: in [] its 95% interval, from "
    "the spread between processes; without one the range in (). Goal: yes if the whole interval is at least the "
    "goal, `in the median` if only the factor is, NO if the factor is below it. In one run: the factor is at least the "
    "goal, but there is no interval, so chance is not ruled out."
)
LEGENDS = {
    "imbalance": "Imbalance: most commands of one GPU over the mean, less 1.",
    "p99": "p99: of the time per output token, or of the wait of a command in the queue, on several GPUs.",
    "producer": "Producer: the commands per s that it can route, and its CPU time a command, in which it also waits.",
    "all-reduce": "All-reduce: the mean time of one on the slowest GPU; the wait for other GPUs, a mean over all.",
}
_HEADINGS = {"work": "---", "one GPU": "---:", "several GPUs": "---:", "factor": "---:", "goal": "---:"}


def markdown(path: Path) -> str:
    """Return the legend and the table; DataError for a file or a run that has none, and for a wrong output."""
    with _refusing(path):
        found = [_cells(path.parent, each) for each in read_json(path)["rows"]]
    more = [name for name in LEGENDS if any(name in cells for cells in found)]
    lines = [[cells.get(name, NOTHING) for name in (*_HEADINGS, *more)] for cells in found]
    legend = " ".join([LEGEND, *(LEGENDS[name] for name in more)])
    return f"{legend}\n\n{plain(_HEADINGS | dict.fromkeys(more, '---:'), lines)}\n"


def lines(path: Path) -> list[tuple[str, dict[int, float]]]:
    """Return the name and the factors, by GPUs, of each line of the picture; DataError as `markdown`."""
    best: dict[str, dict[int, float]] = {}
    with _refusing(path):
        for row in read_json(path)["rows"]:
            if "line" in row:
                of_line = best.setdefault(str(row["line"]), {})
                for side, count in (("one", 1), ("several", int(row["gpus"]))):
                    rates, _ = _rates(path.parent, row, side)
                    of_line[count] = max(of_line.get(count, 0.0), _median(rates))
        return [
            (name, {count: rate / of[1] for count, rate in sorted(of.items()) if count > 1})
            for name, of in best.items()
        ]


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn every error of content that is no list of runs into a DataError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of runs on several GPUs ({type(error).__name__}: {error})") from None


def _rates(folder: Path, row: JsonObject, side: str) -> tuple[list[list[float]], Sequence[Row]]:
    """Return the rates of one side of a row, by process, and the rows of summary.parquet with them."""
    of, places = str(row["of"]), [folder / each for each in row[side]]
    if of == JOBS:
        return [[_jobs_per_s(place)] for place in places], ()
    mode = row.get("modes", (None, None))[side == "several"]
    found = [each for place in places for each in _verified(place, mode)]
    return [[each[of] for each in rows] for rows in grouped(found, ("run_id", "process"))], found


def _median(rates: Sequence[Sequence[float]]) -> float:
    return statistics.median(map(statistics.median, rates))


def _cells(folder: Path, row: JsonObject) -> dict[str, str]:
    of = str(row["of"])
    (on_one, _), (on_all, rows) = (_rates(folder, row, side) for side in ("one", "several"))
    found = separate(on_all, on_one).interval
    one, several = (f"{quantity(_median(rates))} {UNITS[of]}" for rates in (on_one, on_all))
    shown = [escaped(str(row["work"])), one, f"{several} on {int(row['gpus'])}", _shown(found)]
    cells = dict(zip(_HEADINGS, shown, strict=False)) | _of_gpus(rows)
    if "goal" in row:
        goal = float(row["goal"])
        cells |= {"goal": f"{goal:g}x: {_met(found, goal)}"}
    return cells


def _met(factor: Interval, goal: float) -> str:
    """Return whether a factor reaches a goal, and how surely."""
    if factor.value < goal:
        return "NO"
    if factor.low is None:
        return "in one run"
    return "yes" if factor.low >= goal else "in the median"


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
    """Return what is known of imbalance, latency, producer and all-reduces."""

    def median(name: str) -> float | None:
        known = [value for row in rows if (value := row[name]) is not None]
        return statistics.median(known) if known else None

    cells = {}
    if (imbalance := median("gpu_imbalance")) is not None:
        cells["imbalance"] = f"{imbalance:.1%}"
        if (token_ms := median("tpot_p99_ms")) is not None:
            cells["p99"] = f"{quantity(token_ms)} ms a token"
        elif (wait_us := median("queue_wait_p99_us")) is not None:
            cells["p99"] = f"{quantity(wait_us)} us"
        rate, cpu_ns = median("producer_commands_per_s"), median("producer_cpu_ns_per_command")
        known = [] if rate is None else [f"{quantity(rate)} commands/s"]
        known += [] if cpu_ns is None else [f"{quantity(cpu_ns)} ns a command"]
        cells |= {"producer": ", ".join(known)} if known else {}
    wait, all_reduce = median("all_reduce_wait_us"), median("all_reduce_us")
    if all_reduce is not None and wait is not None:
        cells["all-reduce"] = f"{quantity(all_reduce)} us, {quantity(wait)} waiting"
    return cells
