"""The driver against a consumer in this thread (driver_runs.py).

Orders are asserted, not durations; where time is, it is a bound that follows from the clock's readings.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.driver_runs import AHEAD, CONTINUOUS, NONE, PATIENCE_S, Peer, running, stream_of
from support.steps.programs import program_streams
from support.steps.stream_steps import steps_of as kinds_of

from launchopt.errors import Interrupted
from launchopt.producing import prepared_steps as sr
from launchopt.producing.driver import WARM_UP_REQUESTS, load_loop, table_of
from launchopt.producing.driver_loop import drive
from launchopt.producing.production import RunKind, Schedule
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn

MS = 1_000_000
properties = settings(deadline=None, max_examples=40)
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
@given(
    stream=streams(due_ns=1 * MS),
    capacity=st.sampled_from([2, 16, 64, 256]),
    places=st.sampled_from([1, 2, 64]),
    seed=st.integers(0, 99),
)
def test_steps_that_are_pushed_ahead_wait_for_their_last_record(
    stream: ChainStream, capacity: int, places: int, seed: int
) -> None:
    """A step is pushed ahead only once the previous step was flushed; its last record waits for the notification."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sr, "MOST_PLACES", places)
        with running(stream, AHEAD, capacity) as run:
            peer = Peer(stream, run, seed, ahead=True)
            tokens, commands, _ = peer.play()
            peer.check(tokens, commands)


@properties
@given(stream=program_streams(most_layers=2), capacity=st.sampled_from([64, 1024]), seed=st.integers(0, 99))
def test_programs_are_pushed_ahead_node_by_node(stream: ChainStream, capacity: int, seed: int) -> None:
    with running(stream, AHEAD, capacity) as run:
        peer = Peer(stream, run, seed, ahead=True)
        tokens, commands, _ = peer.play()
        peer.check(tokens, commands)


def test_loading_the_loop_pushes_nothing_and_begins_no_request() -> None:
    stream = stream_of([(3, 5)] * 4)
    with Ring.create(64) as ring, Ring.create(64) as back:
        load_loop(stream, ring, back)
        assert [ring.word(word) for word in (HeaderWord.HEAD, HeaderWord.START_NS)] == [0, 0]
    assert drive.signatures  # type: ignore[attr-defined]  # of Numba


def test_nothing_is_pushed_ahead_of_who_does_not_say_that_steps_have_left() -> None:
    stream = stream_of([(3, 5)] * 4)
    with running(stream, AHEAD) as run:
        peer = Peer(stream, run, seed=7)
        peer.check(*peer.play()[:2])
    assert peer.early == 0


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
        stopped_ns = resumed_ns - run.ring.word(HeaderWord.START_NS)
    assert stopped_ns >= 50 * MS
    assert tokens.arrived_ns.tolist() == due_ns
    first = stream.table[:, ChainColumn.FIRST_TOKEN]
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
        run.ring.set_word(HeaderWord.STOP, 1)
        run.thread.join(PATIENCE_S)
        assert isinstance(run.error, Interrupted)
        assert run.result is None


def test_an_audit_run_has_whole_requests_up_to_a_number_of_tokens_and_waits_for_no_time() -> None:
    stream = stream_of([(4, 3000), (0, 1000), (5, 190), (0, 9)], [0, 10 * MS, 20 * MS, 30 * MS], [-1, 0, -1, 3])
    table = table_of(stream, RunKind.AUDIT)
    assert len(table) == 2, "4,000 generated tokens, and the next request would make it 4,190"
    assert table[:, ChainColumn.DUE_NS].tolist() == [0, 0]
    assert table[:, ChainColumn.AFTER].tolist() == [-1, 0]
    long_prompts = stream_of([(9000, 1), (9000, 1), (9, 1)], [0, 0, 0], [-1, -1, -1])
    assert len(table_of(long_prompts, RunKind.AUDIT)) == 1, "prompts count, too"
    assert len(table_of(stream_of([(0, 9000)], [0], [-1]), RunKind.AUDIT)) == 1, "never none"
    assert table_of(stream, RunKind.RUN) is stream.table


def test_a_warm_up_run_is_short_and_waits_for_no_time() -> None:
    """The first few requests, three steps of one token at most, all at once whatever they wait for."""
    hour_ns = 3_600_000 * MS
    asked = [(4, 1), (5, 9), (0, 9), (0, 1), (3, 3), *[(1, 1)] * 5]
    stream = stream_of(asked, range(0, 10 * hour_ns, hour_ns), range(-1, 9))
    with running(stream, NONE, kind=RunKind.WARM_UP) as run:
        peer = Peer(stream, run, seed=6)
        peer.play()
    assert Counter(peer.begun) == {0: 1, 1: 4, 2: 3, 3: 1, 4: 3, **dict.fromkeys(range(5, WARM_UP_REQUESTS), 1)}
    assert [int(record["seq"]) for record in peer.records] == list(range(len(peer.records)))
