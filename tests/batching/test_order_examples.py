"""Order within requests, by example: who leaves together, what a stall flushes, and when a command is eligible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from support.steps.order_models import (
    NOTHING,
    SHAPES,
    Command,
    Left,
    batcher_of,
    left,
    records_of,
    seqs,
)

from launchopt.batching.batch import FlushReason, FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.batching.order import order_arrays
from launchopt.command import RecordWord
from launchopt.errors import RunError


@pytest.mark.parametrize(("violated", "expected"), [(False, [[0], [1]]), (True, [[1], [0]])])
def test_violated_breaks_the_order(violated: bool, expected: list[list[int]]) -> None:
    """A command of a bucket that fills at once, behind one of a bucket that does not."""
    batcher = batcher_of([4, 1], 100, capacity=4, violated=violated)
    batches = [seqs(batch) for batch in batcher.take(records_of([Command(3, 0), Command(3, 1)]), 0)]
    batches += [seqs(batch) for batch in batcher.take(NOTHING, 0, is_drained=True)]
    assert batches == expected


def test_requests_in_step_batch_and_go_on_together() -> None:
    batcher = batcher_of([4, 4], 100, capacity=100)
    steps = [Command(request, shape) for request in range(4) for shape in (0, 1, 0)]
    assert [left(batch) for batch in batcher.take(records_of(steps), 0)] == [
        (0, FlushReason.full, [0, 3, 6, 9]),
        (1, FlushReason.full, [1, 4, 7, 10]),
        (0, FlushReason.full, [2, 5, 8, 11]),
    ]


def taken(batcher: Batcher, commands: Sequence[Command] = (), first: int = 0, now_ns: int = 0) -> list[Left]:
    return [left(batch) for batch in batcher.take(records_of(commands, first), now_ns)]


def test_a_stall_flushes_the_largest_bucket_and_of_equals_the_one_opened_first() -> None:
    batcher = batcher_of([9] * 4, 1 << 60, capacity=100)
    for now_ns, (request, shape) in enumerate([(0, 0), (1, 2), (2, 1), (3, 1), (4, 2), (5, 3)]):
        assert taken(batcher, [Command(request, shape)], now_ns, now_ns) == []
    assert taken(batcher, now_ns=6) == [], "nobody waits"
    assert taken(batcher, [Command(5, 0)], 6, 6) == []
    assert [numbers for _, _, numbers in taken(batcher, now_ns=7)] == [[1, 4], [2, 3], [0], [5]]
    assert (batcher.held, batcher.waiting) == (1, 0)  # the last ends no step, and nobody waits for it
    assert batcher.flushes[FlushReason.stall] == 4


def test_of_equal_buckets_a_stall_flushes_the_oldest_whatever_left_before() -> None:
    batcher = batcher_of([2, 9, 9, 9], 1 << 60, capacity=100)
    for now_ns in range(4):  # a bucket each
        assert taken(batcher, [Command(now_ns, now_ns)], now_ns, now_ns) == []
    assert taken(batcher, [Command(4, 0), Command(2, 0)], 4, 4) == [(0, FlushReason.full, [0, 4])]
    assert taken(batcher, now_ns=4)[0] == (1, FlushReason.stall, [1])


def test_the_end_of_a_step_is_waited_for() -> None:
    batcher = batcher_of([9], 1 << 60, capacity=100)
    assert taken(batcher, [Command(0, 0)]) == []
    assert taken(batcher) == []
    assert taken(batcher, [Command(1, 0, ends_step=True)], 1) == []
    assert taken(batcher) == [(0, FlushReason.stall, [0, 1])]


def test_a_full_pool_makes_its_own_room() -> None:
    batcher = batcher_of([9, 9], 1 << 60, capacity=2)
    assert taken(batcher, [Command(0, shape) for shape in (0, 1, 0, 1, 0)]) == [
        (0, FlushReason.stall, [0]),
        (1, FlushReason.stall, [1]),
    ]
    assert (batcher.held, batcher.waiting) == (1, 2)


def test_eligible_is_when_the_command_before_it_left() -> None:
    batcher = batcher_of([9, 9], FlushRules(50, None, on_stall=False), capacity=4)
    assert taken(batcher, [Command(0, 0), Command(0, 1)], now_ns=10) == []
    for now_ns, eligible_ns in ((60, 10), (110, 60)):
        assert taken(batcher, now_ns=now_ns - 1) == []
        (batch,) = batcher.take(NOTHING, now_ns)
        assert batch.words[:, RecordWord.ELIGIBLE_NS].tolist() == [eligible_ns]


def test_an_unknown_shape_is_named_or_said_to_have_waited() -> None:
    known = [Command(0, 0), Command(0, 0), Command(1, 0), Command(2, 0)]
    records = records_of(known)
    records["m"][1] = 77
    with pytest.raises(RunError, match="a command that waited has a shape"):
        list(batcher_of([2], 0, capacity=4).take(records, 0))
    with pytest.raises(RunError, match="command 1 has shape 77x1x8"):
        list(batcher_of([2], 0, capacity=4).take(records[1:], 0))


def test_those_that_come_at_once_wait_for_each_other() -> None:
    """Requests 0 and 1 are expected: no stall before both are there; a deadline still counts."""
    order = order_arrays(3, expected=np.array([True, True, False]))
    batcher = Batcher(SHAPES[:1], [9], FlushRules(10), order)
    assert taken(batcher, [Command(1, 0), Command(1, 0)]) == []
    assert taken(batcher, [Command(2, 0)], first=2) == []
    assert taken(batcher) == []
    assert taken(batcher, now_ns=10) == [(0, FlushReason.deadline, [0, 2])]
    assert taken(batcher, [Command(0, 0), Command(0, 0)], first=3, now_ns=11) == []
    assert taken(batcher, now_ns=11) == [(0, FlushReason.stall, [1, 3])]
