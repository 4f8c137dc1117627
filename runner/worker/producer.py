"""The two producers: `CommandProducer` pushes independent commands, `StepProducer` issues the steps of requests.

`produce` is one run. `prepare` makes the next run ready, outside the timed region.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import chain, islice
from types import TracebackType

import numpy as np

from launchopt.producing.blocks import produce, production_of
from launchopt.producing.driver import Driver, load_loop
from launchopt.producing.driver_group import DriverGroup
from launchopt.producing.production import Production, RunKind
from launchopt.producing.routing import produce_routed
from launchopt.producing.split_driver import SplitDriver
from launchopt.queue.ring import Ring
from launchopt.queue.waiter import Waiter
from launchopt.streams.chains.chain import chain_of
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.stream import Block, commands_of
from runner.plan.job import Arm, Job

WARM_UP_COMMANDS = 64  # enough to load every compiled loop of the path
READY_BLOCKS = 256  # blocks that are made before the clock starts: 64 MiB of records


class Producer:
    """A producer of one job. A context manager: its exit detaches from the rings. Subclasses define `produce`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rings = [Ring.attach(name, job.capacity) for name, _ in job.all_rings or ((job.ring_name, ""),)]
        self._ring = self._rings[0]
        self._ring.await_free_slots(0)  # loads the compiled loop, since a warm-up run may never wait for a free slot

    def prepare(self) -> None:
        """Make the next run ready."""

    def produce(self, arm: Arm, kind: RunKind = RunKind.RUN) -> Production:
        """Produce the commands of a run of `arm`."""
        raise NotImplementedError

    def timed(self, arm: Arm, kind: RunKind) -> Production:
        """Produce as `produce` does, and measure the CPU time of this thread."""
        began_ns = time.thread_time_ns()
        produced = self.produce(arm, kind)
        return replace(produced, cpu_ns=time.thread_time_ns() - began_ns)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ring in self._rings:
            ring.release()


class CommandProducer(Producer):
    """Pushes independent commands."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._stream = commands_of(job.stream)
        self._waiters = [Waiter(ring.await_free_slots, job.spin_us, job.sleep_us) for ring in self._rings]
        self.prepare()

    def prepare(self) -> None:
        """Make the first blocks of the next run."""
        self._blocks = self._stream.blocks()
        self._ready = list(islice(self._blocks, READY_BLOCKS))

    def produce(self, arm: Arm, kind: RunKind = RunKind.RUN) -> Production:
        """Push all commands, or the first ones for a warm-up run. All arms get the same commands."""
        blocks = [self._first()] if kind is RunKind.WARM_UP else chain(self._ready, self._blocks)
        if len(self._rings) > 1:
            return produce_routed(blocks, self._rings, self._waiters, self._job.routing, arm.max_batch)
        return produce(blocks, self._ring, self._waiters[0])

    def _first(self) -> Block:
        """Return a copy of the first commands, all due at once."""
        first = self._ready[0]
        records = first.records[:WARM_UP_COMMANDS].copy()
        return Block(records, None if first.due_ns is None else np.zeros(len(records), np.int64))


class StepProducer(Producer):
    """Issues the steps of requests."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._stream = chain_of(job.stream)
        self._open_loop = bool(self._stream.table[:, ChainColumn.DUE_NS].any())
        self._backs = [Ring.attach(name, job.back_capacity) for _, name in job.all_rings or (("", job.back_name),)]
        load_loop(self._stream, self._ring, self._backs[0])  # while the consumer loads its own

    def produce(self, arm: Arm, kind: RunKind = RunKind.RUN) -> Production:
        """Issue the steps of every request of the run."""
        job = self._job
        together = 1 if kind is RunKind.AUDIT else arm.together  # an audit run checks the outputs of every step
        schedule = replace(job.schedule, ahead=arm.ahead, together=together)
        settings = (self._stream, schedule, job.spin_us, job.sleep_us, kind)
        if job.is_split:
            return production_of(SplitDriver(*settings).run(self._rings, self._backs), self._open_loop)
        if len(self._rings) > 1:
            return production_of(DriverGroup(*settings, job.routing).run(self._rings, self._backs), self._open_loop)
        return production_of(Driver(*settings).run(self._ring, self._backs[0]), self._open_loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for back in self._backs:
            back.release()
        super().__exit__(kind, error, trace)


def open_producer(job: Job) -> Producer:
    """Return the producer of the job's stream."""
    return StepProducer(job) if job.stream.has_steps else CommandProducer(job)
