"""The compiled loop for requests: every token is right in any batches, and each way to end the loop is reported.

The loop runs on this machine against a stand-in for cuBLASLt, with a driver in a thread.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda.fake_lt import FAILURE
from support.steps.batch_loops import GREEDY, LONG, PLAIN, SECOND_NS, TINY, TOP_K, VOCAB, Loop, looping, stream_of
from support.steps.launching import recorded

from launchopt.batching.batch import FlushReason, FlushRules
from launchopt.batching.buckets import BucketColumn
from launchopt.command import COMMAND_DTYPE, Records
from launchopt.devices.feedback.flights import Flights, facts_of
from launchopt.devices.feedback.landing import NOT_YET, StagedRow
from launchopt.errors import Interrupted, RunError
from launchopt.producing.production import Schedule
from launchopt.queue.segment import HeaderWord
from launchopt.recording.launch_rows import CommandColumn, CursorWord, LaunchColumn
from launchopt.recording.recorder import Recorder
from launchopt.sampling import Sampling

EVERY = 7

SIDE_BY_SIDE = [(0, 4)] * 6
MIXED = [(5, 3), (0, 4), (1, 1), (9, 2), (3, 0), (4, 5)]
samplings = pytest.mark.parametrize("sampling", [PLAIN, GREEDY, TOP_K], ids=lambda sampling: sampling.kind.name)


def vocab_of(sampling: Sampling) -> int | None:
    return None if sampling is PLAIN else VOCAB


@samplings
@pytest.mark.parametrize("sizes", [SIDE_BY_SIDE, MIXED], ids=["decode", "prompts"])
@pytest.mark.parametrize("every", [0, 1, EVERY])
def test_one_launch_a_command_where_a_bucket_holds_one(
    sizes: list[tuple[int, int]], sampling: Sampling, every: int
) -> None:
    stream = stream_of(sizes, vocab_of(sampling))
    with looping(stream, 1, sampling, every) as loop:
        loop.run()
        loop.check()
    assert loop.batcher.flushes[FlushReason.full] == sum(loop.batcher.flushes) == stream.commands
    assert loop.fake.calls == stream.commands


@samplings
@pytest.mark.parametrize("sizes", [SIDE_BY_SIDE, MIXED], ids=["decode", "prompts"])
@pytest.mark.parametrize("every", [0, 1, EVERY])
@pytest.mark.parametrize("limit", [2, 64])
def test_batches_of_requests_give_the_same_tokens(
    sizes: list[tuple[int, int]], sampling: Sampling, every: int, limit: int
) -> None:
    stream = stream_of(sizes, vocab_of(sampling))
    with looping(stream, limit, sampling, every) as loop:
        loop.run()
        loop.check()
        launches = recorded(loop.fake.recorder).launches
    assert (launches[:, LaunchColumn.SAMPLE] == 0).all() == (every == 1), "FakeLt.submit marks what Python launched"
    assert (launches[:, LaunchColumn.SAMPLE] == 0).any() == (every > 0)
    assert max(loop.batch_sizes) <= limit
    with looping(stream, 1, sampling) as alone:
        alone.run()
    if sampling is not PLAIN:
        assert alone.ids.tolist() == loop.ids.tolist()


@pytest.mark.parametrize("sampling", [PLAIN, TOP_K], ids=lambda sampling: sampling.kind.name)
def test_requests_in_step_are_one_strided_launch_a_gemm(sampling: Sampling) -> None:
    """All requests issue commands at the same time, and none leaves alone: buckets are full, lanes evenly spaced."""
    stream = stream_of(SIDE_BY_SIDE, vocab_of(sampling), replicas=1)
    with looping(stream, 64, sampling, rules=replace(LONG, on_stall=False)) as loop:
        loop.run(Schedule(continuous=True))
        loop.check()
    assert loop.batcher.flushes == [stream.commands // 6, 0, 0, 0, 0]
    scattered = 6 - 1  # additional launches: the first inputs are rows of the embedding table, at random
    assert loop.fake.calls == stream.commands // 6 + scattered
    assert set(loop.batch_sizes) == {6}


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)).filter(any), min_size=1, max_size=6),
    chunk=st.none() | st.integers(1, 5),
    budget=st.integers(1, 16),
    most_running=st.integers(1, 6),
    continuous=st.booleans(),
    limit=st.integers(1, 8),
    every=st.integers(0, 5),
    capacity=st.sampled_from([4, 16, 4096]),
    sampling=st.sampled_from([PLAIN, GREEDY, TOP_K]),
)
def test_every_token_is_right_whatever_the_requests_and_the_scheduler(
    sizes: list[tuple[int, int]],
    chunk: int | None,
    budget: int,
    most_running: int,
    continuous: bool,
    limit: int,
    every: int,
    capacity: int,
    sampling: Sampling,
) -> None:
    stream = stream_of(sizes, vocab_of(sampling), chunk)
    with looping(stream, limit, sampling, every, capacity=capacity) as loop:
        loop.run(Schedule(continuous, budget, most_running))
        loop.check()


@samplings
@pytest.mark.parametrize("every", [0, EVERY])
def test_prompts_in_chunks_go_on_with_the_others(sampling: Sampling, every: int) -> None:
    stream = stream_of(MIXED, vocab_of(sampling), chunk=4)
    assert {kind.n for kind in stream.kinds if kind.is_prompt} == {1, 3, 4}
    with looping(stream, 64, sampling, every) as loop:
        loop.run(Schedule(continuous=True, budget_tokens=8))
        loop.check()
    assert loop.batcher.flushes[FlushReason.stall] > 0


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (replace(LONG, on_stall=False, timeout_ns=200_000), FlushReason.deadline),
        (replace(LONG, on_stall=False, timeout_ns=0), FlushReason.deadline),
        (replace(LONG, on_stall=False, idle_ns=200_000), FlushReason.idle),
        (replace(LONG, on_stall=False, idle_ns=0), FlushReason.idle),
        (LONG, FlushReason.stall),
    ],
    ids=["late", "at once", "idle", "idle at once", "stalled"],
)
@pytest.mark.parametrize("sampling", [PLAIN, TOP_K], ids=lambda sampling: sampling.kind.name)
def test_a_lone_request_does_not_wait_for_company(sampling: Sampling, rules: FlushRules, reason: FlushReason) -> None:
    """One request fills no bucket, so each flush has the only reason that the rules leave."""
    stream = stream_of([(0, 3), (3, 2)], vocab_of(sampling))
    with looping(stream, 64, sampling, rules=rules) as loop:
        # The limit is 2 although one request runs at a time, so no bucket is full.
        loop.batcher.arrays[1][:, BucketColumn.LIMIT] = 2
        loop.run(Schedule(continuous=True, most_running=1))
        loop.check()
    assert loop.batcher.flushes[reason] == sum(loop.batcher.flushes) == stream.commands


def test_without_stalls_a_bucket_waits_for_its_deadline() -> None:
    """The second request's second token is alone. Its commands leave at their deadline, not earlier."""
    timeout_ns = 2_000_000
    stream = stream_of([(0, 1), (0, 2)])
    with looping(stream, rules=replace(LONG, on_stall=False, timeout_ns=timeout_ns)) as loop:
        loop.run(Schedule(continuous=True))
        loop.check()
        run = recorded(loop.fake.recorder)
    alone = run.launches[:, LaunchColumn.REASON] == FlushReason.deadline
    assert alone.sum() == stream.gemms_per_step, "the second token of the second request"
    first = np.cumsum(run.launches[:, LaunchColumn.SIZE]) - run.launches[:, LaunchColumn.SIZE]
    waited_ns = run.launches[:, LaunchColumn.FLUSH_NS] - run.commands[first, CommandColumn.ELIGIBLE_NS]
    assert (waited_ns[alone] >= timeout_ns).all()


