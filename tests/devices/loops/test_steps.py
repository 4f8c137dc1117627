"""The loop for batches of whole steps, with a driver in a thread, and devices that finish at once or after a while.

Some devices compute, so that every token must be right. Others only report that they did, at once or later.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.launching import recorded
from support.steps.step_loops import (
    CONTINUOUS,
    GREEDY,
    HOUR_NS,
    LAYERS,
    NONE,
    TINY,
    VOCAB,
    Loop,
    Maker,
    computing,
    looping,
    pretending,
    stream_of,
)

from launchopt.batching.batch import FlushReason, StepBatch
from launchopt.command import COMMAND_DTYPE, Records
from launchopt.devices.feedback.landing import FlightWord
from launchopt.errors import Interrupted, RunError
from launchopt.producing.driver import WARM_UP_REQUESTS, Driver
from launchopt.producing.production import RunKind, Schedule
from launchopt.queue.segment import HeaderWord
from launchopt.recording.launch_rows import CommandColumn, CursorWord, LaunchColumn
from launchopt.recording.recorder import Recorder

SIDE_BY_SIDE = [(0, 4)] * 6
MIXED = [(5, 3), (0, 4), (1, 1), (9, 2), (3, 0), (4, 5)]


def vocab_of(device: Maker) -> int | None:
    """Return the vocabulary for a device: only SAMPLING needs one."""
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
@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
def test_every_step_leaves_once_and_every_token_is_right(
    sizes: list[tuple[int, int]], device: Maker, limit: int, ahead: bool
) -> None:
    """There is no deadline: limits and stalls are enough for each batch to leave."""
    stream = stream_of(sizes, vocab_of(device), chunk=4)
    with looping(stream, limit, device, ahead=ahead) as loop:
        loop.run(Schedule(ahead=ahead))
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
    ahead=st.booleans(),
)
def test_every_token_is_right_whatever_the_requests(
    sizes: list[tuple[int, int]], chunk: int | None, limit: int, capacity: int, device: Maker, ahead: bool
) -> None:
    """Some rings are smaller than a step."""
    stream = stream_of(sizes, vocab_of(device), chunk)
    with looping(stream, limit, device, capacity=capacity, ahead=ahead) as loop:
        loop.run(Schedule(ahead=ahead))
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
    """Each round is flushed once its last record has come, for any set of requests and any limit."""
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
    """Three requests take their first step together. The last one left is alone, so its steps leave by stalls."""
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
    late = run.launches[run.of_launch, LaunchColumn.REASON] == FlushReason.deadline
    waited_ns = run.launches[run.of_launch, LaunchColumn.FLUSH_NS] - run.commands[:, CommandColumn.ELIGIBLE_NS]
    assert (waited_ns[late] >= timeout_ns).all()


@pytest.mark.parametrize("idle_ns", [0, 200_000])
def test_steps_leave_when_nothing_has_come_for_long(idle_ns: int) -> None:
    stream = stream_of([(0, 1), (0, 4)])
    with looping(stream, 64, idle_ns=idle_ns, on_stall=False) as loop:
        loop.run()
        loop.check()
    assert loop.batches[-3:] == [(FlushReason.idle, 1, 1)] * 3


def test_a_warm_up_run_counts_the_steps_that_it_drives() -> None:
    """Here a warm-up run has at most three steps per request. A request that ends there is not waited for."""
    stream = stream_of([(0, 9), (0, 1), *[(0, 9)] * WARM_UP_REQUESTS])
    short = Driver(stream, NONE, 20, 50, RunKind.WARM_UP)._arrays[1]
    with looping(stream, 64, table=short) as loop:
        loop.run(kind=RunKind.WARM_UP)
        loop.check_empty()
    assert sum(size for _, size, _ in loop.batches) == 3 * WARM_UP_REQUESTS - 2
    assert loop.batcher.flushes[FlushReason.deadline] == 0


def test_no_row_is_lost_where_buffers_hold_just_what_they_must() -> None:
    stream, limit = stream_of([(3, 9)] * 7, chunk=2), 4
    recorder = Recorder(stream.commands, limit * len(TINY) * LAYERS, least_rows=2)
    with looping(stream, limit, recorder=recorder, capacity=16) as loop:
        loop.run()
        assert recorder.cursor[CursorWord.SPOOLED_COMMANDS] > 0, (
            "the buffers were large enough for all: a test of nothing"
        )
        loop.check()


def test_a_stop_ends_the_loop() -> None:
    with looping(stream_of(SIDE_BY_SIDE)) as loop:
        loop.ring.set_word(HeaderWord.STOP, 1)
        with pytest.raises(Interrupted, match="stopped by the parent"):
            loop.run()
        assert isinstance(loop.error, Interrupted)


def test_a_stop_is_noticed_while_a_step_is_under_way_on_the_device() -> None:
    with looping(stream_of([(0, 2)]), device=pretending(never=True)) as loop:
        threading.Timer(0.05, loop.ring.set_word, (HeaderWord.STOP, 1)).start()
        with pytest.raises(Interrupted):
            loop.run()
    assert loop.flights.count == 1


def lost() -> None:
    raise RunError("the device is lost")


@pytest.mark.parametrize("spin_ns", [20_000, HOUR_NS], ids=["naps", "only spins"])
@pytest.mark.parametrize("outputs", [1, 2], ids=["ring closed", "ring open"])
def test_a_device_that_is_lost_while_a_step_is_under_way_ends_the_loop(outputs: int, spin_ns: int) -> None:
    with looping(stream_of([(0, outputs)]), device=pretending(never=True), spin_ns=spin_ns) as loop:
        loop.pump._feedback = replace(loop.pump._feedback, check_alive=lost)
        with pytest.raises(RunError, match="the device is lost"):
            loop.run()
    assert loop.flights.count == 1


def test_steps_that_take_long_are_waited_for() -> None:
    """A step ends only when the loop asks whether the device is alive."""
    with looping(stream_of([(0, 2)]), device=pretending(never=True)) as loop:
        asked = [0]

        def finish() -> None:
            asked[0] += 1
            _, places, done, cursor = loop.flights.arrays
            done[places[cursor[FlightWord.FIRST] & (len(places) - 1)]] = 0

        loop.pump._feedback = replace(loop.pump._feedback, check_alive=finish)
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
        with pytest.raises(RunError, match="the workload ended within 1 steps, whose last commands never came"):
            loop.pump.run()


def test_what_is_held_when_the_ring_is_drained_leaves() -> None:
    with looping(stream_of([(0, 1), (0, 1)]), device=pretending(0.001), on_stall=False) as loop:
        records = loop.stream.template[: len(TINY) * LAYERS].copy()
        push(loop, records)
        loop.pump.run()
    assert loop.batches == [(FlushReason.drain, 1, 1)]
    assert (loop.batcher.held, loop.batcher.live, loop.flights.count) == (0, 0, 0)
