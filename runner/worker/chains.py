"""The consumer's part for workloads of requests: order, feedback at the end of steps, and the check of the tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import FlushRules
from launchopt.batching.order import OrderArrays, order_arrays
from launchopt.batching.step_batcher import StepBatcher, steps_of_requests
from launchopt.devices.base import Device
from launchopt.devices.loops.runner import Feedback, LoopSettings
from launchopt.devices.loops.steps import StepLoop
from launchopt.modes.base import Prepared
from launchopt.producing.driver import shortened
from launchopt.queue.ring import Ring
from launchopt.recording.recorder import Recorder
from launchopt.streams.chain import ChainStream
from launchopt.streams.chain_table import ChainColumn
from launchopt.types import Table
from launchopt.verify.commands import CheckSettings, Verification
from launchopt.verify.tokens import verify_chain
from runner.plan.job import Arm, Job


class Chains:
    """Order, feedback and check of one job, and the back ring, which notifies the driver of complete steps.

    Parameter `warm_up` of its methods: whether the run is a warm-up run, in which requests are shorter.
    """

    def __init__(self, job: Job, stream: ChainStream, device: Device) -> None:
        self._job, self._stream, self._device = job, stream, device
        self._back = Ring.attach(job.back_name, job.back_capacity)
        flights = device.open_steps(stream, job.sampling, job.samples_on_host, self._back)
        self.feedback = Feedback(flights, device.feed_back, device.check_alive)

    def _table(self, warm_up: bool) -> Table:
        """Return the table of requests of a run: int64 [requests, ChainColumn]."""
        return shortened(self._stream.table) if warm_up else self._stream.table

    def _expected(self, warm_up: bool) -> NDArray[np.bool_] | None:
        """Return which requests are due at the start, bool [requests]; None if the continuous scheduler admits them."""
        if self._job.schedule.continuous:
            return None
        table = self._table(warm_up)
        at_once: NDArray[np.bool_] = (table[:, ChainColumn.DUE_NS] == 0) & (table[:, ChainColumn.AFTER] < 0)
        return at_once

    def order(self, warm_up: bool) -> OrderArrays:
        """Return the arrays that keep the commands of each request of a run in order."""
        steps = None if self._job.schedule.continuous else steps_of_requests(self._table(warm_up))
        expected = self._expected(warm_up)
        return order_arrays(self._stream.requests, violated=self._job.violated, expected=expected, steps=steps)

    def step_loop(
        self, arm: Arm, warm_up: bool, ring: Ring, prepared: Prepared, recorder: Recorder, settings: LoopSettings
    ) -> StepLoop:
        """Return the loop of a run for a mode that takes whole steps."""
        batcher = StepBatcher(
            steps_of_requests(self._table(warm_up)),
            self._stream.step_rows,
            arm.max_batch,
            flush_rules(self._job, arm),
            expected=self._expected(warm_up),
            ahead=arm.ahead,
        )
        ahead = prepared.path.ahead
        admission = ahead.admission if ahead else None
        return StepLoop(ring, batcher, prepared.submit_steps, self.feedback, recorder, settings, admission)

    def verify(self, unwritten: frozenset[str], settings: CheckSettings) -> Verification:
        """Check every token, and all commands whose outputs were not overwritten by a later step.

        unwritten: nodes of the program whose outputs stay inside fused launches.
        """
        ids = self.feedback.flights.done[: self._stream.tokens].astype(np.uint32).view(np.int32).astype(np.int64)
        return verify_chain(self._stream, self._device.arenas, self._job.sampling, ids, settings, unwritten)

    def release(self) -> None:
        """Detach from the back ring."""
        self._back.release()


def flush_rules(job: Job, arm: Arm) -> FlushRules:
    """Return the rules by which an arm's buckets are flushed before they are full."""
    idle_ns = None if arm.idle_us is None else int(arm.idle_us * 1e3)
    return FlushRules(int(arm.timeout_us * 1e3), idle_ns, job.on_stall, job.schedule.continuous)
