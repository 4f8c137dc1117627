"""Tables of runs, built from rows of summary.parquet, with the speed-ups that these runs prove.

In: rows as `results.read_summaries` gives them. Out: a `Table` per stream of commands, with a `Line` per mode and
configuration. Pure: reads no file, prints nothing.

A speed-up is the time of a baseline over that of the line (`metric_of` both), as `statistics.shift` estimates it.
Repeats that one run interleaved are compared one by one. Arms of separate runs are compared by their processes, and
the line says so. A line with a failed or unverified repeat claims nothing, and so does a line whose baseline has one.
Traced runs have tables of their own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launchopt.analysis.metric import WALL, metric_of
from launchopt.analysis.stream_rows import (
    CONFIGURATION,
    STREAM,
    batching,
    disorder,
    grouped,
    is_independent,
    number_types,
    sortable,
    stream_order,
    stream_subtitle,
    stream_title,
    without_copies,
)
from launchopt.analysis.tables import reference
from launchopt.analysis.tables.bandwidth import needed_share, unsteady
from launchopt.recording.manifest import Manifest
from launchopt.recording.results import Row
from launchopt.statistics.interval import Interval, Verdict, verdict
from launchopt.statistics.processes import FEWEST_PROCESSES, same_processes, separate

BASELINE = "baseline"
ENGINE = "engine"
# Modes that others are compared with, the first that ran: for independent commands, and for workloads of steps.
BASES, BASES_OF_STEPS = (BASELINE, "coalesced"), (ENGINE, BASELINE, "coalesced")

QUANTISED_INPUTS = "inputs are quantised, too ({}): less accurate than the modes that quantise weights alone"
SEPARATE_RUNS = "not interleaved: taken in separate runs"
SAME_RUN = "not interleaved: taken one after the other in one run"
NO_VERDICT = f"{SEPARATE_RUNS}; a verdict needs processes={FEWEST_PROCESSES} in both"


@dataclass(slots=True)
class Line:
    """One mode in one configuration of one run. Numbers are over its repeats; None: not measured."""

    rows: list[Row]
    problem: str | None
    is_baseline: bool = False  # True: other lines are compared with this one
    speedup: Interval | None = None
    baseline: Line | None = None  # the line that the speed-up is over
    metric: str = WALL  # of the speed-up
    verdict: Verdict | None = None
    launch_reduction: float | None = None
    peer_ratio: str | None = None
    remarks: list[str] = field(default_factory=list)
    about_rates: list[str] = field(default_factory=list)  # remarks that say what is wrong with a rate

    def __getitem__(self, column: str) -> Any:
        """Return a column that all repeats share, such as `mode`."""
        return self.rows[0][column]

    @property
    def disorder(self) -> str | None:
        """The violation of the commands' order as text; None if there was none."""
        return disorder(self.rows[0])

    @property
    def configuration(self) -> str:
        """Batching: `max_batch 512, timeout 150 us`."""
        return ", ".join(batching(self.rows[0])) or "—"

    def median(self, column: str) -> float | None:
        """Return the median of a column over the repeats that measured it."""
        return self.median_of(lambda row: row[column])

    def median_ratio(self, column: str, other: str) -> float | None:
        """Return the median over repeats of one column over another."""
        return self.median_of(lambda row: row[column] / row[other] if row[column] and row[other] else None)

    def worst(self, column: str) -> float | None:
        """Return the largest value of a column over the repeats."""
        return max((row[column] for row in self.rows if row[column] is not None), default=None)

    def median_of(self, value: Callable[[Row], float | None]) -> float | None:
        """Return the median of a value over the repeats that have it."""
        values = [v for v in map(value, self.rows) if v is not None]
        return statistics.median(values) if values else None


