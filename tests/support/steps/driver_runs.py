"""A driver in a thread, and a fake consumer that checks the order of steps and ends them at random times."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from launchopt.arrivals.requests import Requests
from launchopt.command import COMMAND_DTYPE, NO_TOKEN, Dtype, Flag, Records
from launchopt.producing.driver import Driver
from launchopt.producing.production import RunKind, Schedule, Tokens
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from support.steps.stream_steps import records_of
from support.steps.stream_steps import steps_of as kinds_of

LAYER = [(24, 8), (8, 8), (300, 8), (8, 140)]
PATIENCE_S = 120.0  # time after which a thread that still waits will wait for ever; compiling takes part of it
NONE, CONTINUOUS, AHEAD = Schedule(), Schedule(continuous=True), Schedule(ahead=True)


def stream_of(
    sizes: Sequence[tuple[int, int]],
    due_ns: Sequence[int] | None = None,
    after: Sequence[int] | None = None,
    chunk: int | None = None,
    replicas: int = 1,
    vocab: int | None = None,
    layers: int = 2,
) -> ChainStream:
    """Return a stream of requests. sizes: (prompt, output) tokens of each request."""
    count = len(sizes)
    prompts, outputs = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    due = np.zeros(count, np.int64) if due_ns is None else np.array(due_ns, np.int64)
    waits_for = np.full(count, -1) if after is None else np.array(after, np.int64)
    requests = Requests(due, prompts, outputs, waits_for)
    return ChainStream(LAYER, layers, requests, Dtype.fp16, replicas, ChainSettings(vocab, chunk))


def expected_records(stream: ChainStream, request: int) -> Records:
    """Return all records of a request, without sequence numbers and times of arrival."""
    parts = [records_of(stream, request, step) for step in range(len(kinds_of(stream, request)))]
    records = np.concatenate(parts)
    records["step"] = np.arange(len(records))
    return records


@dataclass
class Run:
    """A driver in its own thread."""

    ring: Ring
    back: Ring
    driver: Driver
    thread: threading.Thread = field(init=False)
    result: tuple[Tokens, int, int] | None = None
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._drive, daemon=True)
        self.thread.start()

    def _drive(self) -> None:
        try:
            self.result = self.driver.run(self.ring, self.back)
        except Exception as error:
            self.error = error

    def finish(self) -> tuple[Tokens, int, int]:
        self.thread.join(PATIENCE_S)
        assert self.error is None
        assert self.result is not None
        return self.result


@contextmanager
def running(stream: ChainStream, schedule: Schedule, capacity: int = 64, kind: RunKind = RunKind.RUN) -> Iterator[Run]:
    back_capacity = 1 << (stream.requests * schedule.together).bit_length()
    with Ring.create(capacity) as ring, Ring.create(max(2, back_capacity)) as back:
        driver = Driver(stream, schedule, spin_us=20, sleep_us=50, kind=kind)
        run = Run(ring, back, driver)
        try:
            yield run
        finally:
            ring.set_word(HeaderWord.STOP, 1)
            run.thread.join(PATIENCE_S)
            assert not run.thread.is_alive()


class Peer:
    """A fake consumer. It pops a few records at a time, and notifies the driver of complete steps in random order.

    groups: requests whose steps run together, group after group. A group's steps may begin only after the driver was
    notified of all earlier steps, and `Peer` notifies it of none before all steps of the group have come. ahead: at
    random times `Peer` reports all steps that have come as flushed. Then the driver may push all records of these
    requests' next steps but the last.
    """

    def __init__(
        self, stream: ChainStream, run: Run, seed: int, groups: Sequence[Sequence[int]] = (), ahead: bool = False
    ) -> None:
        self.stream, self.run, self.random = stream, run, np.random.default_rng(seed)
        self.records: list[Records] = []
        self.popped_ns: list[int] = []
        self.begun: list[int] = []  # request of each step that has begun
        self.ended: Counter[int] = Counter()
        self.notified: Counter[int] = Counter()
        self.pending: list[Records] = []
        self.ids = np.zeros(stream.tokens, np.int64)
        self.answers: list[int] = []  # request of each notification
        self.group_of = [at for at, group in enumerate(groups) for _ in group]
        self.stops = np.cumsum([len(group) for group in groups]).tolist()
        self.ahead, self.left, self.early = (
            ahead,
            0,
            0,
        )  # ahead; records up to the last flushed step; records that came early
        self.ended_at: Counter[int] = Counter()  # by request: number of records up to the end of its last step

    def pop(self, most: int = 16) -> int:
        buffer = np.zeros(int(self.random.integers(1, most + 1)), COMMAND_DTYPE)
        count = self.run.ring.pop(buffer)
        now_ns = time.monotonic_ns()
        for record in buffer[:count]:
            self._see(record.copy(), now_ns)
        return count

    def _see(self, record: Records, now_ns: int) -> None:
        request = int(record["request"])
        steps_begun = self.begun.count(request)
        is_new = steps_begun == self.ended[request]
        if self.notified[request] < steps_begun + is_new - 1:  # the driver was not notified of the previous step
            assert not record["flags"]
            assert 0 < self.ended_at[request] <= self.left
            self.early += 1
        if is_new:
            if self.group_of:
                group = self.group_of[len(self.begun)]
                assert self.notified.total() >= (self.stops[group - 1] if group else 0)
            self.begun.append(request)
        self.records.append(record)
        self.popped_ns.append(now_ns)
        if record["flags"] & Flag.STEP_END:
            self.ended[request] += 1
            self.ended_at[request] = len(self.records)
            self.pending.append(record)

    def answer(self) -> bool:
        """Notify the driver of one complete step; return False if there is none."""
        if not self.pending:
            return False
        if self.group_of and self.ended.total() != self.stops[self.group_of[len(self.begun) - 1]]:
            return False
        record = self.pending.pop(int(self.random.integers(len(self.pending))))
        request, token = int(record["request"]), int(record["token"])
        notified = np.zeros(1, COMMAND_DTYPE)
        notified[0] = record
        token_id = self.choose(request, token)
        notified["slot_a"] = token_id & 0xFFFF_FFFF
        if token != NO_TOKEN:
            self.ids[int(self.stream.table[request, ChainColumn.FIRST_TOKEN]) + token] = token_id
        self.notified[request] += 1
        self.answers.append(request)
        assert self.run.back.push(notified) == 1
        return True

    def choose(self, request: int, token: int) -> int:
        """Return the id of a token."""
        return int(self.random.choice([-1, 0, 1, 127_999, 2**31 - 1]))

    def play(self) -> tuple[Tokens, int, int]:
        """Pop and notify until the driver has closed the ring and the ring is empty; return the driver's result."""
        end = time.monotonic() + PATIENCE_S
        while not self.run.ring.drained:
            assert time.monotonic() < end, "the driver and its consumer wait for each other"
            assert self.run.error is None
            wants = self.random.random()
            if self.ahead and self.random.random() < 0.3:
                self.left = len(self.records)
                self.run.ring.set_word(HeaderWord.STEPS_LEFT, self.left)
            if not (wants < 0.6 and self.pop()) and not (wants > 0.4 and self.answer()):
                self.run.ring.await_record(10_000)
        return self.run.finish()

    def check(self, tokens: Tokens, commands: int) -> None:
        """Check that each record came once and as expected, and that the times are in order."""
        stream, start_ns = self.stream, self.run.ring.word(HeaderWord.START_NS)
        records = np.array(self.records, COMMAND_DTYPE)
        assert commands == stream.commands == len(records)
        assert records["seq"].tolist() == list(range(len(records)))
        assert (records["enqueue_ns"] <= np.array(self.popped_ns)).all()
        for request in range(stream.requests):
            own = records[records["request"] == request]
            enqueued_ns = own["enqueue_ns"].copy()
            assert (np.diff(enqueued_ns) >= 0).all()
            of_request = slice(int(stream.table[request, ChainColumn.FIRST_TOKEN]), None)
            issued, done = (t[of_request][: stream.outputs[request]] for t in (tokens.issue_ns, tokens.done_ns))
            assert enqueued_ns[0] == start_ns + tokens.arrived_ns[request]
            assert tokens.arrived_ns[request] >= stream.table[request, ChainColumn.DUE_NS]
            assert tokens.late_ns[request] >= 0
            assert tokens.arrived_ns[request] + tokens.late_ns[request] <= issued[0]
            assert issued[0] <= np.array(self.popped_ns)[records["request"] == request][0] - start_ns
            which = -1 if self.ahead else 0  # record that waits for the previous token: the last one, or the first
            goes_on = [int(own["enqueue_ns"][own["token"] == token][which]) for token in range(1, len(issued))]
            assert (issued[1:] + start_ns).tolist() == goes_on
            assert (issued <= done).all()
            assert (done[:-1] <= issued[1:]).all()
            own["seq"] = own["enqueue_ns"] = own["turn"] = 0
            own["flags"] &= int(Flag.STEP_END)
            assert own.tolist() == expected_records(stream, request).tolist()
            waits_for = int(stream.table[request, ChainColumn.AFTER])
            last_done = 0
            if waits_for >= 0:
                at = int(stream.table[waits_for, ChainColumn.FIRST_TOKEN] + stream.outputs[waits_for])
                last_done = int(tokens.done_ns[at - 1])
                before = records["seq"][records["request"] == waits_for]
                assert before.max() < records["seq"][records["request"] == request].min()
            assert tokens.arrived_ns[request] == max(int(stream.table[request, ChainColumn.DUE_NS]), last_done)
        assert tokens.ids.tolist() == self.ids.tolist()
