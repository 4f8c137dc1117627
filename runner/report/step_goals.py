"""Goals for the time of a decode step beside what was measured, as a table of a page.

In: step_goals.json, `{"goals": [{"run", "mode", "goal_us", "floor_us", "gpu", "beside", "peers"}, ...]}`. `run` is a
folder, relative to that file, with several modes in turn. `goal_us` is the goal for `mode` on the GPU `gpu`, which
reads the weights once in `floor_us`. On another GPU the goal is the same multiple of its own read floor. `beside`:
other modes of the run. `peers`: folders of scripts/peer_torch.py, which ran before the run and behind it. Out:
Markdown.

A step is one token of every request. Its time is the wall time of a run by its steps. The read floor is the time in
which the GPU reads all weights once, at the larger of the read rates that the run measured before and behind its
repeats.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launchopt.analysis.stream_rows import counted, grouped
from launchopt.analysis.submits import submit_ms
from launchopt.analysis.tables.columns import number
from launchopt.analysis.tables.markdown import escaped, plain
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json
from launchopt.recording.manifest import read_manifest
from launchopt.recording.results import Row
from launchopt.statistics.interval import Interval
from launchopt.statistics.processes import median_of
from runner.report.which_strategy import modes_of

FILE, PEER_FILE = "step_goals.json", "peer_torch.json"
RIVAL, MOST_OF_PEER = "torch_compile", 1.05  # the mode to compare with a peer, and its goal
INTERVAL = (
    "The median over repeats stands first, then its 95% interval in [], which covers 94% at five repeats. Of several "
    "processes the interval is that of their medians. Fewer than five repeats, or two to four processes, have only the "
    "range of repeats, in ()."
)
MET = (
    "Met: yes if the whole interval is within the goal, `in the median` if only the median is or there is no interval, "
    "NO if the median is above it."
)
LEGEND = (
    "Times are us a step: the wall time of a run by its steps, where a step is one token of every request. "
    f"{INTERVAL} Read floor: the time in which this GPU reads the weights once. A goal is a multiple of the floor, as "
    f"stated for an H200; there it is the stated time. {MET} CPU: time inside launch calls. PyTorch alone: "
    "`scripts/peer_torch.py` before the run and behind it on the same machine. It times steps in a row, without the "
    f"wait for a first token. So the time per output token (TPOT) of {RIVAL} should be at most "
    f"{MOST_OF_PEER:g} times its best time."
)
_HEADINGS = {"work": "---", "read floor": "---:", "goal": "---:", "measured": "---:", "met": "---", "of floor": "---:"}
_HEADINGS |= {"in the same run": "---", "PyTorch alone": "---"}
Modes = Mapping[str, Sequence[Row]]


def markdown(path: Path) -> str:
    """Return the legend, the table, and which mode the goals are for; DataError for a file or a run that has none."""
    try:
        goals = read_json(path)["goals"]
        lines = [_cells(path.parent, goal) for goal in goals]
        modes = dict.fromkeys(str(goal["mode"]) for goal in goals)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise DataError(path, None, f"not a list of goals ({type(error).__name__}: {error})") from None
    named = f"Measured mode: {', '.join(f'`{mode}`' for mode in modes)}. Every output that was compared was right."
    return f"{LEGEND}\n\n{plain(_HEADINGS, lines)}\n{named}\n"


def _cells(folder: Path, goal: JsonObject) -> list[str]:
    place = folder / goal["run"]
    modes = modes_of(place)
    mode = str(goal["mode"])
    if mode not in modes:
        raise DataError(place, None, f"no mode {mode!r}")
    first = modes[mode][0]
    found, floor_us = step_us(modes[mode]), _floor_us(place, first)
    wanted = float(goal["goal_us"])
    if first["gpu"] != goal["gpu"]:
        wanted *= floor_us / float(goal["floor_us"])
    return [
        f"{first['model']}, {counted(int(first['requests']), 'request')}, {escaped(first['gpu'] or 'CPU')}",
        number(floor_us),
        f"{number(wanted)} ({wanted / floor_us:.2f}x)",
        shown(found),
        met(found, wanted),
        f"{found.value / floor_us:.2f}x",
        "<br>".join(_beside(modes, [str(each) for each in goal["beside"]])),
        _peer([folder / each for each in goal["peers"]], modes),
    ]


def step_us(rows: Sequence[Row]) -> Interval:
    """Return the wall time of a step in us: the median over repeats, with its interval."""
    return median_us(rows, lambda row: float(1e3 * row["wall_ms"] * row["requests"] / row["tokens"]))


def median_us(rows: Sequence[Row], time_us: Callable[[Row], float]) -> Interval:
    """Return the median of a time over repeats. Of several processes its interval is that of their medians."""
    return median_of([[*map(time_us, each)] for each in grouped(rows, ("run_id", "process"))])


def read_gb_per_s(folder: Path) -> float:
    """Return the larger of the read rates that a run measured before and behind its repeats.

    They are those of the manifest: the summary has none where the rate changed during the run.
    """
    manifest = read_manifest(folder)
    rates = [manifest.get(name, {}).get("read_gb_per_s") for name in ("ceilings", "ceilings_after")]
    return float(max(each for each in rates if each))


def weight_counts(row: Row) -> float:
    """Return how often `weight_bytes` and `gemms` of a run count a weight of a unit: steps, tokens, or commands.

    They count the weights of each command. A step of a layer with experts has one command for each weight. A step of
    requests has one for each request, and so a token of it. Other commands are units themselves.
    """
    return float(row["steps"] or row["tokens"] or row["commands"])


def step_weight_bytes(row: Row) -> float:
    """Return the bytes of the weights of a step, or of a command of a run without steps, each read once."""
    return float(row["weight_bytes"]) / weight_counts(row)


def _floor_us(folder: Path, row: Row) -> float:
    """Return the time in which the GPU reads the weights of a step once."""
    return step_weight_bytes(row) / read_gb_per_s(folder) / 1e3


def met(found: Interval, wanted: float) -> str:
    """Return whether a time is within a goal: yes, NO, or in the median only. Without an interval it is never yes."""
    if found.value > wanted:
        return "NO"
    return "yes" if found.high is not None and found.high <= wanted else "in the median"


def shown(found: Interval) -> str:
    """Return a time with its interval, or its range if it has none."""
    bounds = (found.low, found.high)
    if None not in bounds:
        return f"{number(found.value)} [{number(bounds[0])}, {number(bounds[1])}]"
    return f"{number(found.value)} ({' to '.join(map(number, found.range or (found.value,)))})"


def _beside(modes: Modes, names: Sequence[str]) -> list[str]:
    """Return the time of each mode that ran, and its CPU time."""
    texts = []
    for name in names:
        if name in modes:
            cpu_us = statistics.median(map(_cpu_us, modes[name]))
            texts.append(f"{name} {number(step_us(modes[name]).value)} (CPU {number(cpu_us)})")
        else:
            texts.append(f"{name} did not run")
    return texts


def _cpu_us(row: Row) -> float:
    """Return the time inside launch calls of a step."""
    steps = row["tokens"] / row["requests"]
    return float(1e3 * (submit_ms(row) or 0.0) / steps)


def _peer(folders: Sequence[Path], modes: Modes) -> str:
    """Return the best time of each run of the PyTorch script, and how much of it the mode of PyTorch takes."""
    if not folders:
        return "-"
    best = [_best_us(folder / PEER_FILE) for folder in folders]
    times = " / ".join("failed" if each is None else number(each) for each in best)
    known = [each for each in best if each is not None]
    if not known or RIVAL not in modes:
        return times
    tpot_us = 1e3 * statistics.median(row["tpot_p50_ms"] for row in modes[RIVAL])
    share, of_wall = tpot_us / min(known), step_us(modes[RIVAL]).value / min(known)
    verdict = "yes" if share <= MOST_OF_PEER else "NO"
    return f"{times}<br>{RIVAL}: TPOT {share:.3f}x, wall time {of_wall:.3f}x: {verdict}"


def _best_us(path: Path) -> float | None:
    """Return the smallest time of a step of all ways that PyTorch ran; None if all failed."""
    return min((float(each["us"]) for each in read_json(path)["results"] if "us" in each), default=None)
