"""The driver against a consumer in this thread that checks the order of steps and answers when and as it likes.

Orders are asserted, not durations; where time is, it is a bound that follows from the clock's readings.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_interpreter import records_of
from program_interpreter import steps_of as kinds_of
from programs import program_streams

from launchopt import issuing as iss
from launchopt import step_records as sr
from launchopt.arrivals.requests import Requests
from launchopt.command import COMMAND_DTYPE, NO_TOKEN, W_SEQ, Dtype, Flag, Records
from launchopt.driver import REHEARSED, Driver, Schedule, Tokens
from launchopt.errors import Interrupted
from launchopt.ring import HEAD, START_NS, STOP, TAIL, Ring
from launchopt.workloads import chain as ch
from launchopt.workloads.chain import ChainStream

LAYER = [(24, 8), (8, 8), (300, 8), (8, 140)]
PATIENCE_S = 30.0  # after which whoever is still waiting will wait forever
MS = 1_000_000
NONE, CONTINUOUS = Schedule(), Schedule(continuous=True)
properties = settings(deadline=None, max_examples=40)


def stream_of(
    sizes: Sequence[tuple[int, int]],
    due_ns: Sequence[int] | None = None,
    after: Sequence[int] | None = None,
    chunk: int | None = None,
    replicas: int = 1,
    vocab: int | None = None,
    layers: int = 2,
) -> ChainStream:
    """(prompt, output) tokens of each request."""
    count = len(sizes)
    prompts, outputs = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    due = np.zeros(count, np.int64) if due_ns is None else np.array(due_ns, np.int64)
    waits_for = np.full(count, -1) if after is None else np.array(after, np.int64)
    requests = Requests(due, prompts, outputs, waits_for)
    return ChainStream(LAYER, layers, requests, Dtype.fp16, replicas, vocab, chunk)


def expected_records(stream: ChainStream, request: int) -> Records:
    """All of a request's records, but for what says when and in what order they were issued."""
    parts = [records_of(stream, request, step) for step in range(len(kinds_of(stream, request)))]
    records = np.concatenate(parts)
    records["step"] = np.arange(len(records))
    return records


@dataclass
class Run:
    """A driver in a thread of its own."""

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
def running(stream: ChainStream, schedule: Schedule, capacity: int = 64, rehearsal: bool = False) -> Iterator[Run]:
    room = 1 << stream.requests.bit_length()
    with Ring.create(capacity) as ring, Ring.create(max(2, room)) as back:
        driver = Driver(stream, schedule, spin_us=20, sleep_us=50, rehearsal=rehearsal)
        run = Run(ring, back, driver)
        try:
            yield run
        finally:
            ring.set_word(STOP, 1)
            run.thread.join(PATIENCE_S)
            assert not run.thread.is_alive()


