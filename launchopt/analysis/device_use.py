"""The devices that the jobs of a sweep held, and when: no two of them may hold one device at the same time.

In: the manifests of a sweep's jobs. The entry `held` of each names the GPU (its uuid) or the cores that the job had
locked, and the time from before its first child process until its results were saved. Out: a `Use` for each job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json


class Use(NamedTuple):
    """A job, the device that it held, and the time of that, as in ISO 8601."""

    job: str
    device: str
    from_utc: str
    until_utc: str

    @property
    def span(self) -> tuple[datetime, datetime]:
        """Begin and end."""
        return datetime.fromisoformat(self.from_utc), datetime.fromisoformat(self.until_utc)


def uses_of(sweep: Path) -> list[Use]:
    """Return the use of each job below a sweep's folder; DataError for a job that held no device of its own."""
    found = []
    for path in sorted(sweep.glob("*/manifest.json")):
        content: JsonObject = read_json(path)
        held = content.get("held")
        if not held or content.get("shared"):
            raise DataError(
                path, None, f"the job had no device of its own: {content.get('shared') or 'it locked none'}"
            )
        found.append(Use(path.parent.name, held["device"], held["from_utc"], held["until_utc"]))
    if not found:
        raise DataError(sweep, None, "no job has results")
    return found


def devices_of(use: Use) -> set[str]:
    """Return what a job held: its GPU, or each of its cores."""
    kind, _, cores = use.device.partition(" ")
    return {f"core {core}" for core in cores.split(",")} if kind == "cores" else {use.device}


def overlaps(uses: Iterable[Use]) -> list[tuple[str, Use, Use]]:
    """Return the device and the two jobs of each overlap in time."""
    by_device: dict[str, list[Use]] = {}
    for use in uses:
        for device in devices_of(use):
            by_device.setdefault(device, []).append(use)
    found = []
    for device, own in sorted(by_device.items()):
        own.sort(key=lambda use: use.span)
        latest = own[0]
        for use in own[1:]:
            if use.span[0] < latest.span[1]:
                found.append((device, latest, use))
            latest = max(latest, use, key=lambda each: each.span[1])
    return found


def summary(sweep: Path, uses: Sequence[Use]) -> str:
    """Return how many jobs held how many devices; DataError if two held one at the same time."""
    if found := overlaps(uses):
        device, one, other = found[0]
        raise DataError(sweep, None, f"jobs {one.job} and {other.job} held {device} at the same time")
    count = len({use.device for use in uses})
    return f"{len(uses)} jobs on {count} {'device' if count == 1 else 'devices'}, one job at a time on each"
