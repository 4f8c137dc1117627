"""A sweep on the screen: a line for each job as it ends, and one table of all jobs at the end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console

from launchopt.analysis.comparison.answer import against
from launchopt.analysis.tables.columns import OVERLOADED, overload
from launchopt.errors import LaunchoptError, one_line
from launchopt.messages import shortened
from launchopt.recording import results
from launchopt.recording.results import Row
from launchopt.statistics.interval import Verdict
from runner.plan.base import REPEATS
from runner.run.executing import shown_path
from runner.run.screens.run_results import is_saturated
from runner.run.sweep import NOT_RUN, SAME, Sweep
from runner.screen.fitted import FittedTable, Heading
from runner.screen.pager import console

NOTHING = "-"
QUEUE_FULL = "No p99 where a closed loop kept the queue full: latency is queue depth there."


def job_line(rows: Sequence[Row]) -> str:
    """Return the result of a job in a line: medians over repeats, and whether arrivals overloaded it.

    Of several modes the line has the fastest if its verdicts tell it apart from all others, else the wall time of each.
    """
    modes = _by_mode(rows)
    mode = next(iter(modes)) if len(modes) == 1 else _fastest(rows, list(modes))
    late = ", OVERLOADED" if any(row["overloaded"] for row in rows) else ""
    if mode is None:
        walls = (f"{name} {_cells(own)[0]} ms" for name, own in modes.items())
        return f"{', '.join(walls)}{late}"
    cells = _cells(modes[mode])
    first = f"{mode}, fastest of {len(modes)} modes" if len(modes) > 1 else mode
    p99 = "" if cells[2] == NOTHING else f", p99 {cells[2]} us"
    return f"{first}: {cells[0]} ms, {cells[1]} {_unit(rows)}{p99}{late}"


def _fastest(rows: Sequence[Row], modes: Sequence[str]) -> str | None:
    """Return the mode that is faster than each other one, by the verdicts of its repeats; None if there is none."""
    for mode in modes:
        found = [against(rows, other, mode) for other in modes if other != mode]
        if all(one is not None and one.verdict is Verdict.FASTER for one in found):
            return mode
    return None


def end_sweep(sweep: Sweep) -> None:
    """Save how the sweep ended, and print its results, also if a full disk makes that fail."""
    try:
        sweep.end()
    finally:
        print_sweep(sweep)


def print_sweep(sweep: Sweep) -> None:
    """Print a table of all jobs with results, then how the jobs ended."""
    print()
    if sweep.status != "interrupted":
        print_jobs(sweep, console())
    for line in sweep.lines(shown_path(sweep.folder)):
        print(shortened(one_line(line)))


def print_jobs(sweep: Sweep, out: Console) -> None:
    """Print a table with a row for each job and mode that have results; nothing if there is none."""
    lines, unit, all_rows = [], "", []
    for job in sweep.jobs:
        if job.status in (SAME, NOT_RUN) or not (sweep.folder / job.folder / "summary.parquet").exists():
            continue
        try:
            rows = results.read_summaries([sweep.folder / job.folder / "summary.parquet"])
        except LaunchoptError:  # `launchopt report` names the unreadable file
            continue
        all_rows += rows
        settings = " ".join(each for each in sweep.own(job).split() if not each.startswith("mode="))
        for mode, own in _by_mode(rows).items():
            lines.append([str(job.job), settings or NOTHING, mode, *_cells(own), _overload(own), _verified(own)])
            unit = _unit(own)
    if not lines:
        return
    headings = [
        *(Heading("job"), Heading("settings", is_text=True), Heading("mode", is_text=True)),
        *(Heading("wall ms"), Heading(unit, drops=2), Heading("p99 us")),
        *(Heading(OVERLOADED, is_text=True), Heading("verified", is_text=True, drops=1)),
    ]
    empty = {at for at in (-2, -3) if all(line[at] == NOTHING for line in lines)}  # overloaded, p99 us
    kept = [at for at in range(len(headings)) if at - len(headings) not in empty]
    lines = [[line[at] for at in kept] for line in lines]
    caption = " ".join([_caption(sweep), *_limits(all_rows)])
    out.print(FittedTable([headings[at] for at in kept], lines, caption=caption))


def _limits(rows: Sequence[Row]) -> list[str]:
    """Return sentences on what the table does not show."""
    found = [QUEUE_FULL] if any(is_saturated([row]) for row in rows) else []
    if len({(row["run_id"], row["mode"]) for row in rows}) == len(rows):
        found.append(f"1 repeat a job: no verdict; repeats={REPEATS} gives one.")
    return found


def _caption(sweep: Sweep) -> str:
    same = [f"{job.job} (as {job.same_as})" for job in sweep.jobs if job.status == SAME]
    text = "Medians over repeats. p99: of the latency of a command."
    return f"{text} Not run again, since the mode ignores batching: job {', '.join(same)}." if same else text


def _by_mode(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["mode"]), []).append(row)
    return found


def _unit(rows: Sequence[Row]) -> str:
    return "commands/s" if rows[0]["tokens_per_s"] is None else "tokens/s"


def _cells(rows: Sequence[Row]) -> list[str]:
    """Return wall time, rate and p99 of one mode. A full queue has no p99: it would measure the queue's depth."""
    rate = "commands_per_s" if rows[0]["tokens_per_s"] is None else "tokens_per_s"
    forms = {"wall_ms": ",.2f", rate: ",.0f", "latency_p99_us": ",.1f"}
    cells = [_median(rows, name, form) for name, form in forms.items()]
    return [*cells[:2], NOTHING] if is_saturated(rows) else cells


def _median(rows: Sequence[Row], name: str, form: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return format(statistics.median(values), form) if values else NOTHING


def _overload(rows: Sequence[Row]) -> str:
    return NOTHING if rows[0]["overloaded"] is None else overload(rows)


def _verified(rows: Sequence[Row]) -> str:
    return "yes" if all(row["verified"] and row["status"] == "ok" for row in rows) else "NO"
