"""The consumer's side of requests: what happens when a step ends, and how the tokens are checked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.step_batcher import StepBatcher, steps_of_requests
from launchopt.devices.base import Device
from launchopt.devices.loops.commands_runner import PumpSettings
from launchopt.devices.loops.steps import StepPump
from launchopt.modes.base import Prepared
from launchopt.producing.driver import shortened
from launchopt.queue.ring import Ring
from launchopt.recording.recorder import Recorder
from launchopt.verify.commands import Verification
from launchopt.verify.tokens import verify_chain
from launchopt.workloads.chain import AFTER, DUE_NS, ChainStream
from runner.plan.job import Arm, Job


class Chains:
    """Results fed back, and told of through the second ring."""

    def __init__(self, job: Job, stream: ChainStream, device: Device) -> None:
        self._job, self._stream, self._device = job, stream, device
        self.back = Ring.attach(job.back_name, job.back_capacity)
        self.flights = device.open_steps(stream, job.sampling, job.samples_on_host, self.back)

    def ended(self, words: NDArray[np.uint64]) -> None:
        """Commands were launched: those that end a step have their results fed back."""
        if count := self.flights.collect(words):
            self._device.feed_back(self.flights, count)

    def expected(self, rehearsal: bool) -> NDArray[np.bool_] | None:
        """Which requests come at once: of a closed loop all, unless a scheduler lets them in; None: nobody knows."""
        if self._job.schedule.continuous:
            return None
        table = shortened(self._stream.table) if rehearsal else self._stream.table
        at_once: NDArray[np.bool_] = (table[:, DUE_NS] == 0) & (table[:, AFTER] < 0)
        return at_once

    def steps(self, rehearsal: bool) -> NDArray[np.int64] | None:
        """How many steps each request has, where one comes as soon as the one before it is told of; else None."""
        if self._job.schedule.continuous:
            return None
        return steps_of_requests(shortened(self._stream.table) if rehearsal else self._stream.table)

    def step_pump(
        self,
        arm: Arm,
        rehearsal: bool,
        ring: Ring,
        prepared: Prepared,
        recorder: Recorder,
        settings: PumpSettings,
    ) -> StepPump:
        """The loop of a mode that takes whole steps."""
        job = self._job
        table = shortened(self._stream.table) if rehearsal else self._stream.table
        batcher = StepBatcher(
            steps_of_requests(table),
            rows_of_longest_step(self._stream),
            arm.max_batch,
            settings.timeout_ns,
            idle_ns=settings.idle_ns,
            on_stall=job.on_stall,
            in_rounds=job.schedule.continuous,
            expected=self.expected(rehearsal),
            ahead=arm.ahead,
        )
        follows = prepared.submit_steps, self._device.feed_back, self._device.check_alive
        ahead = prepared.path.ahead
        admission = ahead.admission if ahead else None
        return StepPump(ring, self.back, batcher, self.flights, *follows, recorder, settings, admission)

    def verify(self, unwritten: frozenset[str]) -> Verification:
        """Check every token, and the commands whose outputs are still there, less what stayed inside fused launches."""
        ids = self.flights.done[: self._stream.tokens].astype(np.uint32).view(np.int32).astype(np.int64)
        job = self._job
        data = (self._stream, self._device.arenas, job.sampling, ids)
        return verify_chain(*data, job.verify_columns, job.seed, unwritten)

    def release(self) -> None:
        """Drop the second ring."""
        self.back.release()


def rows_of_longest_step(stream: ChainStream) -> int:
    """Commands of the step that has most."""
    return int(np.diff(stream.kind_stops, prepend=0).max())
