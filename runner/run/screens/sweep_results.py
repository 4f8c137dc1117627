"""A sweep on the screen: a line for each job as it ends, and one table of all jobs at the end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console

from launchopt.errors import LaunchoptError
from launchopt.recording import results
from launchopt.recording.results import Row
from runner.run.sweep import NOT_RUN, SAME, Sweep
from runner.screen.fitted import FittedTable, Heading

NOTHING = "-"


def job_line(rows: Sequence[Row]) -> str:
    """Return the result of a job in a line: its fastest mode, with medians over repeats."""
    modes = _by_mode(rows)
    fastest = min(modes, key=lambda mode: statistics.median(row["wall_ms"] for row in modes[mode]))
    cells = _cells(modes[fastest])
    first = f"{fastest}, fastest of {len(modes)} modes" if len(modes) > 1 else fastest
    return f"{first}: {cells[0]} ms, {cells[1]} {_unit(rows)}, p99 {cells[2]} us"


def print_jobs(sweep: Sweep, out: Console) -> None:
    """Print a table with a row for each job and mode that have results; nothing if there is none."""
    lines, unit = [], ""
    for job in sweep.jobs:
        if job.status in (SAME, NOT_RUN) or not (sweep.folder / job.folder / "summary.parquet").exists():
            continue
        try:
            rows = results.read_summaries([sweep.folder / job.folder / "summary.parquet"])
        except LaunchoptError:  # `launchopt report` names the unreadable file
            continue
        settings = " ".join(each for each in sweep.own(job).split() if not each.startswith("mode="))
        for mode, own in _by_mode(rows).items():
            lines.append([str(job.job), settings or NOTHING, mode, *_cells(own), _verified(own)])
            unit = _unit(own)
    if not lines:
        return
    headings = [
        *(Heading("job"), Heading("settings", is_text=True), Heading("mode", is_text=True)),
        *(Heading("wall ms"), Heading(unit, drops=2), Heading("p99 us"), Heading("verified", is_text=True, drops=1)),
    ]
    out.print(FittedTable(headings, lines, caption=_caption(sweep)))


def _caption(sweep: Sweep) -> str:
    same = [f"{job.job} (as {job.same_as})" for job in sweep.jobs if job.status == SAME]
    text = "Medians over repeats; p99 of the latency of a command."
    return f"{text} Not run again, since the mode ignores batching: job {', '.join(same)}." if same else text


def _by_mode(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["mode"]), []).append(row)
    return found


def _unit(rows: Sequence[Row]) -> str:
    return "commands/s" if rows[0]["tokens_per_s"] is None else "tokens/s"


def _cells(rows: Sequence[Row]) -> list[str]:
    """Return wall time, rate and p99 of one mode."""
    rate = "commands_per_s" if rows[0]["tokens_per_s"] is None else "tokens_per_s"
    forms = {"wall_ms": ",.2f", rate: ",.0f", "latency_p99_us": ",.1f"}
    return [_median(rows, name, form) for name, form in forms.items()]


def _median(rows: Sequence[Row], name: str, form: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return format(statistics.median(values), form) if values else NOTHING


def _verified(rows: Sequence[Row]) -> str:
    return "yes" if all(row["verified"] and row["status"] == "ok" for row in rows) else "NO"
