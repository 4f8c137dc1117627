"""Order within requests against a model of it, and what must hold without one: order, completeness, no deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.order_models import (
    NOTHING,
    REQUESTS,
    SHAPES,
    Command,
    Left,
    Model,
    batcher_of,
    due_ns,
    left,
    records_of,
    seqs,
)

from launchopt.batching.batch import Batch, FlushReason, FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.batching.order import Order, land_step, order_arrays
from launchopt.command import Records, RecordWord

properties = settings(deadline=None, max_examples=150)
commands_of_requests = st.lists(
    st.builds(
        Command, st.integers(0, REQUESTS - 1), st.integers(0, len(SHAPES) - 1), st.sampled_from([False, False, True])
    ),
    max_size=80,
)
limits_of_shapes = st.lists(st.integers(1, 6), min_size=len(SHAPES), max_size=len(SHAPES))
capacities = st.integers(1, 4) | st.just(100)
actions = st.lists(
    st.one_of(
        st.integers(0, 12),  # so many commands
        st.tuples(st.integers(0, 30)),  # so much time passes, and nothing comes
    ),
    max_size=30,
)


@settings(properties, max_examples=300)
@given(
    commands=commands_of_requests,
    limits=limits_of_shapes,
    rules=st.builds(FlushRules, st.integers(0, 100), st.none() | st.integers(0, 60), st.booleans()),
    capacity=capacities,
    violated=st.sampled_from([False, False, False, True]),
    turns=actions,
)
def test_batcher_does_what_its_model_does(
    commands: list[Command],
    limits: list[int],
    rules: FlushRules,
    capacity: int,
    violated: bool,
    turns: list[int | tuple[int]],
) -> None:
    batcher = batcher_of(limits, rules, capacity, violated)
    model = Model(commands, limits, rules, capacity, violated)
    records, now_ns, sent = records_of(commands), 1_000, 0
    got: list[Left] = []
    for action in [*turns, len(commands), None]:
        count = action if isinstance(action, int) else 0
        part = range(sent, min(sent + count, len(commands)))
        sent = part.stop
        now_ns += action[0] if isinstance(action, tuple) else 0
        is_drained = action is None
        got.extend(left(batch) for batch in batcher.take(records[part.start : part.stop], now_ns, is_drained))
        model.take(part, now_ns, is_drained, lambda at: got[at][0])
        assert got == model.out
        assert batcher.waiting == model.waits
        assert due_ns(batcher) == model.due_ns
        assert batcher.held == sum(map(len, model.buckets.values()))
    assert (batcher.held, batcher.waiting, sent) == (0, 0, len(commands))
    assert sorted(seq for _, _, numbers in got for seq in numbers) == list(range(len(commands)))
    assert batcher.flushes == [sum(reason is flushed for _, flushed, _ in got) for reason in FlushReason]


class Consumer:
    """Takes commands as a loop does, turns the clock, and notes when and in which batch each command left."""

    def __init__(self, batcher: Batcher, commands: Sequence[Command]) -> None:
        self.batcher, self.commands, self.now_ns = batcher, commands, 0
        self.batch_of: dict[int, int] = {}
        self.left_ns: dict[int, int] = {}
        self.eligible_ns: dict[int, int] = {}
        self.batches = 0

    def submit(self, batch: Batch) -> None:
        numbers = seqs(batch)
        requests = [self.commands[seq].request for seq in numbers]
        assert len(set(requests)) == len(requests) > 0
        assert {self.commands[seq].shape for seq in numbers} == {batch.shape_index}
        for seq, eligible_ns in zip(numbers, batch.words[:, RecordWord.ELIGIBLE_NS].tolist(), strict=True):
            assert seq not in self.batch_of
            self.batch_of[seq], self.left_ns[seq], self.eligible_ns[seq] = self.batches, self.now_ns, eligible_ns
        self.batches += 1

    def take(self, records: Records = NOTHING) -> None:
        for batch in self.batcher.take(records, self.now_ns):
            self.submit(batch)

    def finish(self) -> None:
        """No clock but the deadlines is turned, so nothing may be left that has none."""
        while (deadline_ns := due_ns(self.batcher)) is not None:
            self.now_ns = max(self.now_ns, deadline_ns)
            self.take()


def chains(commands: Sequence[Command]) -> list[list[int]]:
    """Numbers of each request's commands, in order."""
    return [[seq for seq, command in enumerate(commands) if command.request == r] for r in range(REQUESTS)]


