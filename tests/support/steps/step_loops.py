"""Loops for batches of whole steps, each with a driver in a thread, on devices that compute or only pretend to."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.requests import Requests
from launchopt.batching.batch import Batch, FlushReason, FlushRules, StepBatch
from launchopt.batching.step_batcher import StepBatcher, steps_of_requests
from launchopt.command import COMMAND_DTYPE, Dtype, Flag, Records, RecordWord
from launchopt.devices.feedback.cpu import CpuSteps
from launchopt.devices.feedback.flights import Flights, facts_of, places_needed
from launchopt.devices.feedback.landing import StagedRow
from launchopt.devices.feedback.stages import STAGES, WORDS, FeedbackStages
from launchopt.devices.loops.admission import Admission
from launchopt.devices.loops.runner import Feedback, LoopSettings
from launchopt.devices.loops.steps import StepLoop
from launchopt.devices.steps.keys import StepKeys
from launchopt.errors import Interrupted
from launchopt.producing.driver import Driver
from launchopt.producing.production import RunKind, Schedule, Tokens
from launchopt.queue.ring import Ring
from launchopt.recording.launch_rows import CommandColumn
from launchopt.recording.recorder import Recorder
from launchopt.records import SHAPE_MASK
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.model import ModelShape
from launchopt.timing.sampling import Sampler
from launchopt.verify.chains.tokens import verify_chain
from launchopt.verify.commands import CheckSettings
from support.cuda.fake_lt import FakeLt
from support.steps.driving import PATIENCE_S, run_beside
from support.steps.launching import recorded

TINY = ModelShape("tiny", 64, 2, 4, 2, 16, 128).linear_sizes()
LAYERS, VOCAB = 2, 256
HOUR_NS = 3600 * 10**9
PLAIN, GREEDY = Sampling(SamplingKind.none), Sampling(SamplingKind.greedy)
NONE, CONTINUOUS, AHEAD = Schedule(), Schedule(continuous=True), Schedule(ahead=True)


def stream_of(
    sizes: Sequence[tuple[int, int]], vocab: int | None = None, chunk: int | None = None, replicas: int = 2
) -> ChainStream:
    """Return a stream of requests that are all due at the start. sizes: (prompt, output) tokens of each request."""
    prompts, outputs = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    requests = Requests(np.zeros(len(sizes), np.int64), prompts, outputs)
    return ChainStream(TINY, LAYERS, requests, Dtype.fp32, replicas, ChainSettings(vocab, chunk))


def check_batch(stream: ChainStream, batch: StepBatch, flush_ns: int) -> Records:
    """Check that each row has one record per request, and return the records, [rows, size]."""
    now_ns = time.monotonic_ns()
    records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE).reshape(batch.rows, batch.size)
    assert (records["request"] == records["request"][0]).all()
    assert (np.diff(records["request"][0].astype(np.int64)) > 0).all()
    assert (records["step"] == records["step"][0] + np.arange(batch.rows)[:, None]).all()
    assert (records["flags"][-1] & Flag.STEP_END).all()
    assert not records["flags"][:-1].any()
    for name in ("m", "n", "k", "op", "dtype"):
        assert (records[name] == records[name][:, :1]).all()
    assert (batch.words[:, RecordWord.ELIGIBLE_NS] <= flush_ns).all()
    assert (
        records["enqueue_ns"] <= batch.words[:, RecordWord.ELIGIBLE_NS].astype(np.int64).reshape(records.shape)
    ).all()
    assert (records["turn"] == records["turn"][0]).all()
    assert flush_ns <= now_ns
    return records


class Computing:
    """A device that computes with NumPy, row by row, through a fake cuBLASLt. `feed_back` completes the steps."""

    def __init__(self, stream: ChainStream, limit: int, sampling: Sampling, recorder: Recorder) -> None:
        self._fake = FakeLt(stream, dict.fromkeys(stream.shapes, limit), None, recorder)
        self._fake.sampler = Sampler(0)
        self._steps = CpuSteps(stream, self._fake.arenas, sampling)
        self._stream, self._sampling, self.done = stream, sampling, self._steps.done
        self._index = {shape.packed: index for index, shape in enumerate(stream.shapes)}
        self.feed_back = self._steps.feed_back

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        for row in range(batch.rows):
            words = batch.words[row * batch.size : (row + 1) * batch.size]
            key = int(words[0, RecordWord.MN]), int(words[0, RecordWord.K_OP_DTYPE] & SHAPE_MASK)
            self._fake.submit(Batch(self._index[key], words, batch.reason), flush_ns)

    def check(self) -> None:
        """Check every token, and every output that no later step has overwritten."""
        ids = self.done[: self._stream.tokens].astype(np.uint32).view(np.int32).astype(np.int64)
        found = verify_chain(self._stream, self._fake.arenas, self._sampling, ids, CheckSettings(64))
        assert found.ok, found.first_wrong

    def close(self) -> None:
        """Do nothing: there is no thread to end."""


class Pretending:
    """A device that records a launch per batch and computes nothing. A thread completes steps after `delay_s`.

    never: steps are never complete.
    """

    def __init__(self, stream: ChainStream, recorder: Recorder, delay_s: float, never: bool = False) -> None:
        self._recorder, self._delay_s, self._never = recorder, delay_s, never
        self.done = np.zeros(places_needed(stream), np.uint64)
        self._facts = facts_of(stream, 0, 0, 0)
        self._staged = np.zeros((2, len(StagedRow), stream.requests), np.uint64)
        self._queue: queue.Queue[tuple[float, NDArray[np.intp]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        recorder = self._recorder
        what = (recorder.next_batch(), 0, 0, int(batch.reason), flush_ns)
        now_ns = time.monotonic_ns()
        recorder.note(batch.words, slice(0, len(batch)), what, now_ns, time.monotonic_ns())

    def feed_back(self, flights: Flights, count: int) -> None:
        assert flights.take_off(count, self._facts, *self._staged) == 0
        places = self._staged[1, StagedRow.ID, :count] // np.uint64(8)
        self._queue.put((time.monotonic() + self._delay_s, places.astype(np.intp)))

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            if not self._never:
                time.sleep(max(0.0, work[0] - time.monotonic()))
                self.done[work[1]] = 0

    def check(self) -> None:
        """Do nothing: no output was computed."""

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


Maker = Callable[[ChainStream, int, Recorder], Computing | Pretending]


def computing(sampling: Sampling = PLAIN) -> Maker:
    return lambda stream, limit, recorder: Computing(stream, limit, sampling, recorder)


def pretending(delay_s: float = 0.0, never: bool = False) -> Maker:
    return lambda stream, limit, recorder: Pretending(stream, recorder, delay_s, never)


@dataclass
class Loop:
    """A consumer of whole steps, and a driver.

    admission: None, or the admission of launches that wait for a batch like the last one, and give up before it comes.
    """

    stream: ChainStream
    device: Computing | Pretending
    batcher: StepBatcher
    recorder: Recorder
    ring: Ring
    back: Ring
    flights: Flights
    limit: int
    admission: Admission | None
    pump: StepLoop = field(init=False)
    batches: list[tuple[FlushReason, int, int]] = field(default_factory=list)  # reason of the flush, requests, columns
    tokens: Tokens | None = None
    error: Exception | None = None

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        records = check_batch(self.stream, batch, flush_ns)
        assert batch.size <= self.limit
        self.batches.append((batch.reason, batch.size, int(records["n"][0, 0])))
        self.device.submit(batch, flush_ns)
        if self.admission is not None:
            self.admission.expect(StepKeys(lambda batch: 0).known(batch), place=0, tag=1, until_ns=0)

    def run(self, schedule: Schedule = NONE, kind: RunKind = RunKind.RUN) -> None:
        """Run driver and loop to the end. An error of the loop also stops the driver."""
        driver = Driver(self.stream, schedule, spin_us=20, sleep_us=50, kind=kind)

        def drive() -> None:
            try:
                self.tokens, _, _ = driver.run(self.ring, self.back)
            except Interrupted as error:
                self.error = error

        run_beside(drive, self.pump.run, self.ring)

    def check(self) -> None:
        """Check that each command ran once, in its request's order, that tokens are right, and that nothing is left."""
        assert self.recorder.faults() == []
        assert self.tokens is not None
        self.device.check()
        run = recorded(self.recorder)
        order = run.commands[:, CommandColumn.REQUEST_STEP].view(np.uint64)
        for request in range(self.stream.requests):
            steps = (order & np.uint64(0xFFFF_FFFF))[order >> np.uint64(32) == request]
            assert (np.diff(steps.astype(np.int64)) == 1).all()
        assert (run.commands[:, CommandColumn.ELIGIBLE_NS] > 0).all()
        self.check_empty()
        assert sum(size for _, size, _ in self.batches) == steps_of_requests(self.stream.table).sum()

    def check_empty(self) -> None:
        assert (self.batcher.held, self.batcher.live, self.batcher.partial, self.flights.count) == (0, 0, 0, 0)
        reasons = [reason for reason, _, _ in self.batches]
        assert self.batcher.flushes == [reasons.count(reason) for reason in FlushReason]


