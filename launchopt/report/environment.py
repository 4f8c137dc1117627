"""Machine, versions, clocks, configuration and refusals of the runs, and how each run ended.

In: the runs of a report. Out: facts as (name, value), and grids. A fact that all runs share appears once; others appear
per run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launchopt.analysis.stream_rows import counted, is_independent
from launchopt.analysis.tables.columns import NOTHING
from launchopt.recording.manifest import LEFT_OUT
from launchopt.recording.results import Row
from launchopt.report.grids import MOST, Grid, Head, make_grid
from launchopt.report.source import Run, Source

Facts = list[tuple[str, str]]

_RUNS = (
    *(
        Head("run", True),
        Head("started (UTC)", True),
        Head("ended", True),
        Head("repeats done"),
        Head("revision", True),
    ),
    *(Head("SM clock MHz", True), Head("throttled repeats"), Head("overrides", True)),
)
_MOST_VALUES = 6
_MOST_SETTINGS = 5  # columns of settings that are shown without a request


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a report."""

    machine: Facts
    config: Facts
    differing: Grid | None
    runs: Grid
    notices: list[str]
    refused: list[str]


def environment(source: Source) -> Environment:
    """Return the environment from the manifests, with clocks from the rows."""
    parts = ("environment", "device_versions", "ceilings", "ceilings_after", "polled_words", "garbage_collection")
    values = [{part: run.manifest[part] for part in parts if run.manifest.get(part) is not None} for run in source.runs]
    flat = [dict(_flat(each)) if each else {} for each in values]
    machine = [(name.removeprefix("environment."), _joined(values)) for name, values in _by_name(flat).items()]
    configs = [dict(_flat(run.manifest.get("config") or {})) for run in source.runs]
    by_name = {name: values for name, values in _by_name(configs).items() if name not in _meaningless(source)}
    shared = [(name, values[0]) for name, values in by_name.items() if len(set(values)) == 1]
    varying = [name for name, values in by_name.items() if len(set(values)) > 1]
    return Environment(
        machine=[(name, value) for name, value in machine if value != "null"],
        config=shared,
        differing=_differing(source.runs, configs, varying),
        runs=_runs(source),
        notices=_distinct(source.runs, "notices"),
        refused=_refused(source.runs),
    )


def _meaningless(source: Source) -> set[str]:
    """Return the settings that change nothing: independent commands have no order to keep."""
    return {"ordering"} if source.rows and all(map(is_independent, source.rows)) else set()


def _flat(value: object, name: str = "") -> Iterable[tuple[str, str]]:
    """Yield `a.b` and the value of each leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, Mapping | list | tuple):
        yield name, ", ".join(map(str, value)) or "none"
    else:
        yield name, "null" if value is None else str(value)


def _by_name(flat: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for one in flat for name in one)
    return {name: [one.get(name, "absent") for one in flat] for name in names}


def _joined(values: Sequence[str]) -> str:
    """Return the distinct values, the most common first, and the number of those left out."""
    distinct = sorted(dict.fromkeys(value for value in values if value != "absent"), key=lambda v: -values.count(v))
    shown = "; ".join(distinct[:_MOST_VALUES])
    return shown + (f"; {len(distinct) - _MOST_VALUES} more" if len(distinct) > _MOST_VALUES else "")


def _differing(runs: Sequence[Run], configs: Sequence[Mapping[str, str]], names: Sequence[str]) -> Grid | None:
    if not names:
        return None
    caption = "What differs between the composed configurations"
    if len(runs) < MOST:  # a column for each run; names of settings are long, and stand below each other
        heads = [Head("setting", True), *(Head(run.name, True) for run in runs)]
        return make_grid(caption, heads, [[name, *(one.get(name, NOTHING) for one in configs)] for name in names])
    heads = [Head("run", True), *(Head(name, True, is_extra=at >= _MOST_SETTINGS) for at, name in enumerate(names))]
    cells = [[run.name, *(one.get(name, NOTHING) for name in names)] for run, one in zip(runs, configs, strict=True)]
    return make_grid(caption, heads, cells)


def _runs(source: Source) -> Grid:
    by_run: dict[str, list[Row]] = {}
    for row in source.rows:
        by_run.setdefault(row["run_id"], []).append(row)
    cells = [_run_cells(run, by_run.get(run.name, [])) for run in source.runs]
    return make_grid("How each run ended", _RUNS, cells)


def _run_cells(run: Run, rows: Sequence[Row]) -> list[str]:
    manifest = run.manifest
    about = manifest.get("environment") or {}
    revision = str(about.get("git_revision") or NOTHING)[:12] + (" + changes" if about.get("git_dirty") else "")
    ended = str(manifest.get("status") or "unknown") + (f": {manifest['error']}" if manifest.get("error") else "")
    known = [row["throttled"] for row in rows if row["throttled"] is not None]
    reasons = sorted({row["throttle_reasons"] for row in rows if row["throttle_reasons"]})
    throttled = f"{sum(map(bool, known))} of {len(known)}" if known else NOTHING
    return [
        *(
            run.name,
            str(manifest.get("started_utc") or NOTHING).replace("T", " ").removesuffix("+00:00"),
            ended,
            str(manifest.get("repeats_done", NOTHING)),
        ),
        *(revision, _clocks(run, rows), throttled + (f" ({', '.join(reasons)})" if reasons else "")),
        " ".join(map(str, manifest.get("overrides") or [])) or NOTHING,
    ]


def _clocks(run: Run, rows: Sequence[Row]) -> str:
    """Return the lowest and the highest clock during the repeats, else before and after them."""
    during = [row[name] for row in rows for name in ("sm_clock_mhz", "sm_clock_min_mhz") if row[name] is not None]
    states = [state for one in run.manifest.get("runs") or [] for state in (one.get("state") or {}).values()]
    around = [state["sm_clock_mhz"] for state in states if isinstance(state, Mapping) and state.get("sm_clock_mhz")]
    around += (run.manifest.get(LEFT_OUT) or {}).get("sm_clock_mhz") or []
    found = during or around
    if not found:
        return NOTHING
    low, high = min(found), max(found)
    where = "during" if during else "before and after"
    return f"{low:,.0f}{'' if low == high else f' to {high:,.0f}'} ({where} repeats)"


def _distinct(runs: Iterable[Run], key: str) -> list[str]:
    return list(dict.fromkeys(str(each) for run in runs for each in run.manifest.get(key) or []))


def _refused(runs: Iterable[Run]) -> list[str]:
    """Return the refusals: `mode: reason (runs)`."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for mode, reason in (run.manifest.get("refused") or {}).items():
            found.setdefault(f"{mode}: {reason}", []).append(run.name)
    return [f"{text} ({counted(len(names), 'run')})" for text, names in found.items()]
