"""Top of the page: its subject, the verdict in words, and the first questions of a sceptic.

In: a `Source`. Out: a title, sentences, tiles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from launchopt.analysis.stream_rows import counted
from launchopt.analysis.tables.columns import mode_name, speedup
from launchopt.analysis.verdict.diagnosis import Diagnosis
from launchopt.report.glance import Glance, rank
from launchopt.report.source import Source
from launchopt.report.warnings import compared
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
            counted(commands, "command"),
            f"{counted(len(rows), 'repeat')} of all modes together, {counted(streams, 'stream')} of commands",
        ),
        Tile("Verified", f"{verified:,} of {len(rows):,} repeats", worst),
        Tile("Interleaved", f"{interleaved:,} of {len(untraced):,} repeats", "modes in turn, in random order"),
        _throttled(source),
        Tile("Proven faster", _faster(source), "95% interval above 1.01x of the base"),
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


def _faster(source: Source) -> str:
    lines = compared(source)
    return f"{sum(line.verdict is Verdict.FASTER for line in lines)} of {len(lines)} comparisons"


def headline(found: Sequence[Glance]) -> list[str]:
    """Return at most two sentences over all streams: the number with a gain, and the range of the gains.

    Modes that ignored the order of the commands are outside the range, unless no other mode is faster.
    """
    best = sorted(((one.best, one.name) for one in found if one.best), key=lambda pair: rank(pair[0]))
    if not any(one.has_comparison for one in found):
        return ["Nothing here was compared with a baseline, so no speed-up is claimed."]
    if not best:
        return ["No mode is proven faster than its base in any stream of commands."]
    ordered = [(line, name) for line, name in best if line.disorder is None] or best
    gains = [f"{mode_name(line)} {speedup(line)} on {name}" for line, name in ordered]
    if len(found) == 1:
        return [f"The fastest mode is {gains[0]}."]
    bases = dict.fromkeys(str(line.baseline["mode"]) for line, _ in best if line.baseline)
    base = "the baseline" if list(bases) == ["baseline"] else " or ".join(bases)
    counts = f"{len(best)} of {len(found)} streams of commands have a mode that is proven faster than {base}."
    range_ = f"The gain: {gains[0]}." if len(gains) == 1 else f"The gains are from {gains[0]} to {gains[-1]}."
    return [counts, range_]


def verdict_sentences(found: Sequence[Glance], diagnoses: Sequence[Diagnosis]) -> list[str]:
    """Return the verdict in at most three sentences."""
    first_sentences = headline(found)
    if len(diagnoses) == 1:
        # A diagnosis says the bottleneck first, then the strategy to try, with its gain.
        lead = [] if any(one.has_comparison for one in found) else first_sentences
        return [*lead, *re.split(r"(?<=\.) (?=[A-Z])", diagnoses[0].sentence)][:3]
    first = Counter(one.first_to_try for one in diagnoses if one.first_to_try)
    tries = ", ".join(f"{mode} in {number}" for mode, number in first.most_common(4))
    return [*first_sentences, *([f"First to try, by stream: {tries}."] if tries else [])][:3]