def test_no_row_is_lost_where_buffers_hold_just_what_they_must() -> None:
    stream, capacity = stream_of([(3, 9)] * 7, VOCAB, 2), 16
    most = capacity + sum(min(4, stream.together(shape)) for shape in stream.shapes)
    recorder = Recorder(stream.commands, most, least_rows=2)
    with looping(stream, 4, GREEDY, EVERY, capacity=capacity, recorder=recorder) as loop:
        loop.run()
        assert recorder.cursor[CursorWord.SPOOLED_COMMANDS] > 0, (
            "the buffers were large enough for all: a test of nothing"
        )
        loop.check()


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY], ids=lambda sampling: sampling.kind.name)
def test_an_order_that_is_broken_is_noticed(sampling: Sampling) -> None:
    """Commands enter buckets without a wait. Those of one shape leave together, though each needs the previous one."""
    stream = stream_of([(0, 6)] * 6, vocab_of(sampling))
    with looping(stream, 64, sampling, rules=replace(LONG, timeout_ns=2_000_000), violated=True) as loop:
        loop.run()
        assert loop.fake.recorder.faults() == [], "each command still runs once"
        found = loop.verified()
    assert not found.ok
    assert found.wrong > 0
    assert found.first_wrong is not None


def test_a_stop_ends_the_loop() -> None:
    with looping(stream_of(SIDE_BY_SIDE)) as loop:
        loop.ring.set_word(HeaderWord.STOP, 1)
        with pytest.raises(Interrupted, match="stopped by the parent"):
            loop.run()
        assert isinstance(loop.error, Interrupted)


