"""Warnings about the results of a report, by severity.

In: a `Source`. Out: warnings, the worst first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from launchopt.analysis.stream_rows import counted
from launchopt.analysis.tables.bandwidth import unsteady
from launchopt.analysis.tables.rows import Line
from launchopt.report.source import Source


class Severity(StrEnum):
    """The weight of a warning: a number that must not be used, one to use with care, or a fact to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Caution:
    """A sentence with its severity."""

    severity: Severity
    text: str


def warnings(source: Source) -> list[Caution]:
    """Return all warnings, errors first; empty if there are none."""
    order = list(Severity)
    return sorted([*_runs(source), *_numbers(source)], key=lambda one: order.index(one.severity))


def severities(found: Sequence[Caution]) -> str:
    """Return `1 error, 2 warnings`."""
    counts = Counter(one.severity for one in found)
    return ", ".join(counted(counts[one], one) for one in Severity if counts[one])


def compared(source: Source) -> list[Line]:
    """Return the untraced lines that were compared with a base."""
    return [line for table in source.tables if not table["traced"] for line in table.lines if line.verdict is not None]


def _runs(source: Source) -> Iterator[Caution]:
    ended = [run for run in source.runs if run.manifest.get("status") not in ("ok", None)]
    if ended:
        names = ", ".join(f"{run.name} ({run.manifest['status']})" for run in ended[:6])
        text = f"{len(ended)} of {len(source.runs)} runs did not end well: {names}."
        yield Caution(Severity.ERROR, text)
    dirty = sum(bool((run.manifest.get("environment") or {}).get("git_dirty")) for run in source.runs)
    if dirty:
        text = f"{dirty} of {len(source.runs)} runs came from a checkout with uncommitted changes."
        yield Caution(Severity.NOTICE, text)


def _numbers(source: Source) -> Iterator[Caution]:
    for one in source.diagnoses:
        for error in one.errors:
            yield Caution(Severity.ERROR, f"Impossible rate in {one.title}: {error}.")
    if bad := sum(row["status"] != "ok" or not row["verified"] for row in source.rows):
        text = f"{counted(bad, 'repeat')} failed or could not be verified. Their lines claim no speed-up."
        yield Caution(Severity.ERROR, text)
    if changed := sum(unsteady([row]) is not None for row in source.rows):
        text = f"Memory bandwidth changed during the runs of {counted(changed, 'repeat')} (another process?)."
        yield Caution(Severity.WARNING, f"{text} They are compared with no ceiling.")
    if throttled := sum(bool(row["throttled"]) for row in source.rows):
        yield Caution(Severity.WARNING, f"{counted(throttled, 'repeat')} ran while the clocks were throttled.")
    if overloaded := sum(bool(row["overloaded"]) for row in source.rows):
        text = f"{counted(overloaded, 'repeat')} did not keep up with the arrivals. Their latencies grow with the run."
        yield Caution(Severity.WARNING, text)
    if few := sum(line.speedup is not None and line.speedup.low is None for line in compared(source)):
        why = "fewer than 5 repeats, or of separate runs fewer than 3 processes"
        text = f"{counted(few, 'comparison')} had no interval ({why}). They prove nothing."
        yield Caution(Severity.WARNING, text)
