"""The consumer's part for workloads of requests: order, feedback at the end of steps, and checks."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import WHOLE, WHOLE_STEPS, FlushRules
from launchopt.batching.order import OrderArrays, order_arrays
from launchopt.batching.step_batcher import StepBatcher, steps_of_requests
from launchopt.command import COMMAND_DTYPE
from launchopt.devices.base import Device
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.feedback.landing import NOT_YET
from launchopt.devices.loops.runner import Feedback, LoopSettings
from launchopt.devices.loops.steps import StepLoop
from launchopt.modes import mode_class
from launchopt.modes.base import Prepared
from launchopt.producing.driver import AUDITED_TOKENS, table_of
from launchopt.producing.production import RunKind, at_start
from launchopt.queue.ring import Ring
from launchopt.recording.recorder import Recorder
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.experts.stream import ExpertStream
from launchopt.types import Words
from launchopt.verify.chains.audit import Audit, Audited
from launchopt.verify.chains.inputs import ids_of
from launchopt.verify.chains.tokens import verify_chain
from launchopt.verify.commands import CheckSettings, Verification
from launchopt.verify.hashes import Hashes
from runner.plan.job import Arm, Job

NO_TIMEOUT_NS = 1 << 61


class Chains:
    """Order, feedback and checks of one job, and the back ring, which notifies the driver of complete steps.

    A run begins with `start` and ends with `ended`; the other methods belong to the run under way or the latest one.
    """

    def __init__(self, job: Job, stream: ChainStream, device: Device) -> None:
        self._job, self._stream, self._device = job, stream, device
        self._back = Ring.attach(job.back_name, job.back_capacity)
        flights = device.open_steps(stream, job.sampling, job.samples_on_host, self._back)
        self._plain = self.feedback = Feedback(flights, device.feed_back, device.check_alive)
        self._audits: dict[int, Audited] = {}  # by arm
        self._outputs: dict[int, Words] = {}  # of the audit run of each arm
        self._audit_own: dict[int, NDArray[np.int64]] = {}  # requests of that run that this consumer had
        self._table = stream.table
        self._audit: Audit | None = None
        self.hashing = Hashes(device.arenas.xp, job.seed)

    def start(self, kind: RunKind, unwritten: frozenset[str], settings: CheckSettings) -> None:
        """Begin a run. unwritten, settings: as in `verify`."""
        self._table = table_of(self._stream, kind)
        self._plain.flights.reset()
        if self._device.split is not None:
            self._device.split.reset()
        self.feedback, self._audit = self._plain, None
        if kind is RunKind.AUDIT:
            done = self._plain.flights.done
            audit = Audit(self._stream, self._device.arenas, self._table, done, settings, unwritten)
            feed_back = partial(self._check_and_feed_back, audit)
            self._audit = audit
            self.feedback = Feedback(self._plain.flights, feed_back, self._device.check_alive)

    def _check_and_feed_back(self, audit: Audit, flights: Flights, count: int) -> None:
        """Feed back the results of steps, wait until that is done, and check the outputs of the steps."""
        self._device.feed_back(flights, count)
        requests = flights.ended[:count].reshape(-1).view(COMMAND_DTYPE)["request"].astype(np.int64)
        if count:
            with self._device.settled():
                audit.steps_ended(requests)

    def ended(self, arm: int) -> None:
        """End a run of the arm with this index."""
        if self._audit:
            tokens = min(AUDITED_TOKENS, int(self._stream.outputs[: len(self._table)].sum()))
            self._audits[arm], self._outputs[arm] = self._audit.result(), self._last_outputs(tokens)
            self._audit_own[arm] = self.own()

    def audited(self, arm: int) -> Audited | None:
        """Return what the audit run of an arm found; None: there was no audit run."""
        return self._audits.get(arm)

    def own(self) -> NDArray[np.int64]:
        """Return the requests of the latest run that this consumer has generated tokens of."""
        done = self._plain.flights.done[: self._stream.tokens] != NOT_YET
        first = self._stream.table[:, ChainColumn.FIRST_TOKEN]
        return np.flatnonzero(np.logical_or.reduceat(done, first))

    def as_audited(self, arm: int) -> float | None:
        """Return the share of the tokens of an arm's audit run that are the same in the latest run. None: it had none.

        A token is the same if its id is; without sampling, if every bit of the last layer's output is.
        """
        before = self._outputs[arm]
        is_same: NDArray[np.bool_] = (self._last_outputs(len(before)) == before).reshape(len(before), -1).all(axis=1)
        if self._job.consumers > 1:  # the other tokens belong to other consumers
            requests = np.repeat(np.arange(self._stream.requests), self._stream.outputs)[: len(before)]
            is_same = is_same[np.isin(requests, np.intersect1d(self.own(), self._audit_own[arm]))]
        return float(is_same.mean()) if len(is_same) else None

    def _last_outputs(self, count: int) -> Words:
        """Return the ids of the first `count` tokens; without sampling, hashes of their last layer's outputs."""
        if self._stream.vocab is not None:
            return self._plain.flights.done[:count].copy()
        history = self._device.arenas.arrays[self._stream.history][:count]
        hashes: Words = self.hashing.of_rows(history)
        return hashes

    def _expected(self) -> NDArray[np.bool_] | None:
        """Return which requests are due at the start, bool [requests]; None if the continuous scheduler admits them."""
        if self._job.schedule.continuous:
            return None
        table = self._table
        at_once: NDArray[np.bool_] = (table[:, ChainColumn.DUE_NS] == 0) & (table[:, ChainColumn.AFTER] < 0)
        if self._job.consumers > 1:
            others = at_start(int(np.count_nonzero(at_once)), self._job.consumers) != self._job.consumer
            at_once[np.flatnonzero(at_once)[others]] = False
        return at_once

    def order(self) -> OrderArrays:
        """Return the arrays that keep the commands of each request of a run in order."""
        steps = None if self._job.schedule.continuous else steps_of_requests(self._table)
        expected = self._expected()
        return order_arrays(self._stream.requests, violated=self._job.violated, expected=expected, steps=steps)

    def step_loop(
        self, arm: Arm, ring: Ring, prepared: Prepared, recorder: Recorder, settings: LoopSettings
    ) -> StepLoop:
        """Return the loop of a run for a mode that takes whole steps."""
        batcher = StepBatcher(
            steps_of_requests(self._table),
            self._stream.most_rows(arm.together),
            arm.max_batch,
            flush_rules(self._job, arm),
            expected=self._expected(),
            ahead=arm.ahead,
        )
        ahead = prepared.path.ahead
        admission = ahead.admission if ahead else None
        return StepLoop(ring, batcher, prepared.submit_steps, self.feedback, recorder, settings, admission)

    def verify(self, unwritten: frozenset[str], settings: CheckSettings) -> Verification:
        """Check every token, and all commands whose outputs were not overwritten by a later step.

        unwritten: nodes of the program whose outputs stay inside fused launches.
        """
        ids, own = self.ids(), self.own() if self._job.consumers > 1 else None
        sampling, split = self._job.sampling, self._device.split
        shares = None if split is None else split.shares
        return verify_chain(self._stream, self._device.arenas, sampling, ids, settings, unwritten, own, shares)

    def ids(self) -> NDArray[np.int64]:
        """Return the id of each token of the latest run."""
        return ids_of(self.feedback.flights.done[: self._stream.tokens])

    def release(self) -> None:
        """Detach from the back ring, and from devices that split the model. The device must be closed."""
        if self._device.split is not None:
            self._device.split.close()
        self._back.release()


def flush_rules(job: Job, arm: Arm) -> FlushRules:
    """Return the rules by which an arm's buckets are flushed before they are full."""
    if mode_class(arm.mode, arm.options).whole_pass(job.stream):
        return WHOLE_STEPS if isinstance(job.stream, ExpertStream) else WHOLE
    idle_ns = None if arm.idle_us is None else int(arm.idle_us * 1e3)
    timeout_ns, groups = int(arm.timeout_us * 1e3), job.stream.has_groups
    if job.is_split:  # every GPU must form the same batches, so time decides nothing
        timeout_ns, idle_ns = NO_TIMEOUT_NS, None
    return FlushRules(timeout_ns, idle_ns, job.on_stall, job.schedule.continuous, groups)
