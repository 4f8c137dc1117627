"""The loop for batches of whole steps, with a driver in a thread, and devices that finish at once or after a while.

One computes, so that every token must come out right; the other only says that it did, in its own time.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from fake_lt import FakeLt
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import recorded
from numpy.typing import NDArray

from launchopt import recorder as rec
from launchopt.arrivals.requests import Requests
from launchopt.batcher import Batch, FlushReason
from launchopt.buckets import KEY_MASK
from launchopt.command import COMMAND_DTYPE, W_ELIGIBLE, W_K_OP_DTYPE, W_MN, Dtype, Flag, Records
from launchopt.devices import lt_chain as lc
from launchopt.devices.cpu_steps import CpuSteps
from launchopt.devices.pump import PumpSettings
from launchopt.devices.step_pump import StepPump
from launchopt.devices.steps import Flights, facts_of, places_needed
from launchopt.driver import REHEARSED, Driver, Schedule, Tokens
from launchopt.errors import Interrupted, RunError
from launchopt.recorder import Recorder, note
from launchopt.ring import STOP, Ring
from launchopt.sampling import Sampling, SamplingKind
from launchopt.step_batcher import StepBatch, StepBatcher, steps_of_requests
from launchopt.timing.sampling import Sampler
from launchopt.verify_chain import verify_chain
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.decode import linears as linears_of
from launchopt.workloads.model import ModelShape

TINY = linears_of(ModelShape("tiny", 64, 2, 4, 2, 16, 128))
LAYERS, VOCAB = 2, 256
PATIENCE_S = 30.0  # after which whoever is still waiting will wait forever
HOUR_NS = 3600 * 10**9
PLAIN, GREEDY = Sampling(SamplingKind.none), Sampling(SamplingKind.greedy)
NONE, CONTINUOUS = Schedule(), Schedule(continuous=True)


def stream_of(
    sizes: Sequence[tuple[int, int]], vocab: int | None = None, chunk: int | None = None, replicas: int = 2
) -> ChainStream:
    """(prompt, output) tokens of each request; all are there from the start."""
    prompts, outputs = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    requests = Requests(np.zeros(len(sizes), np.int64), prompts, outputs)
    return ChainStream(TINY, LAYERS, requests, Dtype.fp32, replicas, vocab, chunk)


def check_batch(stream: ChainStream, batch: StepBatch, flush_ns: int) -> Records:
    """One record of each request in each row; returns them [rows, size]."""
    now_ns = time.monotonic_ns()
    records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE).reshape(batch.rows, batch.size)
    assert (records["request"] == records["request"][0]).all()
    assert (np.diff(records["request"][0].astype(np.int64)) > 0).all()
    assert (records["step"] == records["step"][0] + np.arange(batch.rows)[:, None]).all()
    assert (records["flags"][-1] & Flag.STEP_END).all()
    assert not records["flags"][:-1].any()
    for name in ("m", "n", "k", "op", "dtype"):
        assert (records[name] == records[name][:, :1]).all()
    assert (batch.words[:, W_ELIGIBLE] <= flush_ns).all()
    assert (records["enqueue_ns"] <= batch.words[:, W_ELIGIBLE].astype(np.int64).reshape(records.shape)).all()
    assert (records["turn"] == records["turn"][0]).all()
    assert flush_ns <= now_ns
    return records


class Computing:
    """NumPy, row by row, through the stand-in for cuBLASLt; done when `feed_back` returns."""

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
            key = int(words[0, W_MN]), int(words[0, W_K_OP_DTYPE] & KEY_MASK)
            self._fake.submit(Batch(self._index[key], words, batch.reason), flush_ns)

    def check(self) -> None:
        """Every token, and every output that is still there."""
        ids = self.done[: self._stream.tokens].astype(np.uint32).view(np.int32).astype(np.int64)
        found = verify_chain(self._stream, self._fake.arenas, self._sampling, ids, 64, 0)
        assert found.ok, found.first_wrong

    def close(self) -> None:
        """Nothing to end."""


class Pretending:
    """A launch a batch, none of which computes; done after `delay_s`, in order, as a thread sees to."""

    def __init__(self, stream: ChainStream, recorder: Recorder, delay_s: float, never: bool = False) -> None:
        self._recorder, self._delay_s, self._never = recorder, delay_s, never
        self.done = np.zeros(places_needed(stream), np.uint64)
        self._facts = facts_of(stream, 0, 0, 0)
        self._staged = np.zeros((2, lc.DRAW + 1, stream.requests), np.uint64)
        self._queue: queue.Queue[tuple[float, NDArray[np.intp]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        recorder = self._recorder
        what = (recorder.next_batch(), 0, 0, int(batch.reason), flush_ns)
        now_ns = time.monotonic_ns()
        arrays = recorder.launches, recorder.commands, recorder.cursor
        note(*arrays, batch.words, 0, len(batch), what, now_ns, time.monotonic_ns())

    def feed_back(self, flights: Flights, count: int) -> None:
        assert flights.take_off(count, self._facts, *self._staged) == 0
        places = self._staged[1, lc.ID, :count] // np.uint64(8)
        self._queue.put((time.monotonic() + self._delay_s, places.astype(np.intp)))

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            if not self._never:
                time.sleep(max(0.0, work[0] - time.monotonic()))
                self.done[work[1]] = 0

    def check(self) -> None:
        """Nothing was computed."""

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
    """A consumer of whole steps, and a driver to go with it."""

    stream: ChainStream
    device: Computing | Pretending
    batcher: StepBatcher
    recorder: Recorder
    ring: Ring
    back: Ring
    flights: Flights
    limit: int
    pump: StepPump = field(init=False)
    batches: list[tuple[FlushReason, int, int]] = field(default_factory=list)  # why, how many requests, columns
    tokens: Tokens | None = None
    error: Exception | None = None

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        records = check_batch(self.stream, batch, flush_ns)
        assert batch.size <= self.limit
        self.batches.append((batch.reason, batch.size, int(records["n"][0, 0])))
        self.device.submit(batch, flush_ns)

    def run(self, schedule: Schedule = NONE, rehearsal: bool = False) -> None:
        """Driver and pump to the end; whatever stops the pump stops the driver too."""
        driver = Driver(self.stream, schedule, spin_us=20, sleep_us=50, rehearsal=rehearsal)

        def drive() -> None:
            try:
                self.tokens, _, _ = driver.run(self.ring, self.back)
            except Interrupted as error:
                self.error = error

        thread = threading.Thread(target=drive, daemon=True)
        watch = threading.Timer(PATIENCE_S, self.ring.set_word, (STOP, 1))
        watch.start()
        thread.start()
        try:
            self.pump.run()
        finally:
            watch.cancel()
            if thread.is_alive() and not self.ring.drained:
                self.ring.set_word(STOP, 1)
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def check(self) -> None:
        """Every command once, in the order of its request; every token right; nothing is left."""
        assert self.recorder.faults() == []
        assert self.tokens is not None
        self.device.check()
        run = recorded(self.recorder)
        order = run.commands[:, rec.REQUEST_STEP].view(np.uint64)
        for request in range(self.stream.requests):
            steps = (order & np.uint64(0xFFFF_FFFF))[order >> np.uint64(32) == request]
            assert (np.diff(steps.astype(np.int64)) == 1).all()
        assert (run.commands[:, rec.ELIGIBLE_NS] > 0).all()
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
) -> Iterator[Loop]:
    rows = int(np.diff(stream.kind_stops, prepend=0).max())
    batcher = StepBatcher(
        steps_of_requests(stream.table if table is None else table),
        rows,
        limit,
        timeout_ns,
        idle_ns=idle_ns,
        on_stall=on_stall,
        in_rounds=in_rounds,
        kinds=len(stream.kinds),
    )
    recorder = recorder or Recorder(stream.commands, rows * limit)
    wait = PumpSettings(timeout_ns, idle_ns, spin_ns, sleep_ns=20_000, pack_bytes_per_launch=0)
    made = device(stream, min(limit, stream.requests), recorder)
    with Ring.create(capacity) as ring, Ring.create(1 << stream.requests.bit_length()) as back:
        flights = Flights(stream, back, made.done)
        flights.reset()
        loop = Loop(stream, made, batcher, recorder, ring, back, flights, limit)
        follows = made.feed_back, lambda: None
        loop.pump = StepPump(ring, back, batcher, flights, loop.submit, *follows, recorder, wait)
        try:
            yield loop
        finally:
            made.close()


SIDE_BY_SIDE = [(0, 4)] * 6
MIXED = [(5, 3), (0, 4), (1, 1), (9, 2), (3, 0), (4, 5)]


def vocab_of(device: Maker) -> int | None:
    """Only one of these samples."""
    return VOCAB if device is SAMPLING else None


SAMPLING = computing(GREEDY)
devices = pytest.mark.parametrize(
    "device",
    [computing(), SAMPLING, pretending(), pretending(0.002)],
    ids=["computing", "sampling", "at once", "after a while"],
)


@devices
@pytest.mark.parametrize("sizes", [SIDE_BY_SIDE, MIXED], ids=["decode", "prompts"])
@pytest.mark.parametrize("limit", [1, 2, 64])
def test_every_step_leaves_once_and_every_token_is_right(
    sizes: list[tuple[int, int]], device: Maker, limit: int
) -> None:
    """With no deadline at all: limits and stalls alone bring everything to its end."""
    stream = stream_of(sizes, vocab_of(device), chunk=4)
    with looping(stream, limit, device) as loop:
        loop.run()
        loop.check()
    assert loop.batcher.flushes[FlushReason.deadline] == 0
    if limit == 1:
        assert {size for _, size, _ in loop.batches} == {1}
        assert loop.batcher.flushes[FlushReason.full] == len(loop.batches)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)).filter(any), min_size=1, max_size=6),
    chunk=st.none() | st.integers(1, 5),
    limit=st.integers(1, 8),
    capacity=st.sampled_from([4, 16, 4096]),
    device=st.sampled_from([computing(), SAMPLING, pretending(), pretending(0.0005)]),
)
def test_every_token_is_right_whatever_the_requests(
    sizes: list[tuple[int, int]], chunk: int | None, limit: int, capacity: int, device: Maker
) -> None:
    """Also with rings that are smaller than a step."""
    stream = stream_of(sizes, vocab_of(device), chunk)
    with looping(stream, limit, device, capacity=capacity) as loop:
        loop.run()
        loop.check()


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)).filter(any), min_size=1, max_size=6),
    chunk=st.none() | st.integers(1, 5),
    budget=st.integers(1, 16),
    most_running=st.integers(1, 6),
    limit=st.integers(1, 8),
    device=st.sampled_from([computing(), SAMPLING, pretending(0.0005)]),
)
def test_a_scheduler_that_waits_for_all_is_helped_by_deadlines(
    sizes: list[tuple[int, int]], chunk: int | None, budget: int, most_running: int, limit: int, device: Maker
) -> None:
    stream = stream_of(sizes, vocab_of(device), chunk)
    with looping(stream, limit, device, timeout_ns=300_000) as loop:
        loop.run(Schedule(True, budget, most_running))
        loop.check()


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)).filter(any), min_size=1, max_size=6),
    chunk=st.none() | st.integers(1, 5),
    budget=st.integers(1, 16),
    most_running=st.integers(1, 6),
    limit=st.integers(1, 8),
    device=st.sampled_from([computing(), SAMPLING, pretending(), pretending(0.0005)]),
)
def test_rounds_need_no_deadline(
    sizes: list[tuple[int, int]], chunk: int | None, budget: int, most_running: int, limit: int, device: Maker
) -> None:
    """Each leaves as soon as its last record has come, whoever was left out of it and however small the limit."""
    stream = stream_of(sizes, vocab_of(device), chunk)
    with looping(stream, limit, device, in_rounds=True) as loop:
        loop.run(Schedule(True, budget, most_running))
        loop.check()
    assert loop.batcher.flushes[FlushReason.deadline] == 0


@pytest.mark.parametrize("device", [computing(), pretending(0.001)], ids=["computing", "after a while"])
def test_a_round_leaves_whole_from_the_first_on(device: Maker) -> None:
    with looping(stream_of([(4, 3)] * 6), 64, device, in_rounds=True) as loop:
        loop.run(CONTINUOUS)
        loop.check()
    assert [(size, columns) for _, size, columns in loop.batches] == [(6, 4), (6, 1), (6, 1)]


@devices
@pytest.mark.parametrize("schedule", [NONE, CONTINUOUS], ids=["none", "continuous"])
def test_requests_in_step_are_one_batch_a_step(device: Maker, schedule: Schedule) -> None:
    stream = stream_of(SIDE_BY_SIDE, vocab_of(device))
    with looping(stream, 64, device, on_stall=False) as loop:
        loop.run(schedule)
        loop.check()
    assert loop.batches == [(FlushReason.full, 6, 1)] * 4


@devices
def test_who_is_left_goes_on_without_those_that_are_finished(device: Maker) -> None:
    """Once three have taken their first step together; the last of them alone is a stall each time."""
    stream = stream_of([(0, 1), (0, 2), (0, 5)], vocab_of(device))
    with looping(stream, 64, device) as loop:
        loop.run()
        loop.check()
    assert loop.batches[-3:] == [(FlushReason.stall, 1, 1)] * 3
    assert {reason for reason, _, _ in loop.batches} <= {FlushReason.full, FlushReason.stall}


@pytest.mark.parametrize("device", [computing(), pretending(0.001)], ids=["computing", "after a while"])
@pytest.mark.parametrize("timeout_ns", [0, 500_000])
def test_without_stalls_steps_wait_for_their_deadline(device: Maker, timeout_ns: int) -> None:
    stream = stream_of([(0, 1), (0, 4)])
    with looping(stream, 64, device, timeout_ns, on_stall=False) as loop:
        loop.run()
        loop.check()
        run = recorded(loop.recorder)
    assert loop.batches[-3:] == [(FlushReason.deadline, 1, 1)] * 3
    late = run.launches[run.of_launch, rec.REASON] == FlushReason.deadline
    waited_ns = run.launches[run.of_launch, rec.FLUSH_NS] - run.commands[:, rec.ELIGIBLE_NS]
    assert (waited_ns[late] >= timeout_ns).all()


@pytest.mark.parametrize("idle_ns", [0, 200_000])
def test_steps_leave_when_nothing_has_come_for_long(idle_ns: int) -> None:
    stream = stream_of([(0, 1), (0, 4)])
    with looping(stream, 64, idle_ns=idle_ns, on_stall=False) as loop:
        loop.run()
        loop.check()
    assert loop.batches[-3:] == [(FlushReason.idle, 1, 1)] * 3


def test_a_rehearsal_counts_the_steps_that_it_drives() -> None:
    """Of requests with many steps it drives two: who is finished by its table is not waited for."""
    stream = stream_of([(0, 9), (0, 1), *[(0, 9)] * REHEARSED])
    short = Driver(stream, NONE, 20, 50, rehearsal=True)._static[1]
    with looping(stream, 64, table=short) as loop:
        loop.run(rehearsal=True)
        loop.check_empty()
    assert sum(size for _, size, _ in loop.batches) == 2 * REHEARSED - 1
    assert loop.batcher.flushes[FlushReason.deadline] == 0


def test_no_row_is_lost_where_buffers_hold_just_what_they_must() -> None:
    stream, limit = stream_of([(3, 9)] * 7, chunk=2), 4
    recorder = Recorder(stream.commands, limit * len(TINY) * LAYERS, least_rows=2)
    with looping(stream, limit, recorder=recorder, capacity=16) as loop:
        loop.run()
        assert recorder.cursor[rec.SPOOLED_COMMANDS] > 0, "the buffers were large enough for all: a test of nothing"
        loop.check()


def test_a_stop_ends_the_loop() -> None:
    with looping(stream_of(SIDE_BY_SIDE)) as loop:
        loop.ring.set_word(STOP, 1)
        with pytest.raises(Interrupted, match="stopped by the parent"):
            loop.run()
        assert isinstance(loop.error, Interrupted)


def test_a_stop_is_noticed_while_a_step_is_under_way_on_the_device() -> None:
    with looping(stream_of([(0, 2)]), device=pretending(never=True)) as loop:
        threading.Timer(0.05, loop.ring.set_word, (STOP, 1)).start()
        with pytest.raises(Interrupted):
            loop.run()
    assert loop.flights.count == 1


def lost() -> None:
    raise RunError("the device is lost")


@pytest.mark.parametrize("spin_ns", [20_000, HOUR_NS], ids=["naps", "only spins"])
@pytest.mark.parametrize("outputs", [1, 2], ids=["ring closed", "ring open"])
def test_a_device_that_is_lost_while_a_step_is_under_way_ends_the_loop(outputs: int, spin_ns: int) -> None:
    with looping(stream_of([(0, outputs)]), device=pretending(never=True), spin_ns=spin_ns) as loop:
        loop.pump._check_alive = lost
        with pytest.raises(RunError, match="the device is lost"):
            loop.run()
    assert loop.flights.count == 1


def test_steps_that_take_long_are_waited_for() -> None:
    """Each until the device was asked after it."""
    with looping(stream_of([(0, 2)]), device=pretending(never=True)) as loop:
        asked = [0]

        def finish() -> None:
            asked[0] += 1
            _, places, done, cursor = loop.flights.arrays
            done[places[cursor[lc.FIRST] & (len(places) - 1)]] = 0

        loop.pump._check_alive = finish
        loop.run()
        loop.check()
    assert asked == [2]


def test_a_device_that_fails_ends_the_loop() -> None:
    with looping(stream_of(SIDE_BY_SIDE)) as loop:

        def fail(batch: StepBatch, flush_ns: int) -> None:
            raise RunError("launch failed")

        loop.pump._submit = fail
        with pytest.raises(RunError, match="launch failed"):
            loop.run()


def push(loop: Loop, records: Records) -> None:
    assert loop.ring.push(records) == len(records)
    loop.ring.close()


def test_a_record_that_was_not_announced_is_named() -> None:
    with looping(stream_of([(0, 2)])) as loop:
        strange: Records = np.zeros(3, COMMAND_DTYPE)
        strange["seq"], strange["request"] = [40, 41, 42], [0, 9, 0]
        push(loop, strange)
        with pytest.raises(RunError, match=r"^command 41 is of request 9, which"):
            loop.pump.run()


def test_a_step_that_never_ends_is_told_of() -> None:
    with looping(stream_of([(0, 2)])) as loop:
        push(loop, np.zeros(1, COMMAND_DTYPE))
        with pytest.raises(RunError, match="1 steps were never asked for to their end"):
            loop.pump.run()


def test_what_is_held_when_the_ring_is_drained_leaves() -> None:
    with looping(stream_of([(0, 1), (0, 1)]), device=pretending(0.001), on_stall=False) as loop:
        records = loop.stream.template[: len(TINY) * LAYERS].copy()
        push(loop, records)
        loop.pump.run()
    assert loop.batches == [(FlushReason.drain, 1, 1)]
    assert (loop.batcher.held, loop.batcher.live, loop.flights.count) == (0, 0, 0)
