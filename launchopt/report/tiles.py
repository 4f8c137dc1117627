"""Top of the page: its subject, the first questions of a sceptic, and warnings.

In: a `Source`. Out: a title, tiles, warnings.
"""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.analysis.tables.rows import Line
from launchopt.report.glance import glances
from launchopt.report.source import Source
from launchopt.statistics.interval import Verdict


@dataclass(frozen=True, slots=True)
class Tile:
    """A key figure with its basis."""

    name: str
    value: str
    more: str = ""


def title(source: Source) -> str:
    """Return `Launch overhead on NVIDIA H200`."""
    return f"Launch overhead on {', '.join(_devices(source)) or 'no device'}"


def subtitle(source: Source) -> str:
    """Return time and folders of the runs."""
    started = sorted(str(run.manifest["started_utc"]) for run in source.runs if run.manifest.get("started_utc"))
    when = (
        "" if not started else f", {started[0]}" + (f" to {started[-1]}" if started[-1] != started[0] else "") + " UTC"
    )
    names = ", ".join(folder.name or str(folder) for folder in source.folders)
    return f"launchopt report of {names}{when.replace('+00:00', '')}"


def tiles(source: Source) -> list[Tile]:
    """Return the extent of the measurement, and how it was checked."""
    rows = source.rows
    untraced = [row for row in rows if not row["traced"]]
    verified = sum(bool(row["verified"]) for row in rows)
    interleaved = sum(bool(row["interleaved"]) for row in untraced)
    errors = [row["max_rel_error"] / row["tolerance"] for row in rows if row["max_rel_error"] and row["tolerance"]]
    worst = f"largest error {max(errors):.0%} of its bound" if errors else ""
    commands = sum(row["commands"] or 0 for row in rows)
    streams = sum(not table["traced"] for table in source.tables)
    return [
        Tile("Device", ", ".join(_devices(source)) or "none", _versions(source)),
        Tile(
            "Measured",
            f"{commands:,} commands",
            f"{_repeats(len(rows))}, {streams} stream{'' if streams == 1 else 's'} of commands",
        ),
        Tile("Verified", f"{verified} of {len(rows)} repeats", worst),
        Tile("Interleaved", f"{interleaved} of {len(untraced)} repeats", "modes in turn, in random order"),
        _throttled(source),
        Tile("Proven faster", _faster(source), "95% interval above 1.01x of the baseline"),
    ]


def _devices(source: Source) -> list[str]:
    named = {run.name: run.device for run in source.runs}
    found = (row["gpu"] or named.get(row["run_id"]) or str(row["device"]).upper() for row in source.rows)
    return list(dict.fromkeys(map(str, found)))


def _versions(source: Source) -> str:
    versions = [run.manifest.get("device_versions") or {} for run in source.runs]
    parts = []
    for key, label in (("driver", "driver"), ("cuda_runtime", "CUDA"), ("blas", "BLAS")):
        found = list(dict.fromkeys(_version(key, one[key]) for one in versions if one.get(key)))
        parts += [f"{label} {', '.join(found)}"] if found else []
    return "; ".join(parts)


def _version(key: str, value: object) -> str:
    """Return a version as text: 13020 is CUDA 13.2."""
    text = str(value)
    return f"{int(text) // 1000}.{int(text) % 1000 // 10}" if key == "cuda_runtime" and text.isdecimal() else text


def _throttled(source: Source) -> Tile:
    known = [row["throttled"] for row in source.rows if row["throttled"] is not None]
    if not known:
        return Tile("Throttled", "not sampled", "clocks before and after: Environment")
    return Tile("Throttled", f"{sum(map(bool, known))} of {len(known)} repeats", "by NVML, during the repeats")


def _compared(source: Source) -> list[Line]:
    return [line for table in source.tables if not table["traced"] for line in table.lines if line.verdict is not None]


def _faster(source: Source) -> str:
    compared = _compared(source)
    return f"{sum(line.verdict is Verdict.FASTER for line in compared)} of {len(compared)} comparisons"


def warnings(source: Source) -> list[str]:
    """Return warnings about the results; empty if there are none."""
    found = []
    bad = [row for row in source.rows if row["status"] != "ok" or not row["verified"]]
    if bad:
        found.append(f"{_repeats(len(bad))} failed or could not be verified. Such a line claims no speed-up.")
    ended = [run for run in source.runs if run.manifest.get("status") not in ("ok", None)]
    if ended:
        names = ", ".join(f"{run.name} ({run.manifest['status']})" for run in ended[:6])
        found.append(f"{len(ended)} of {len(source.runs)} runs did not end well: {names}.")
    if throttled := sum(bool(row["throttled"]) for row in source.rows):
        found.append(f"{_repeats(throttled)} ran while the clocks were throttled.")
    few = sum(line.speedup is not None and line.speedup.low is None for line in _compared(source))
    if few:
        found.append(f"{few} comparisons have fewer than 3 repeats, and no interval: nothing is proven by them.")
    if overloaded := sum(bool(row["overloaded"]) for row in source.rows):
        found.append(f"{_repeats(overloaded)} could not keep up with the arrivals: their latencies grow with the run.")
    dirty = sum(bool((run.manifest.get("environment") or {}).get("git_dirty")) for run in source.runs)
    if dirty:
        found.append(f"{dirty} of {len(source.runs)} runs came from a checkout with uncommitted changes.")
    return found


def headline(source: Source) -> str:
    """Return one sentence over all streams: the number with a gain, and the range of the gains."""
    found = glances(source.tables)
    best = sorted((one for one in found if one.best), key=lambda one: _gain(one.best))
    if not any(one.has_comparison for one in found):
        return "Nothing here was compared with a baseline, so no speed-up is claimed."
    if not best:
        return "No mode is proven faster than the baseline in any stream of commands."
    speedups = [
        f"{one.best['mode']} {one.best.speedup} on {one.table.title}" for one in (best[0], best[-1]) if one.best
    ]
    range_ = speedups[0] if len(best) == 1 else f"from {speedups[0]} to {speedups[1]}"
    return f"In {len(best)} of {len(found)} streams of commands a mode is proven faster than the baseline: {range_}."


def _gain(line: Line | None) -> float:
    return line.speedup.value if line is not None and line.speedup is not None else 0.0


def _repeats(number: int) -> str:
    return "1 repeat" if number == 1 else f"{number} repeats"
