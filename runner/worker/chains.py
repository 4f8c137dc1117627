"""The consumer's side of requests: order, feedback at the end of steps, and the check of the tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batcher import FlushRules
from launchopt.batching.order import OrderArrays, order_arrays
from launchopt.batching.step_batcher import StepBatcher, steps_of_requests
from launchopt.devices.base import Device
from launchopt.devices.loops.runner import Feedback, LoopSettings
from launchopt.devices.loops.steps import StepLoop
from launchopt.modes.base import Prepared
from launchopt.producing.driver import shortened
from launchopt.queue.ring import Ring
from launchopt.recording.recorder import Recorder
from launchopt.types import Table
from launchopt.verify.commands import Verification
from launchopt.verify.tokens import verify_chain
from launchopt.workloads.chain import AFTER, DUE_NS, ChainStream
from runner.plan.job import Arm, Job


class Chains:
    """Feeds back results of steps, and holds the second ring, which notifies the driver."""

    def __init__(self, job: Job, stream: ChainStream, device: Device) -> None:
        self._job, self._stream, self._device = job, stream, device
        self._back = Ring.attach(job.back_name, job.back_capacity)
        flights = device.open_steps(stream, job.sampling, job.samples_on_host, self._back)
        self.feedback = Feedback(flights, device.feed_back, device.check_alive)

    def _table(self, rehearsal: bool) -> Table:
        """The requests of the run."""
        return shortened(self._stream.table) if rehearsal else self._stream.table

    def _expected(self, rehearsal: bool) -> NDArray[np.bool_] | None:
        """Which requests come at once, [requests]: in a closed loop all. None: a scheduler lets them in."""
        if self._job.schedule.continuous:
            return None
        table = self._table(rehearsal)
        at_once: NDArray[np.bool_] = (table[:, DUE_NS] == 0) & (table[:, AFTER] < 0)
        return at_once

    def order(self, rehearsal: bool) -> OrderArrays:
        """The arrays that keep order within the requests of a run."""
        steps = None if self._job.schedule.continuous else steps_of_requests(self._table(rehearsal))
        expected = self._expected(rehearsal)
        return order_arrays(self._stream.requests, violated=self._job.violated, expected=expected, steps=steps)

    def step_loop(
        self, arm: Arm, rehearsal: bool, ring: Ring, prepared: Prepared, recorder: Recorder, settings: LoopSettings
    ) -> StepLoop:
        """The loop of a run of a mode that takes whole steps."""
        batcher = StepBatcher(
            steps_of_requests(self._table(rehearsal)),
            self._stream.step_rows,
            arm.max_batch,
            flush_rules(self._job, arm),
            expected=self._expected(rehearsal),
            ahead=arm.ahead,
        )
        ahead = prepared.path.ahead
        admission = ahead.admission if ahead else None
        return StepLoop(ring, batcher, prepared.submit_steps, self.feedback, recorder, settings, admission)

    def verify(self, unwritten: frozenset[str]) -> Verification:
        """Check every token, and the commands whose outputs are still there.

        unwritten: nodes of the program whose outputs stay inside fused launches.
        """
        ids = self.feedback.flights.done[: self._stream.tokens].astype(np.uint32).view(np.int32).astype(np.int64)
        job = self._job
        data = (self._stream, self._device.arenas, job.sampling, ids)
        return verify_chain(*data, job.verify_columns, job.seed, unwritten)

    def release(self) -> None:
        """Drop the second ring."""
        self._back.release()


def flush_rules(job: Job, arm: Arm) -> FlushRules:
    """When an arm's buckets leave that are not full."""
    idle_ns = None if arm.idle_us is None else int(arm.idle_us * 1e3)
    return FlushRules(int(arm.timeout_us * 1e3), idle_ns, job.on_stall, job.schedule.continuous)
