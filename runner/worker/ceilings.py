"""What a device can do at most: measured once a process, device and dtype, so that the jobs of a sweep share it.

In: an open device; rates of runs. Out: its ceilings; whether a rate is above them. Before a rate is called impossible,
what is possible is measured again, and the higher of both counts from then on.
"""

from __future__ import annotations

from dataclasses import asdict, astuple
from typing import Any

from launchopt.command import Dtype
from launchopt.devices.base import Device
from launchopt.recording import summary
from launchopt.timing.activity import Ceilings
from runner.plan.job import Job

_measured: dict[tuple[str, int, int | None, Dtype], Ceilings] = {}


class DeviceCeilings:
    """Of a job's device, for its stream's dtype."""

    def __init__(self, device: Device, job: Job) -> None:
        self._device, self._residency = device, job.residency
        self._key = (device.info.kind, job.device_index, job.threads, job.stream.dtype)
        if self._key not in _measured:
            _measured[self._key] = device.ceilings(job.stream.dtype)

    @property
    def now(self) -> Ceilings:
        """As far as they are known."""
        return _measured[self._key]

    def columns(self) -> dict[str, float]:
        """By the names of summary.parquet."""
        return asdict(self.now)

    def above(self, row: dict[str, Any]) -> tuple[str | None, bool]:
        """As `summary.above_ceiling`."""
        found = summary.above_ceiling(row, self.now, self._residency)
        if not found[1]:
            return found
        pairs = zip(astuple(self.now), astuple(self._device.ceilings(self._key[-1])), strict=True)
        _measured[self._key] = Ceilings(*(max(pair) for pair in pairs))
        return summary.above_ceiling(row, self.now, self._residency)