@properties
@given(
    commands=commands_of_requests,
    limits=limits_of_shapes,
    timeout_ns=st.integers(0, 60),
    capacity=capacities,
    chunk=st.integers(1, 30),
    on_stall=st.booleans(),
)
def test_everything_leaves_once_in_order_and_in_time(
    commands: list[Command], limits: list[int], timeout_ns: int, capacity: int, chunk: int, on_stall: bool
) -> None:
    consumer = Consumer(batcher_of(limits, FlushRules(timeout_ns, None, on_stall), capacity), commands)
    records, tick_ns = records_of(commands), 5
    for first in range(0, len(commands), chunk):
        consumer.take(records[first : first + chunk])
        consumer.take()
        consumer.now_ns += tick_ns
    consumer.finish()
    assert (consumer.batcher.held, consumer.batcher.waiting) == (0, 0)
    assert sorted(consumer.batch_of) == list(range(len(commands)))
    for numbers in chains(commands):
        for before, seq in pairwise(numbers):
            assert consumer.batch_of[before] < consumer.batch_of[seq]
            assert consumer.left_ns[before] <= consumer.eligible_ns[seq]
    for seq in range(len(commands)):  # nobody starves: at the first look after its deadline at the latest
        assert 0 <= consumer.left_ns[seq] - consumer.eligible_ns[seq] < timeout_ns + tick_ns


@properties
@given(commands=commands_of_requests, limits=limits_of_shapes, capacity=capacities, chunk=st.integers(1, 30))
def test_stalls_alone_drain_all_that_a_step_waits_for(
    commands: list[Command], limits: list[int], capacity: int, chunk: int
) -> None:
    """With no deadline: whoever waits for the end of each request's step will see it."""
    last = {numbers[-1] for numbers in chains(commands) if numbers}
    commands = [Command(c.request, c.shape, seq in last) for seq, c in enumerate(commands)]
    consumer = Consumer(batcher_of(limits, 1 << 60, capacity), commands)
    for first in range(0, len(commands), chunk):
        consumer.take(records_of(commands)[first : first + chunk])
    consumer.take()
    assert sorted(consumer.batch_of) == list(range(len(commands)))
    assert consumer.batcher.held == 0


@properties
@given(
    steps=st.lists(st.integers(0, 4), min_size=1, max_size=REQUESTS).filter(any),
    rows=st.integers(1, 3),
    comes_first=st.randoms(use_true_random=False),
    known=st.booleans(),
)
def test_a_stall_waits_for_whoever_comes_at_once(steps: list[int], rows: int, comes_first: Random, known: bool) -> None:
    """Requests in step stay so, however often is looked between two of them, if it is known how many steps follow."""
    counts = np.array(steps)
    order = order_arrays(len(steps), expected=counts > 0, steps=counts if known else None)
    batcher = Batcher(SHAPES[:rows], [len(steps)] * rows, FlushRules(1 << 60), order)
    sizes: list[int] = []

    def take(records: Records) -> None:
        for part in (records, NOTHING):
            sizes.extend(len(batch) for batch in batcher.take(part, 0))

    together = []
    for step in range(max(steps)):
        live = [request for request, count in enumerate(steps) if count > step]
        comes_first.shuffle(live)
        for request in live:
            take(records_of([Command(request, row, row == rows - 1) for row in range(rows)]))
        for request in live:
            land_step(request, Order(*order))
        together += rows * [len(live)]
        assert (batcher.held, sum(sizes)) == (0, sum(together))
        if not known and step > 0:  # each goes ahead of those behind it
            assert sizes[-rows * len(live) :] == [1] * rows * len(live)
            sizes[:] = together
        assert sizes == together


@properties
@given(commands=commands_of_requests, limits=limits_of_shapes, chunk=st.integers(1, 30))
def test_violated_keeps_no_order_but_loses_nothing(commands: list[Command], limits: list[int], chunk: int) -> None:
    batcher = batcher_of(limits, 1 << 60, 1, violated=True)
    out: dict[int, list[int]] = {shape: [] for shape in range(len(SHAPES))}
    for first in range(0, len(commands), chunk):
        for batch in batcher.take(records_of(commands[first : first + chunk], first), first):
            out[batch.shape_index] += seqs(batch)
        assert batcher.waiting == 0
    for batch in batcher.take(NOTHING, len(commands), is_drained=True):
        out[batch.shape_index] += seqs(batch)
    assert out == {shape: [i for i, c in enumerate(commands) if c.shape == shape] for shape in out}


def test_a_lone_request_leaves_by_its_deadline_beside_busy_ones() -> None:
    """Three requests in step fill a bucket again and again; the fourth's shapes are its own."""
    batcher = batcher_of([3, 8, 8], 100, capacity=1000, requests=4)
    lone = [Command(3, shape) for shape in (1, 2, 1)]
    consumer = Consumer(batcher, lone + [Command(i % 3, 0) for i in range(3000)])
    consumer.take(records_of(lone))
    for first in range(3, 3003, 3):
        consumer.now_ns += 1
        consumer.take(records_of(consumer.commands[first : first + 3], first))
    assert [consumer.left_ns[seq] for seq in range(3)] == [100, 200, 300]
    assert consumer.batches == 1003