def behave(loop: Loop, **how: Any) -> None:
    """Replace functions of the loop's `Feedback` from now on."""
    loop.pump._feedback = replace(loop.pump._feedback, **how)


def never_done(flights: Flights, count: int) -> None:
    """Make steps in flight that are never complete."""
    stream = flights._stream
    flights.take_off(count, facts_of(stream, 0, 0, 0), *np.zeros((2, len(StagedRow), stream.requests), np.uint64))


def test_a_stop_is_noticed_while_a_step_is_under_way_on_the_device() -> None:
    """The step is fed back but not complete, and no record can come."""
    with looping(stream_of([(0, 2)])) as loop:
        fed: list[int] = []

        def stop_soon(flights: Flights, count: int) -> None:
            fed.append(count)
            never_done(flights, count)
            threading.Timer(0.05, loop.ring.set_word, (HeaderWord.STOP, 1)).start()

        behave(loop, feed_back=stop_soon)
        with pytest.raises(Interrupted):
            loop.run()
    assert fed == [1]
    assert loop.flights.count == 1


def lost() -> None:
    raise RunError("the device is lost")


@pytest.mark.parametrize("spin_ns", [20_000, SECOND_NS * 3600], ids=["naps", "only spins"])
@pytest.mark.parametrize("outputs", [1, 2], ids=["ring closed", "ring open"])
def test_a_device_that_is_lost_while_a_step_is_under_way_ends_the_loop(outputs: int, spin_ns: int) -> None:
    with looping(stream_of([(0, outputs)]), spin_ns=spin_ns) as loop:
        behave(loop, feed_back=never_done, check_alive=lost)
        with pytest.raises(RunError, match="the device is lost"):
            loop.run()
    assert loop.flights.count == 1


def test_a_step_that_takes_long_is_waited_for() -> None:
    """The loop asks again and again whether the device is alive, and every token is right."""
    with looping(stream_of([(0, 3)], VOCAB), sampling=GREEDY) as loop:
        feed_back, landed, asked = loop.pump._feedback.feed_back, loop.flights.done.copy(), [0]

        def in_secret(flights: Flights, count: int) -> None:
            feed_back(flights, count)
            landed[:] = flights.done
            flights.done[flights.done != NOT_YET] = NOT_YET

        def tell_at_the_second() -> None:
            asked[0] += 1
            if asked[0] == 2:
                loop.flights.done[:] = landed
                behave(loop, feed_back=feed_back)

        behave(loop, feed_back=in_secret, check_alive=tell_at_the_second)
        loop.run()
        loop.check()
    assert asked[0] >= 2


@pytest.mark.parametrize("limit", [1, 64])
def test_a_failing_launch_ends_the_loop(limit: int) -> None:
    with looping(stream_of(SIDE_BY_SIDE), limit, fail_at=3) as loop:
        with pytest.raises(RuntimeError, match=f"status {FAILURE}"):
            loop.run()
        assert loop.fake.calls == 3


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("limit", [1, 64])
def test_a_shape_that_was_not_announced_ends_the_loop_when_it_must_wait(limit: int, every: int) -> None:
    """The second GEMM of each token has an unknown shape. That is found when its wait for the first one ends."""
    stream = stream_of(SIDE_BY_SIDE)
    unknown = next(i for i, shape in enumerate(stream.shapes) if (shape.m, shape.k) == TINY[1])
    message = pytest.raises(RunError, match=r"shape .*which the workload did not announce")
    with looping(stream, limit, shapes=slice(unknown), every=every) as loop, message:
        loop.run()


def test_a_shape_that_was_not_announced_is_named_when_it_is_first() -> None:
    stream = stream_of([(0, 1)])
    strange: Records = np.zeros(1, COMMAND_DTYPE)
    strange["seq"], strange["m"], strange["n"], strange["k"] = 41, 9, 1, 7
    with looping(stream) as loop:
        assert loop.ring.push(strange) == 1
        with pytest.raises(RunError, match=r"^command 41 has shape 9x1x7 \(dtype 0, op 0\), which the workload"):
            loop.pump.run()