@dataclass(frozen=True, slots=True)
class Table:
    """All lines that executed one stream of commands on one device."""

    lines: list[Line]
    peer: reference.Peer | None
    history: reference.History | None

    def __getitem__(self, column: str) -> Any:
        """Return a column that all lines share, such as `workload`."""
        return self.lines[0][column]

    @property
    def title(self) -> str:
        """Work and number of commands: `gemv_micro fp32, 2,000,000 commands`."""
        return stream_title(self.lines[0].rows[0])

    @property
    def number_types(self) -> str:
        """The types of the stream's numbers: `bf16`, or `bf16, fp8 weights per channel`."""
        return number_types(self.lines[0].rows[0])

    @property
    def subtitle(self) -> str:
        """Device, shapes and other settings that all lines share."""
        return stream_subtitle(self.lines[0].rows[0])

    @property
    def has_tokens(self) -> bool:
        """Whether the stream generated tokens."""
        return any(row["tokens"] is not None for line in self.lines for row in line.rows)


def own_bases(manifests: Iterable[Manifest]) -> dict[str, list[str]]:
    """Return the modes of `against` of each run, by its name: the first that ran is the run's own base."""
    found = ((str(each.get("run_id")), (each.get("config") or {}).get("against")) for each in manifests)
    return {run: list(map(str, modes)) for run, modes in found if isinstance(modes, list)}


def build_tables(rows: Iterable[Row], own: Mapping[str, Sequence[str]] | None = None) -> list[Table]:
    """Group `rows` into tables, untraced ones first, then GPUs, with every comparison made.

    own: what `own_bases` returns. Raises DataError if two different rows claim to be the same repeat.
    """
    streams = grouped(without_copies(rows), STREAM)
    return [_table(members, own or {}) for members in sorted(streams, key=stream_order)]


def _line_order(line: Line) -> tuple[object, ...]:
    """Return a key that sorts the lines of a stream: the base first, then by mode, and by the number of the job."""
    settings = [sortable(line[name]) for name in CONFIGURATION if name != "run_id"]
    mode, rest = settings[0], settings[1:]
    job = [(int(part) if part.isdecimal() else -1, part) for part in str(line["run_id"]).split("/")]
    return (not line.is_baseline, mode, job, *rest)


def _table(rows: list[Row], own: Mapping[str, Sequence[str]]) -> Table:
    base = _base_of(rows, own)
    lines = [
        Line(members, problem_of(members), is_baseline=members[0]["mode"] == base)
        for members in grouped(rows, CONFIGURATION)
    ]
    lines.sort(key=_line_order)
    stream = rows[0]
    peer = history = None
    is_known = stream["tokens"] is None and stream["weights"] is None
    if stream["device"] == "cuda" and not stream["traced"] and is_known:
        work = (stream["workload"], stream["shapes"], stream["dtype"])
        peer = reference.peer(*work, stream["gpu"])
        history = reference.history(*work, stream["commands"])
    baselines = [line for line in lines if line.is_baseline]
    for line in lines:
        if why := unsteady(line.rows):
            line.about_rates.append(why)
        if slowed := throttling(line.rows):
            line.remarks.append(slowed)
        if line["quantised_inputs"]:
            line.remarks.append(QUANTISED_INPUTS.format(line["quantised_inputs"]))
        if above := [row for row in line.rows if row["above_ceiling"] and _is_above(row)]:
            worst = max(above, key=lambda row: float(row["achieved_gb_per_s"] or 0))
            # The rate is left out: a column has it, and without it lines can share one remark.
            line.about_rates.append(str(worst["above_ceiling"]).partition(" is ")[2] or str(worst["above_ceiling"]))
        if not line.is_baseline and line.problem is None:
            _compare(line, baselines, peer)
    return Table(lines, peer, history)


def throttling(rows: Sequence[Row]) -> str:
    """Return in how many repeats the GPU lowered its clocks, and why; nothing if it never did, or was not read."""
    slowed = [row for row in rows if row["throttled"]]
    if not slowed:
        return ""
    reasons = sorted({name for row in slowed for name in (row["throttle_reasons"] or "").split(", ") if name})
    because = f" ({', '.join(reasons)})" if reasons else ""
    return f"the GPU was throttled{because} in {len(slowed)} of {len(rows)} repeats"


def _is_above(row: Row) -> bool:
    """Return whether the rate that tables show is above a peak: of bytes that had to move, or of operations."""
    share, peak, tflops = needed_share(row), row["peak_tflops"], row["achieved_tflops"]
    return (share is None or share > 1) or (tflops is not None and peak is not None and tflops > peak)


