"""From rows of summary.parquet to tables that may be defended.

In: rows as `results.read_summaries` gives them. Out: a `Table` for each stream of commands, with a `Line` for
each mode and configuration that ran it. Pure: reads no file, prints nothing.

What a line may claim: a speed-up is the wall time of a baseline over that of the line. Where the same run
took both in turn they are compared repeat by repeat; otherwise the line says how they were taken. A line with
a repeat that failed, or whose results were not verified, claims nothing, and neither does one that is
compared with such a baseline. Traced runs have tables of their own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from launchopt.analysis import reference
from launchopt.analysis.interval import Interval, Verdict, ratio_interval, verdict
from launchopt.errors import DataError
from launchopt.results import Row

BASELINE = "baseline"

SEPARATE_RUNS = "not interleaved: taken in separate runs"
SAME_RUN = "not interleaved: taken one after the other in one run"

# What has to agree for two rows to have executed the same stream of commands on the same device.
_STREAM = (
    *("workload", "model", "dtype", "device", "gpu", "layers", "commands", "cache", "arrival"),
    *("shapes", "requests", "traced"),
)
_CONFIGURATION = ("mode", "ordering", "max_batch", "timeout_us", "run_id")
_FIRST_WORKLOADS = ("gemv_micro", "gemv_256", "decode", "prefill")
_FIRST_DTYPES = ("fp32", "fp16", "bf16")


@dataclass(slots=True)
class Line:
    """One mode in one configuration of one run; numbers are over its repeats, None if not measured."""

    rows: list[Row]
    problem: str | None
    speedup: Interval | None = None
    verdict: Verdict | None = None
    launch_reduction: float | None = None
    peer_ratio: str | None = None
    remarks: list[str] = field(default_factory=list)

    def __getitem__(self, column: str) -> Any:
        """A column that all repeats share, such as `mode`."""
        return self.rows[0][column]

    @property
    def is_baseline(self) -> bool:
        """Whether this is what others are compared with."""
        return bool(self["mode"] == BASELINE)

    @property
    def dependencies_ignored(self) -> bool:
        """Whether steps of a request may have run out of order; lone GEMVs have no order to break."""
        return bool(self["ordering"] == "none") and not has_no_dependencies(self["workload"])

    @property
    def configuration(self) -> str:
        """`max_batch 512, timeout 150 us`."""
        parts = (("max_batch", "max_batch {}"), ("timeout_us", "timeout {:g} us"))
        return ", ".join(text.format(self[name]) for name, text in parts if self[name] is not None) or "—"

    def median(self, column: str) -> float | None:
        """Median of a column over the repeats that measured it."""
        return self._median(lambda row: row[column])

    def median_ratio(self, column: str, other: str) -> float | None:
        """Median over repeats of one column / another."""
        return self._median(lambda row: row[column] / row[other] if row[column] and row[other] else None)

    def worst(self, column: str) -> float | None:
        """Largest value of a column over the repeats."""
        return max((row[column] for row in self.rows if row[column] is not None), default=None)

    def _median(self, value: Callable[[Row], float | None]) -> float | None:
        values = [v for v in map(value, self.rows) if v is not None]
        return statistics.median(values) if values else None


@dataclass(frozen=True, slots=True)
class Table:
    """All lines that executed one stream of commands on one device."""

    lines: list[Line]
    peer: reference.Peer | None
    history: str | None

    def __getitem__(self, column: str) -> Any:
        """A column that all lines share, such as `workload`."""
        return self.lines[0][column]

    @property
    def title(self) -> str:
        """`gemv_micro fp32, 2,000,000 commands`."""
        traced = " (traced: not headline times)" if self["traced"] else ""
        return f"{self['workload']} {self['dtype']}, {self['commands']:,} commands{traced}"

    @property
    def subtitle(self) -> str:
        """Where and on what: the rest of what all lines share."""
        parts = [self["gpu"] or self["device"].upper(), f"shapes {self['shapes']}"]
        parts += [f"{self['model']} model"] if self["model"] else []
        parts += [f"{self['layers']} layers"] if self["layers"] is not None else []
        parts += [f"{self['requests']:,} request{'' if self['requests'] == 1 else 's'}"]
        return ", ".join([*parts, f"{self['cache']} cache", self["arrival"]])


def build_tables(rows: Iterable[Row]) -> list[Table]:
    """Group `rows` into tables, untraced ones first, then GPUs, with every comparison made.

    Raises DataError where two different rows claim to be the same repeat.
    """
    streams = _grouped(_without_copies(rows), _STREAM)
    return [_table(members) for members in sorted(streams, key=_stream_order)]


def has_no_dependencies(workload: str) -> bool:
    """Whether the commands of a workload are independent of each other."""
    return workload.startswith("gemv_")


def _without_copies(rows: Iterable[Row]) -> list[Row]:
    """A folder given twice, or together with one above it, must not double the repeats."""
    kept: list[Row] = []
    seen: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        twins = seen.setdefault(tuple(row[name] for name in (*_STREAM, *_CONFIGURATION, "repeat")), [])
        if any(repr(row) == repr(twin) for twin in twins):  # repr: a NaN is equal to itself
            continue
        if twins:
            raise DataError(row["run_id"], None, f"two different rows for {row['mode']}, repeat {row['repeat']}")
        twins.append(row)
        kept.append(row)
    return kept


def _grouped(rows: Iterable[Row], names: Sequence[str]) -> list[list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(groups.values())


def _stream_order(rows: list[Row]) -> tuple[Any, ...]:
    row = rows[0]
    firsts = ((_FIRST_WORKLOADS, row["workload"]), (_FIRST_DTYPES, row["dtype"]))
    known = [first.index(name) if name in first else len(first) for first, name in firsts]
    return (bool(row["traced"]), row["device"] != "cuda", *known, *(_sortable(row[name]) for name in _STREAM))


def _sortable(value: Any) -> tuple[bool, float, str]:
    """A key that orders nulls, numbers and texts without comparing them with each other."""
    number = float(value) if isinstance(value, int | float) else 0.0
    return (value is not None, number, value if isinstance(value, str) else "")


def _table(rows: list[Row]) -> Table:
    lines = [Line(members, _problem(members)) for members in _grouped(rows, _CONFIGURATION)]
    lines.sort(key=lambda line: (not line.is_baseline, *(_sortable(line[name]) for name in _CONFIGURATION)))
    stream = rows[0]
    peer = history = None
    if stream["device"] == "cuda" and not stream["traced"]:
        work = (stream["workload"], stream["shapes"], stream["dtype"])
        peer = reference.peer(*work, stream["gpu"])
        history = reference.predecessor(*work, stream["commands"])
    baselines = [line for line in lines if line.is_baseline]
    for line in lines:
        line.remarks += sorted({f"above a ceiling: {r['above_ceiling']}" for r in line.rows if r["above_ceiling"]})
        if not line.is_baseline and line.problem is None:
            _compare(line, baselines, peer)
    return Table(lines, peer, history)


def _problem(rows: list[Row]) -> str | None:
    """Why this line may claim nothing: one bad repeat is enough, or the good ones would be a selection."""
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
    line.speedup = _speedup(line, baseline, paired)
    if line.speedup is None:
        return
    line.verdict = verdict(line.speedup)
    calls, own_calls = baseline.median("launch_calls"), line.median("launch_calls")
    line.launch_reduction = calls / own_calls if calls is not None and own_calls else None
    line.peer_ratio = peer.ratio if peer else None
    if not paired:
        line.remarks.append(SAME_RUN if baseline["run_id"] == line["run_id"] else SEPARATE_RUNS)


def _baseline_of(line: Line, baselines: list[Line]) -> tuple[Line, bool]:
    """What to compare with, and whether repeat by repeat: own run, then own batching, then what is sound."""

    def distance(baseline: Line) -> tuple[bool, ...]:
        same_batching = all(baseline[name] == line[name] for name in ("max_batch", "timeout_us"))
        return (baseline["run_id"] != line["run_id"], baseline.problem is not None, not same_batching)

    nearest = min(baselines, key=distance)
    same_run = nearest["run_id"] == line["run_id"]
    interleaved = all(row["interleaved"] for row in (*line.rows, *nearest.rows))
    return nearest, same_run and interleaved


def _speedup(line: Line, baseline: Line, paired: bool) -> Interval | None:
    """Ratio of wall times; None where a repeat has no time, or no repeat is shared by a pair."""
    ours = {row["repeat"]: row["wall_ms"] for row in line.rows}
    theirs = {row["repeat"]: row["wall_ms"] for row in baseline.rows}
    if not all(wall_ms is not None and wall_ms > 0 for wall_ms in (*ours.values(), *theirs.values())):
        return None
    repeats = sorted(ours.keys() & theirs.keys())
    if not paired:
        return ratio_interval(list(theirs.values()), list(ours.values()), paired=False)
    if not repeats:
        return None
    return ratio_interval([theirs[r] for r in repeats], [ours[r] for r in repeats], paired=True)