class Peer:
    """Pops records, a random few at a time; tells of the ends of steps after a while, in any order.

    groups: which requests have a step together. Then none may begin before all before it are told of, and nothing is
    told of before all of its group have come.
    """

    def __init__(self, stream: ChainStream, run: Run, seed: int, groups: Sequence[Sequence[int]] = ()) -> None:
        self.stream, self.run, self.random = stream, run, np.random.default_rng(seed)
        self.records: list[Records] = []
        self.popped_ns: list[int] = []
        self.begun: list[int] = []  # requests, a step each
        self.ended: Counter[int] = Counter()
        self.told: Counter[int] = Counter()
        self.pending: list[Records] = []
        self.ids = np.zeros(stream.tokens, np.int64)
        self.answers: list[int] = []  # requests, in order
        self.group_of = [at for at, group in enumerate(groups) for _ in group]
        self.stops = np.cumsum([len(group) for group in groups]).tolist()

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
        if steps_begun == self.ended[request]:  # a new step
            assert self.told[request] == steps_begun
            if self.group_of:
                group = self.group_of[len(self.begun)]
                assert self.told.total() >= (self.stops[group - 1] if group else 0)
            self.begun.append(request)
        self.records.append(record)
        self.popped_ns.append(now_ns)
        if record["flags"] & Flag.STEP_END:
            self.ended[request] += 1
            self.pending.append(record)

    def answer(self) -> bool:
        """Tell of one that is pending."""
        if not self.pending:
            return False
        if self.group_of and self.ended.total() != self.stops[self.group_of[len(self.begun) - 1]]:
            return False
        record = self.pending.pop(int(self.random.integers(len(self.pending))))
        request, token = int(record["request"]), int(record["token"])
        told = np.zeros(1, COMMAND_DTYPE)
        told[0] = record
        token_id = int(self.random.choice([-1, 0, 1, 127_999, 2**31 - 1]))
        told["slot_a"] = token_id & 0xFFFF_FFFF
        if token != NO_TOKEN:
            self.ids[int(self.stream.table[request, ch.FIRST_TOKEN]) + token] = token_id
        self.told[request] += 1
        self.answers.append(request)
        assert self.run.back.push(told) == 1
        return True

    def play(self) -> tuple[Tokens, int, int]:
        """Until the driver has closed the ring and all is popped."""
        end = time.monotonic() + PATIENCE_S
        while not self.run.ring.drained:
            assert time.monotonic() < end, "the driver and its consumer wait for each other"
            assert self.run.error is None
            wants = self.random.random()
            if not (wants < 0.6 and self.pop()) and not (wants > 0.4 and self.answer()):
                self.run.ring.await_record(10_000)
        return self.run.finish()

    def check(self, tokens: Tokens, commands: int) -> None:
        """What came was what was asked for, all of it once, and the times are in order."""
        stream, start_ns = self.stream, self.run.ring.word(START_NS)
        records = np.array(self.records, COMMAND_DTYPE)
        assert commands == stream.commands == len(records)
        assert records["seq"].tolist() == list(range(len(records)))
        assert (records["enqueue_ns"] <= np.array(self.popped_ns)).all()
        for request in range(stream.requests):
            own = records[records["request"] == request]
            enqueued_ns = own["enqueue_ns"].copy()
            assert (np.diff(enqueued_ns) >= 0).all()
            of_request = slice(int(stream.table[request, ch.FIRST_TOKEN]), None)
            issued, done = (t[of_request][: stream.outputs[request]] for t in (tokens.issue_ns, tokens.done_ns))
            assert enqueued_ns[0] == start_ns + tokens.arrived_ns[request]
            assert tokens.arrived_ns[request] >= stream.table[request, ch.DUE_NS]
            assert tokens.late_ns[request] >= 0
            assert tokens.arrived_ns[request] + tokens.late_ns[request] <= issued[0]
            assert issued[0] <= np.array(self.popped_ns)[records["request"] == request][0] - start_ns
            goes_on = [int(own["enqueue_ns"][own["token"] == token][0]) for token in range(1, len(issued))]
            assert (issued[1:] + start_ns).tolist() == goes_on
            assert (issued <= done).all()
            assert (done[:-1] <= issued[1:]).all()
            own["seq"] = own["enqueue_ns"] = own["turn"] = 0
            own["flags"] &= int(Flag.STEP_END)
            assert own.tolist() == expected_records(stream, request).tolist()
            waits_for = int(stream.table[request, ch.AFTER])
            last_done = 0
            if waits_for >= 0:
                at = int(stream.table[waits_for, ch.FIRST_TOKEN] + stream.outputs[waits_for])
                last_done = int(tokens.done_ns[at - 1])
                before = records["seq"][records["request"] == waits_for]
                assert before.max() < records["seq"][records["request"] == request].min()
            assert tokens.arrived_ns[request] == max(int(stream.table[request, ch.DUE_NS]), last_done)
        assert tokens.ids.tolist() == self.ids.tolist()


sizes_of_requests = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)).filter(any), min_size=1, max_size=7)
capacities = st.sampled_from([2, 4, 64])


@st.composite
def graphs(draw: st.DrawFn, count: int) -> list[int]:
    """Each waits for none, or for one before it."""
    return [draw(st.integers(-1, request - 1)) for request in range(count)]


@st.composite
def streams(draw: st.DrawFn, dependent: bool = True, due_ns: int = 0) -> ChainStream:
    sizes = draw(sizes_of_requests)
    return stream_of(
        sizes,
        sorted(draw(st.lists(st.integers(0, due_ns), min_size=len(sizes), max_size=len(sizes)))),
        draw(graphs(len(sizes))) if dependent else None,
        draw(st.none() | st.integers(1, 6)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([None, 50])),
    )


