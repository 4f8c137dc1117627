"""The two producers: `CommandProducer` pushes independent commands, `StepProducer` issues the steps of requests.

`produce` is one run. `prepare` makes the next run ready, outside the timed region.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice
from types import TracebackType

import numpy as np

from launchopt.producing.blocks import drive, produce
from launchopt.producing.driver import Driver
from launchopt.producing.production import Production, RunKind
from launchopt.queue.ring import Ring
from launchopt.queue.waiter import Waiter
from launchopt.streams.chain import chain_of
from launchopt.streams.chain_table import ChainColumn
from launchopt.streams.stream import Block, commands_of
from runner.plan.job import Arm, Job

WARM_UP_COMMANDS = 64  # enough to load every compiled loop of the path
READY_BLOCKS = 256  # blocks that are made before the clock starts: 64 MiB of records


class Producer:
    """A producer of one job. A context manager: its exit detaches from the rings. Subclasses define `produce`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ring = Ring.attach(job.ring_name, job.capacity)
        self._ring.await_free_slots(0)  # loads the compiled loop, since a warm-up run may never wait for a free slot

    def prepare(self) -> None:
        """Make the next run ready."""

    def produce(self, arm: Arm, kind: RunKind = RunKind.RUN) -> Production:
        """Produce the commands of a run of `arm`."""
        raise NotImplementedError

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ring.release()


class CommandProducer(Producer):
    """Pushes independent commands."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._stream = commands_of(job.stream)
        self._waiter = Waiter(self._ring.await_free_slots, job.spin_us, job.sleep_us)
        self.prepare()

    def prepare(self) -> None:
        """Make the first blocks of the next run."""
        self._blocks = self._stream.blocks()
        self._ready = list(islice(self._blocks, READY_BLOCKS))

    def produce(self, arm: Arm, kind: RunKind = RunKind.RUN) -> Production:
        """Push all commands, or the first ones for a warm-up run. All arms get the same commands."""
        blocks = [self._first()] if kind is RunKind.WARM_UP else chain(self._ready, self._blocks)
        return produce(blocks, self._ring, self._waiter)

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
        self._back = Ring.attach(job.back_name, job.back_capacity)

    def produce(self, arm: Arm, kind: RunKind = RunKind.RUN) -> Production:
        """Issue the steps of every request of the run."""
        job = self._job
        together = 1 if kind is RunKind.AUDIT else arm.together  # an audit run checks the outputs of every step
        schedule = replace(job.schedule, ahead=arm.ahead, together=together)
        driver = Driver(self._stream, schedule, job.spin_us, job.sleep_us, kind)
        return drive(driver, self._ring, self._back, self._open_loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._back.release()
        super().__exit__(kind, error, trace)


def open_producer(job: Job) -> Producer:
    """Return the producer of the job's stream."""
    return StepProducer(job) if job.stream.has_steps else CommandProducer(job)
