"""The ceilings of a device, measured once for each process, device and dtype: the jobs of a sweep share them.

A rate above a ceiling is an error. Before a run reports it, the ceilings are measured again, and the higher values
count. Behind the last run of a job the bandwidths are measured again. If they changed by more than `MOST_CHANGE`,
something else used the memory, and no result of the job may be compared with them.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, replace

from launchopt.command import Dtype
from launchopt.devices.base import Device
from launchopt.recording.impossible import Limits, above_ceiling
from launchopt.recording.manifest import Manifest
from launchopt.recording.results import Row
from launchopt.timing.activity import Bandwidths, Ceilings
from runner.plan.job import Job
from runner.plan.sharing import Sharing

_Key = tuple[str, int, int | None, Dtype]
_highest: dict[_Key, Ceilings] = {}
_latest: dict[_Key, Bandwidths] = {}
NO_ROW: Row = {}
MOST_AGAIN = 5


class DeviceCeilings:
    """The ceilings of a job's device for the dtype of its workload."""

    def __init__(self, device: Device, job: Job) -> None:
        self._device, self._residency = device, job.residency
        self._key = (device.info.kind, job.device_index, job.threads, job.stream.dtype)
        if self._key not in _highest:
            _highest[self._key] = found = device.ceilings(job.stream.dtype)
            _latest[self._key] = found.bandwidths
        self._seen = [_latest[self._key]]  # all measurements of this job
        self._sharing = Sharing(device.info.kind)

    @property
    def now(self) -> Ceilings:
        """The highest ceilings so far."""
        return _highest[self._key]

    @property
    def change(self) -> float:
        """The largest measured bandwidth of this job over the smallest, less 1: of copy or read, whichever is more."""
        return max(float(max(rates) / min(rates)) for rates in zip(*map(astuple, self._seen), strict=True)) - 1

    def columns(self, row: Row = NO_ROW) -> dict[str, float | None]:
        """Return the ceilings by their columns of summary.parquet, for a row. Null: not measured."""
        return {name: value or None for name, value in asdict(self._of(row)).items()}

    def _of(self, row: Row) -> Ceilings:
        """Return the ceilings of a row. Its peak is 0, for unknown, if inputs were quantised: that of fp8 is higher."""
        return replace(self.now, peak_tflops=0.0) if row.get("quantised_inputs") else self.now

    def after(self) -> Manifest:
        """Measure the bandwidths again, behind the last run. Return them, and their change over the job."""
        self._add(self._device.bandwidths())
        return {"ceilings_after": asdict(_latest[self._key]), "ceilings_change": self.change}

    def above(self, row: Row) -> tuple[str | None, bool]:
        """Return why a rate of `row` is above a ceiling, or None; and whether that is impossible (`above_ceiling`).

        While it seems impossible, the ceilings are measured again, MOST_AGAIN times at most: another process may have
        taken part of the machine when they were measured. Beside other jobs none is known.
        """
        if self._sharing.so_far():
            return None, False
        found, times = above_ceiling(row, self._limits(row)), 0
        while found[1] and times < MOST_AGAIN:
            again = self._device.ceilings(self._key[-1])
            _highest[self._key] = Ceilings(*(max(pair) for pair in zip(astuple(self.now), astuple(again), strict=True)))
            self._add(again.bandwidths)
            found, times = above_ceiling(row, self._limits(row)), times + 1
        return found

    def _limits(self, row: Row) -> Limits:
        return Limits(self._of(row), self._key[0], self._residency, self.change)

    def _add(self, measured: Bandwidths) -> None:
        _latest[self._key] = measured
        self._seen.append(measured)