@properties
@given(
    stream=streams(due_ns=1 * MS),
    continuous=st.booleans(),
    budget=st.integers(1, 16),
    capacity=capacities,
    seed=st.integers(0, 99),
)
def test_every_request_goes_step_by_step_to_its_end(
    stream: ChainStream, continuous: bool, budget: int, capacity: int, seed: int
) -> None:
    """Either scheduler, with arrivals, requests that wait for others, and rings smaller than a step."""
    with running(stream, Schedule(continuous, budget), capacity) as run:
        peer = Peer(stream, run, seed)
        tokens, commands, _ = peer.play()
        peer.check(tokens, commands)


@properties
@given(stream=program_streams(most_layers=2), continuous=st.booleans(), capacity=capacities, seed=st.integers(0, 99))
def test_programs_are_issued_node_by_node(stream: ChainStream, continuous: bool, capacity: int, seed: int) -> None:
    """Weights, caches, lanes and prompts: every slot counts from where it should."""
    with running(stream, Schedule(continuous), capacity) as run:
        peer = Peer(stream, run, seed)
        tokens, commands, _ = peer.play()
        peer.check(tokens, commands)


def scheduled(stream: ChainStream, budget: int, most_running: int) -> list[list[int]]:
    """Who takes part in each step, in order, where all are there from the start."""
    left_of = {request: deque(kinds_of(stream, request)) for request in range(stream.requests)}
    waiting, goes_on, groups = deque(left_of), [], []

    def fits(group: list[int], request: int) -> bool:
        return not group or sum(left_of[one][0].n for one in [*group, request]) <= budget

    while waiting or goes_on:
        group: list[int] = []
        for request in sorted(goes_on, key=lambda request: left_of[request][0].is_prompt):
            if fits(group, request):
                group.append(request)
        while waiting and len(goes_on) < most_running and fits(group, waiting[0]):
            group.append(waiting[0])
            goes_on.append(waiting.popleft())
        for request in group:
            left_of[request].popleft()
        goes_on = [request for request in goes_on if left_of[request]]
        groups.append(group)
    return groups


@properties
@given(
    stream=streams(dependent=False),
    budget=st.integers(1, 16),
    most_running=st.integers(1, 8),
    capacity=capacities,
    seed=st.integers(0, 99),
)
def test_continuous_steps_are_those_of_a_scheduler_in_plain_python(
    stream: ChainStream, budget: int, most_running: int, capacity: int, seed: int
) -> None:
    """The peer sees to it that no step begins before all of the one before are done, and that none is smaller."""
    groups = scheduled(stream, budget, most_running)
    with running(stream, Schedule(True, budget, most_running), capacity) as run:
        peer = Peer(stream, run, seed, groups)
        tokens, commands, _ = peer.play()
        peer.check(tokens, commands)
    assert peer.begun == [request for group in groups for request in group]
    check_groups(stream, groups, budget, most_running)


def check_groups(stream: ChainStream, groups: Sequence[Sequence[int]], budget: int, most_running: int) -> None:
    """What a continuous scheduler promises, said without one."""
    steps = [kinds_of(stream, request) for request in range(stream.requests)]
    done = [0] * stream.requests
    joined: list[int] = []
    for group in groups:
        assert len(set(group)) == len(group) > 0
        assert sum(steps[request][done[request]].n for request in group) <= budget or len(group) == 1
        joined += [request for request in group if request not in joined]
        under_way = [request for request in joined if done[request] < len(steps[request])]
        assert len(under_way) <= most_running
        tokens = {request for request in under_way if done[request] and not steps[request][done[request]].is_prompt}
        assert tokens <= set(group)  # each gets one
        for request in group:
            done[request] += 1
    assert joined == sorted(joined)  # first come, first served
    assert done == [len(kinds) for kinds in steps]


def test_tokens_and_chunks_share_a_step() -> None:
    """One that generates, one whose prompt takes what is left in chunks, one that waits until it may run."""
    stream = stream_of([(1, 5), (9, 2), (2, 1)], chunk=3)
    assert scheduled(stream, budget=4, most_running=2) == [[0, 1], [0, 1], [0, 1], [0, 1], [0, 2]]
    with running(stream, Schedule(True, 4, 2)) as run:
        peer = Peer(stream, run, 1, scheduled(stream, 4, 2))
        peer.check(*peer.play()[:2])
    assert peer.begun == [0, 1, 0, 1, 0, 1, 0, 1, 0, 2]


