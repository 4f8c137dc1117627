"""The ceilings of a device, measured once for each process, device and dtype: the jobs of a sweep share them.

A rate above a ceiling is an error. Before a run reports it, the ceilings are measured again, and the higher values
count.
"""

from __future__ import annotations

from dataclasses import asdict, astuple

from launchopt.command import Dtype
from launchopt.devices.base import Device
from launchopt.recording import summary
from launchopt.recording.results import Row
from launchopt.timing.activity import Ceilings
from runner.plan.job import Job

_measured: dict[tuple[str, int, int | None, Dtype], Ceilings] = {}


class DeviceCeilings:
    """The ceilings of a job's device for the dtype of its workload."""

    def __init__(self, device: Device, job: Job) -> None:
        self._device, self._residency = device, job.residency
        self._key = (device.info.kind, job.device_index, job.threads, job.stream.dtype)
        if self._key not in _measured:
            _measured[self._key] = device.ceilings(job.stream.dtype)

    @property
    def now(self) -> Ceilings:
        """The highest ceilings so far."""
        return _measured[self._key]

    def columns(self) -> dict[str, float]:
        """Return the ceilings by their columns of summary.parquet."""
        return asdict(self.now)

    def above(self, row: Row) -> tuple[str | None, bool]:
        """Return why a rate of `row` is above a ceiling, or None; and whether that is impossible (`above_ceiling`).

        If it seems impossible, the ceilings are measured again before the answer.
        """
        found = summary.above_ceiling(row, self.now, self._residency)
        if not found[1]:
            return found
        pairs = zip(astuple(self.now), astuple(self._device.ceilings(self._key[-1])), strict=True)
        _measured[self._key] = Ceilings(*(max(pair) for pair in pairs))
        return summary.above_ceiling(row, self.now, self._residency)