def bases_of(row: Row) -> tuple[str, ...]:
    """Return the modes that others of a row's workload are compared with, the preferred one first."""
    return BASES if is_independent(row) else BASES_OF_STEPS


def _base_of(rows: Sequence[Row], own: Mapping[str, Sequence[str]]) -> str:
    """Return the mode that the others are compared with: engine or baseline if one ran, else the runs' own base.

    If they have none, or several: the first of `bases_of` that ran, else the first by name. That is a mode which
    quantises inputs only if all do.
    """
    modes = {str(row["mode"]) for row in rows}
    asked = {next((mode for mode in own.get(row["run_id"], ()) if mode in modes), None) for row in rows}
    if len(asked) == 1 and (base := asked.pop()) and not modes & {ENGINE, BASELINE}:
        return base
    exact = {str(row["mode"]) for row in rows if not row["quantised_inputs"]}
    known = next((mode for mode in bases_of(rows[0]) if mode in modes), min(exact or modes))
    return known if len(modes) > 1 else BASELINE


def problem_of(rows: list[Row]) -> str | None:
    """Return the reason why this line proves nothing, or None. One bad repeat is enough: the others are a selection."""
    failed = [row["status"] for row in rows if row["status"] != "ok"]
    if failed:
        return str(failed[0])
    return None if all(row["verified"] for row in rows) else "not verified"


def _compare(line: Line, baselines: list[Line], peer: reference.Peer | None) -> None:
    if not baselines:
        return
    baseline, paired = _baseline_of(line, baselines)
    if baseline.problem is not None:
        line.remarks.append(f"no speed-up: its baseline failed ({baseline.problem})")
        return
    line.metric = metric_of([*line.rows, *baseline.rows])
    line.speedup = _speedup(line, baseline, paired)
    if line.speedup is None:
        return
    line.baseline, line.verdict = baseline, verdict(line.speedup)
    calls, own_calls = baseline.median("launch_calls"), line.median("launch_calls")
    line.launch_reduction = calls / own_calls if calls is not None and own_calls else None
    if baseline["mode"] == BASELINE:
        line.peer_ratio = peer.ratio if peer else None
    else:
        line.remarks.append(f"speed-up over {baseline['mode']}")
    if not paired:
        apart = SEPARATE_RUNS if line.speedup.low is not None else NO_VERDICT
        line.remarks.append(SAME_RUN if baseline["run_id"] == line["run_id"] else apart)


def _baseline_of(line: Line, baselines: list[Line]) -> tuple[Line, bool]:
    """Return the baseline, and whether to compare repeat by repeat.

    Preferred is a baseline of the same run, then a verified one, then one with the same batching settings.
    """

    def distance(baseline: Line) -> tuple[bool, ...]:
        same_batching = all(baseline[name] == line[name] for name in ("max_batch", "timeout_us"))
        return (baseline["run_id"] != line["run_id"], baseline.problem is not None, not same_batching)

    nearest = min(baselines, key=distance)
    same_run = nearest["run_id"] == line["run_id"]
    interleaved = all(row["interleaved"] for row in (*line.rows, *nearest.rows))
    return nearest, same_run and interleaved


def _speedup(line: Line, baseline: Line, paired: bool) -> Interval | None:
    """Return the factor between times; None if a repeat has no time, or if no pair shares a repeat."""
    metric = line.metric
    if not all(row[metric] is not None and row[metric] > 0 for row in (*line.rows, *baseline.rows)):
        return None
    if not paired:
        return separate(by_process(baseline.rows, metric), by_process(line.rows, metric)).interval
    shared = {row["repeat"] for row in line.rows} & {row["repeat"] for row in baseline.rows}
    if not shared:
        return None
    theirs, ours = (by_process(each.rows, metric, shared) for each in (baseline, line))
    return same_processes(theirs, ours).interval


def by_process(rows: Iterable[Row], column: str, repeats: Collection[int] | None = None) -> list[list[float]]:
    """Return the values of a column in the order of repeats, a list for each process; None: all repeats."""
    groups: dict[int, list[float]] = {}
    for row in sorted(rows, key=lambda row: int(row["repeat"])):
        if repeats is None or row["repeat"] in repeats:
            groups.setdefault(row["process"] or 0, []).append(float(row[column]))
    return list(groups.values())