def test_a_chunk_of_more_columns_than_the_budget_goes_alone() -> None:
    stream = stream_of([(2, 3), (9, 2), (1, 2)])
    with running(stream, Schedule(True, budget_tokens=4)) as run:
        peer = Peer(stream, run, 1, [[0], [0], [0], [1], [1, 2], [2]])
        peer.check(*peer.play()[:2])
    assert peer.begun == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("schedule", [NONE, CONTINUOUS], ids=["none", "continuous"])
def test_requests_come_when_they_are_due(schedule: Schedule) -> None:
    due_ns = [0, 3 * MS, 3 * MS, 7 * MS, 12 * MS]
    stream = stream_of([(4, 2)] * 5, due_ns, chunk=3)
    with running(stream, schedule) as run:
        peer = Peer(stream, run, seed=3)
        tokens, commands, _ = peer.play()
        peer.check(tokens, commands)
    assert tokens.arrived_ns.tolist() == due_ns


@pytest.mark.parametrize("schedule", [NONE, CONTINUOUS], ids=["none", "continuous"])
def test_who_waits_for_another_starts_when_that_is_finished(schedule: Schedule) -> None:
    """A tree of requests, one of which is due long after what it waits for."""
    stream = stream_of([(0, 3), (5, 2), (2, 2), (0, 1), (1, 1)], [0, 0, 0, 1, 20 * MS], [-1, 0, 0, 1, 3])
    with running(stream, schedule) as run:
        peer = Peer(stream, run, seed=4)
        tokens, commands, _ = peer.play()
        peer.check(tokens, commands)
    assert tokens.arrived_ns[4] >= 20 * MS


@pytest.mark.parametrize("capacity", [2, 64])
@pytest.mark.parametrize("schedule", [NONE, CONTINUOUS], ids=["none", "continuous"])
def test_a_consumer_that_stops_shows_as_latency_of_all_that_were_due(schedule: Schedule, capacity: int) -> None:
    """No coordinated omission: those due while nothing was taken count from when they were due."""
    due_ns = [0, 0, 0, 5 * MS, 10 * MS, 20 * MS, 49 * MS]
    stream = stream_of([(3, 2)] * 7, due_ns)
    with running(stream, schedule, capacity) as run:
        peer = Peer(stream, run, seed=5)
        while not peer.pop(1):
            run.ring.await_record(100_000)
        time.sleep(0.05)
        resumed_ns = time.monotonic_ns()
        tokens, commands, blocked_ns = peer.play()
        peer.check(tokens, commands)
        stopped_ns = resumed_ns - run.ring.word(START_NS)
    assert stopped_ns >= 50 * MS
    assert tokens.arrived_ns.tolist() == due_ns
    first = stream.table[:, ch.FIRST_TOKEN]
    latency_ns = tokens.done_ns[first] - tokens.arrived_ns
    assert (latency_ns >= stopped_ns - np.array(due_ns)).all()
    assert (latency_ns[:3] >= 50 * MS).all()
    if capacity == 2:
        assert blocked_ns > 0


@pytest.mark.parametrize(
    ("due_ns", "capacity"), [(0, 2), (0, 64), (3_600_000 * MS, 64)], ids=["ring full", "no answer", "nothing due"]
)
@pytest.mark.parametrize("schedule", [NONE, CONTINUOUS], ids=["none", "continuous"])
def test_a_stop_interrupts_whatever_the_driver_waits_for(schedule: Schedule, due_ns: int, capacity: int) -> None:
    with running(stream_of([(3, 2)], [due_ns]), schedule, capacity) as run:
        if due_ns == 0:
            assert run.ring.await_record(int(PATIENCE_S * 1e9))
        assert run.thread.is_alive()
        run.ring.set_word(STOP, 1)
        run.thread.join(PATIENCE_S)
        assert isinstance(run.error, Interrupted)
        assert run.result is None


MARKED = 2**40  # in the word of a slot that is stored to


