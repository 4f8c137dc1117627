"""The checks behind a run: its operands, its outputs, and what the audit run of its arm found."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.base import Device, is_gpu
from launchopt.modes.base import Mode
from launchopt.recording.results import Row
from launchopt.streams.experts.stream import ExpertStream
from launchopt.streams.stream import commands_of
from launchopt.timing.laps import Laps
from launchopt.verify.commands import CheckSettings, Report, Verification, verify
from launchopt.verify.experts import verify_experts
from launchopt.verify.hashes import Hashes
from launchopt.verify.known import KnownOutputs
from launchopt.verify.operands import OperandCheck
from runner.plan.job import Job
from runner.worker.chains import Chains

LEAST_BUDGET_S = 5.0  # time for checking the outputs of a short run


class Checked(NamedTuple):
    """Columns of summary.parquet, and the faults of the run."""

    columns: Row
    faults: list[str]
    seconds: dict[str, float]  # that the checks of operands and of outputs took
    compared_run: str  # the run whose outputs were compared: this one, or an earlier one that left the same bits


class Checks:
    """The checks of one job. report: takes the number of commands whose outputs are checked so far."""

    def __init__(self, job: Job, device: Device, chains: Chains | None, report: Report) -> None:
        self._job, self._device, self._chains, self._report = job, device, chains, report
        hashing = chains.hashing if chains else Hashes(device.arenas.xp, job.seed)  # one for all: it takes memory
        self._operands = OperandCheck(device.arenas, job.seed, hashing)
        self._known = KnownOutputs(device.arenas, hashing)
        self._whole = None if device.split is None else OperandCheck(device.split.shares.whole, job.seed, hashing)

    def settings(self, wall_s: float) -> CheckSettings:
        """Return the settings of a check, which may take as long as the run, `wall_s`, but at least LEAST_BUDGET_S."""
        job = self._job
        budget_s = max(wall_s, LEAST_BUDGET_S) if job.verify_budget_s is None else job.verify_budget_s
        workers = 1 if is_gpu(self._device) else len(os.sched_getaffinity(0))
        return CheckSettings(job.verify_columns, job.seed, self._report, budget_s, math.isinf(budget_s), workers)

    def of_run(self, arm: int, repeat: int, mode: Mode, wall_s: float, own: NDArray[np.bool_] | None = None) -> Checked:
        """Check the run of a mode that just ended, of the arm with this index.

        own: the independent commands that this consumer has executed, [commands]; None: all.
        """
        unwritten = mode.unwritten_of(self._job.stream)
        laps, run = Laps(), f"{self._job.arms[arm].label}, repeat {repeat}"
        laps.begin("operands")
        changed, settings = self._operands.fault() or self._share_fault(), self.settings(wall_s)
        laps.begin("outputs")
        if self._chains and changed:  # such outputs say nothing about later ones with the same bits
            outputs = self._chains.verify(unwritten, settings)
        elif self._chains:
            outputs, run = self._of_requests(self._chains, run, unwritten, settings)
        elif isinstance(self._job.stream, ExpertStream):
            outputs = verify_experts(self._job.stream, self._device.arenas, settings, unwritten)
        else:
            stream = commands_of(self._job.stream)
            outputs = verify(stream, self._device.arenas, settings, own, mode.quantises_inputs)
        audited = self._chains.audited(arm) if self._chains else None
        wrong = f"{outputs.wrong} of {outputs.commands} outputs wrong (first: {outputs.first_wrong})"
        faults = [changed, None if outputs.ok else wrong, audited.fault if audited else None]
        found = [each for each in faults if each is not None]
        columns: Row = {
            "verified": not found,
            "checked_commands": outputs.checked,
            "compared_share": outputs.compared_share,
            "audited_share": audited.share if audited else None,
            "as_audited_share": self._chains.as_audited(arm) if self._chains and audited else None,
            "max_rel_error": outputs.max_rel_error,
            "tolerance": outputs.tolerance,
            "quantised_inputs": str(self._job.stream.packing) if mode.quantises_inputs else None,
        }
        return Checked(columns, found, laps.seconds(), run)

    def _of_requests(
        self, chains: Chains, run: str, unwritten: frozenset[str], settings: CheckSettings
    ) -> tuple[Verification, str]:
        """Compare the outputs of requests, unless an earlier run left the same bits; return the run that was compared.

        Such a comparison takes the time of many repeats, since it computes the whole model in float64.
        """
        own = chains.own().tobytes() if self._job.consumers > 1 else b""
        also = b"|".join((repr(sorted(unwritten)).encode(), own, chains.ids().tobytes()))
        found, compared = self._known.check(run, also, lambda: chains.verify(unwritten, settings))
        self._report(found.checked)
        return found, compared

    def _share_fault(self) -> str | None:
        """Return what is wrong with this GPU's share of the weights, or with the whole ones; None if nothing is."""
        if self._whole is None:
            return None
        assert self._device.split is not None
        return self._whole.fault() or self._device.split.shares.fault(self._device.arenas)