@contextmanager
def looping(
    stream: ChainStream,
    limit: int = 64,
    device: Maker = computing(),  # noqa: B008
    timeout_ns: int = HOUR_NS,
    idle_ns: int | None = None,
    on_stall: bool = True,
    in_rounds: bool = False,
    capacity: int = 4096,
    recorder: Recorder | None = None,
    table: NDArray[np.int64] | None = None,
    spin_ns: int = 20_000,
    ahead: bool = False,
    expecting: bool = False,
) -> Iterator[Loop]:
    rows = int(np.diff(stream.kind_stops, prepend=0).max())
    batcher = StepBatcher(
        steps_of_requests(stream.table if table is None else table),
        rows,
        limit,
        FlushRules(timeout_ns, idle_ns, on_stall, in_rounds),
        kinds=len(stream.kinds),
        ahead=ahead,
    )
    recorder = recorder or Recorder(stream.commands, rows * limit)
    wait = LoopSettings(spin_ns, sleep_ns=20_000)
    made = device(stream, min(limit, stream.requests), recorder)
    with Ring.create(capacity) as ring, Ring.create(1 << stream.requests.bit_length()) as back:
        flights = Flights(stream, back, made.done)
        flights.reset()
        admission = _admission(stream, flights, rows) if expecting else None
        loop = Loop(stream, made, batcher, recorder, ring, back, flights, limit, admission)
        feedback = Feedback(flights, made.feed_back, lambda: None)
        loop.pump = StepLoop(ring, batcher, loop.submit, feedback, recorder, wait, admission)
        try:
            yield loop
        finally:
            made.close()


def _admission(stream: ChainStream, flights: Flights, rows: int) -> Admission:
    staged = np.zeros((STAGES, WORDS, stream.requests), np.uint64)
    stages = FeedbackStages(flights, stream.table, facts_of(stream, 0, 0, 0), staged, lambda: None)
    return Admission(np.zeros(1, np.uint64), stages, rows + 2 * stream.requests)
