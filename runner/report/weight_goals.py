"""Goals for the time of a GEMV, of a step or of a layer with experts over the time to read its weights, as a table.

In: weight_goals.json, `{"goals": [{"run", "mode", "goal_us" or "of_floor"}, ...]}`. `run` is a folder, relative to that
file, with several modes in turn. `goal_us` is stated for a GPU that reads STATED_GB_PER_S; on another one the goal is
the same multiple of its own read floor, as `of_floor` is on all. Without either there is no goal. Out: Markdown.

A unit is a command, a step of a model, or a step of a layer with experts. The read floor is the time in which the GPU
reads the weights of a unit once: codes and scales, and of experts only those that have tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launchopt.analysis.stream_rows import counted
from launchopt.analysis.tables.columns import number
from launchopt.analysis.tables.markdown import escaped, plain
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json
from launchopt.recording.results import Row
from runner.report.step_goals import INTERVAL, MET, median_us, met, read_gb_per_s, shown, step_weight_bytes
from runner.report.which_strategy import modes_of

FILE = "weight_goals.json"
STATED_GB_PER_S = 4400.0  # an H200
LEGEND = (
    f"Times are us. {INTERVAL} Read floor: the time in which this GPU reads "
    f"the weights once. A goal is a multiple of the floor. {MET} Every output that was compared was right."
)
_HEADINGS = {"work": "---", "mode": "---", "read floor": "---:", "goal": "---:", "measured": "---:", "met": "---"}
_HEADINGS |= {"of floor": "---:", "in the same run": "---"}


def markdown(path: Path) -> str:
    """Return the legend and the table; DataError for a file or a run that has none."""
    try:
        lines = [_cells(path.parent, goal) for goal in read_json(path)["goals"]]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of goals ({type(error).__name__}: {error})") from None
    return f"{LEGEND}\n\n{plain(_HEADINGS, lines)}"


def _cells(folder: Path, goal: JsonObject) -> list[str]:
    place, mode = folder / goal["run"], str(goal["mode"])
    modes = modes_of(place)
    if mode not in modes:
        raise DataError(place, None, f"no mode {mode!r}")
    rate = read_gb_per_s(place)
    floor_us = step_weight_bytes(modes[mode][0]) / rate / 1e3
    found = median_us(modes[mode], unit_us)
    wanted = goal["goal_us"] * STATED_GB_PER_S / rate if "goal_us" in goal else goal.get("of_floor", 0.0) * floor_us
    beside = [f"{name} {number(median_us(rows, unit_us).value)}" for name, rows in modes.items()]
    return [
        work_of(modes[mode]),
        f"`{mode}`",
        number(floor_us),
        f"{number(wanted)} ({wanted / floor_us:.2f}x)" if wanted else "-",
        shown(found),
        met(found, wanted) if wanted else "-",
        f"{found.value / floor_us:.2f}x",
        "<br>".join(each for each in beside if not each.startswith(f"{mode} ")),
    ]


def units(row: Row) -> float:
    """Return the units of a run."""
    if row["steps"]:
        return float(row["steps"])
    return float(row["tokens"] / row["requests"]) if row["tokens"] else float(row["commands"])


def unit_us(row: Row) -> float:
    """Return the wall time of a unit of a run."""
    return 1e3 * float(row["wall_ms"]) / units(row)


def work_of(rows: Sequence[Row]) -> str:
    """Return the work of a unit, how its weights are stored, and the GPU."""
    row = rows[0]
    stored = str(row["dtype"])
    if row["weights"]:
        form, _, scales = row["weights"].partition(" ")
        stored += f", {form} weights {scales}"
    if row["steps"]:
        tokens = counted(int(row["step_tokens"]), "token")
        what = f"experts of {row['model']}, {tokens}, {row['active_experts']:g} experts busy"
    elif row["tokens"]:
        what = f"{row['model']}, {counted(int(row['requests']), 'request')}"
    else:
        what = str(row["shapes"])
    return f"{escaped(what)}, {stored}, {escaped(row['gpu'] or 'CPU')}"