class Waiting:
    """A driver in this thread whose first steps are pushed, and who is not told that they are done."""

    def __init__(self, stream: ChainStream, schedule: Schedule, capacity: int) -> None:
        self.capacity, self.longest = capacity, len(expected_records(stream, 0)) // len(kinds_of(stream, 0))
        self.ring, self.back = Ring.create(capacity), Ring.create(1 << stream.requests.bit_length())
        self.ring.arrays[1][:, W_SEQ] = MARKED
        self.driver = Driver(stream, schedule, spin_us=1, sleep_us=50)

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.ring.release()
        self.back.release()

    def wait(self) -> None:
        """As often as it takes to prepare every place and to own every slot; something is done each time."""
        for _ in range(1 + sr.MOST_PLACES + self.capacity // iss.OWNED_AT_ONCE + 1):
            assert self.driver._enter(self.ring, self.back) == iss.IDLE

    @property
    def owned(self) -> list[int]:
        """Slots that were stored to, counted from the head on."""
        slots = np.flatnonzero(self.ring.arrays[1][1:, W_SEQ] == 0) + 1  # the first holds record 0
        return sorted(int(slot - self.ring.word(HEAD)) % self.capacity for slot in slots)


@pytest.mark.parametrize("schedule", [NONE, CONTINUOUS], ids=["none", "continuous"])
@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_who_waits_owns_the_room_for_all_that_is_prepared(schedule: Schedule, outputs: int) -> None:
    """And for no more; nothing for requests that have no further step."""
    with Waiting(stream_of([(0, outputs), (0, 3), (0, 3)]), schedule, capacity=256) as waiting:
        waiting.wait()
        goes_on = 2 + (outputs > 1)
        assert waiting.ring.word(HEAD) == 3 * waiting.longest
        assert waiting.owned == list(range(goes_on * waiting.longest))


def test_who_waits_owns_room_as_it_comes() -> None:
    with Waiting(stream_of([(0, 3)]), NONE, capacity=8) as waiting:
        assert waiting.longest == 8
        data = waiting.ring.arrays[1]
        waiting.wait()
        assert data[:, W_SEQ].tolist() == list(range(8)), "the ring is full of what nobody has read"
        for popped in (3, 5, 8):
            assert waiting.ring.pop(np.zeros(popped - waiting.ring.word(TAIL), COMMAND_DTYPE)) > 0
            waiting.wait()
            assert data[:, W_SEQ].tolist() == [0] * popped + list(range(popped, 8))


def test_each_wait_owns_anew() -> None:
    """Where the ring goes on from there, also past its end."""
    with Waiting(stream_of([(0, 9)]), NONE, capacity=32) as waiting:
        out, data = np.zeros(32, COMMAND_DTYPE), waiting.ring.arrays[1]
        for step in range(1, 9):
            waiting.wait()
            assert waiting.ring.pop(out) == waiting.longest
            data[:, W_SEQ] = MARKED
            assert waiting.back.push(out[waiting.longest - 1 : waiting.longest]) == 1
            waiting.wait()
            assert waiting.ring.word(HEAD) == (step + 1) * waiting.longest
            at = np.arange(waiting.longest) + waiting.ring.word(HEAD)
            assert (data[at % 32, W_SEQ] == (0 if step < 8 else MARKED)).all()
            assert (data[(at + waiting.longest) % 32, W_SEQ] == MARKED).all()


def test_no_more_room_is_owned_than_a_cache_holds() -> None:
    with Waiting(stream_of([(0, 2)] * sr.MOST_PLACES, layers=40), NONE, capacity=1 << 15) as waiting:
        assert sr.MOST_PLACES * waiting.longest > iss.MOST_OWNED
        waiting.wait()
        assert waiting.owned == list(range(iss.MOST_OWNED))


def test_a_rehearsal_is_short_and_waits_for_no_time() -> None:
    """The first few requests, two steps of one token at most, all at once whatever they wait for."""
    hour_ns = 3_600_000 * MS
    asked = [(4, 1), (5, 9), (0, 9), (0, 1), (3, 3), *[(1, 1)] * 5]
    stream = stream_of(asked, range(0, 10 * hour_ns, hour_ns), range(-1, 9))
    with running(stream, NONE, rehearsal=True) as run:
        peer = Peer(stream, run, seed=6)
        peer.play()
    assert Counter(peer.begun) == {0: 1, 1: 3, 2: 2, 3: 1, 4: 3, **dict.fromkeys(range(5, REHEARSED), 1)}
    assert [int(record["seq"]) for record in peer.records] == list(range(len(peer.records)))
