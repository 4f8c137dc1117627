"""Batches of whole steps, by example: they are whole, in order, of one kind and in time."""

from __future__ import annotations

import numpy as np
import pytest
from support.steps.step_models import (
    LONGEST,
    NEVER_NS,
    NOTHING,
    ROUND_END,
    Left,
    left,
    records_of,
    step_of,
    steps,
)

from launchopt.arrivals.requests import Requests
from launchopt.batching import step_buckets as sb
from launchopt.batching import step_policy
from launchopt.batching.batch import FlushReason, FlushRules
from launchopt.batching.step_batcher import StepBatcher, steps_of_requests
from launchopt.command import Dtype, Records
from launchopt.errors import RunError
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.chain_table import ChainColumn


def batcher_of(
    requests: int = 4, limit: int = 9, timeout_ns: int = NEVER_NS, total: int = 9, **more: bool
) -> StepBatcher:
    return StepBatcher(np.full(requests, total), LONGEST, limit, FlushRules(timeout_ns, **more))


def taken(batcher: StepBatcher, records: Records = NOTHING, now_ns: int = 0, is_drained: bool = False) -> list[Left]:
    return [left(batch) for batch in batcher.take(records, now_ns, is_drained)]


def test_steps_of_all_requests_leave_together_whatever_their_order() -> None:
    batcher = batcher_of(4)
    assert taken(batcher, steps((2, 1), (0, 1), (3, 1), (1, 1))) == [(1, FlushReason.full, [0, 1, 2, 3])]


def test_records_of_several_requests_in_turn() -> None:
    batcher = batcher_of(3)
    mixed = np.stack([step_of(request, 1) for request in (2, 0, 1)], axis=1).reshape(-1)
    assert taken(batcher, mixed[:8], 5) == []
    assert (batcher.held, batcher.partial, batcher.live) == (2, 1, 3)
    batches = list(batcher.take(mixed[8:], 6))
    assert [left(batch) for batch in batches] == [(1, FlushReason.full, [0, 1, 2])]
    assert records_of(batches[0])["turn"].tolist() == [[5, 6, 5]] * 3


def test_a_full_bucket_leaves_at_once_and_the_next_begins() -> None:
    batcher = batcher_of(5, limit=2)
    assert taken(batcher, steps(*((request, 1) for request in (4, 3, 0, 1, 2)))) == [
        (1, FlushReason.full, [3, 4]),
        (1, FlushReason.full, [0, 1]),
    ]
    assert batcher.held == 1


def test_a_stall_is_when_every_live_request_is_held() -> None:
    """A request is live until its last step is complete, also while its step runs or its next step has not come."""
    batcher = StepBatcher(np.array([2, 1, 1, 1]), LONGEST, 2, FlushRules(NEVER_NS))
    assert taken(batcher, steps((0, 1), (1, 1))) == [(1, FlushReason.full, [0, 1])]
    assert taken(batcher, steps((2, 2))) == []
    assert taken(batcher) == []  # on the device: 0 and 1
    batcher.landed(1)
    assert taken(batcher) == []  # on the device: 0
    batcher.landed(0)
    assert taken(batcher) == []  # 0 goes on
    assert taken(batcher, step_of(0, 1)[:1]) == []
    assert taken(batcher) == []  # its step is arriving
    assert taken(batcher, step_of(0, 1)[1:]) == []  # others may be in the ring
    assert batcher.live == 2
    assert taken(batcher) == [(2, FlushReason.stall, [2]), (1, FlushReason.stall, [0])]


def test_those_that_come_at_once_wait_for_each_other() -> None:
    """Requests 0 to 2 are expected: no bucket stalls before they come. Others are live from their first record."""
    expected = np.array([True, True, True, False])
    batcher = StepBatcher(np.ones(4, np.int64), LONGEST, 4, FlushRules(NEVER_NS), expected=expected)
    assert batcher.live == 3
    assert list(batcher.take(steps((1, 0), (0, 0)), 0)) == []
    assert list(batcher.take(NOTHING, 0)) == []
    assert list(batcher.take(steps((3, 0)), 0)) == []
    assert batcher.live == 4
    assert [left(batch) for batch in batcher.take(steps((2, 0)), 0)] == [(0, FlushReason.full, [0, 1, 2, 3])]
    for request in range(4):
        batcher.landed(request)
    assert batcher.live == 0


def test_those_that_were_expected_are_not_waited_for_for_ever() -> None:
    batcher = StepBatcher(np.ones(2, np.int64), LONGEST, 2, FlushRules(10), expected=np.ones(2, np.bool_))
    assert list(batcher.take(steps((1, 0)), 0)) == []
    assert list(batcher.take(NOTHING, 9)) == []
    assert [left(batch) for batch in batcher.take(NOTHING, 10)] == [(0, FlushReason.deadline, [1])]


def test_a_stall_empties_all_buckets_the_largest_first_and_of_equals_the_oldest() -> None:
    batcher = batcher_of(7)
    for now_ns, (request, kind) in enumerate([(0, 3), (1, 2), (2, 1), (3, 1), (4, 2), (5, 2), (6, 0)]):
        assert taken(batcher, step_of(request, kind), now_ns) == []
    stall = FlushReason.stall
    assert taken(batcher) == [(2, stall, [1, 4, 5]), (1, stall, [2, 3]), (3, stall, [0]), (0, stall, [6])]


def test_what_comes_during_a_stall_is_not_part_of_it() -> None:
    batcher = batcher_of(4)
    assert taken(batcher, steps((0, 1), (1, 2))) == []
    words = step_of(2, 2).view(np.uint64).reshape(-1, 8)
    assert step_policy.next_kind(words[:0], 0, 0, False, batcher.arrays)[2] == FlushReason.stall
    step_policy.let_go(0, batcher.arrays)
    start, kind, reason = step_policy.next_kind(words, 0, 0, False, batcher.arrays)
    assert (start, reason) == (0, FlushReason.stall)
    assert step_policy.let_go(kind, batcher.arrays) == (1, 3)
    assert step_policy.next_kind(words, 0, 0, False, batcher.arrays)[:2] == (3, sb.KindCode.NONE)
    assert batcher.held == 1


def test_without_stalls_only_time_lets_them_go() -> None:
    batcher = batcher_of(2, timeout_ns=100, on_stall=False)
    assert taken(batcher, step_of(0, 1), 10) == []
    assert taken(batcher, step_of(1, 2), 20) == []
    assert taken(batcher, now_ns=109) == []
    assert taken(batcher, now_ns=119) == [(1, FlushReason.deadline, [0])]
    assert taken(batcher, now_ns=120) == [(2, FlushReason.deadline, [1])]


def test_a_deadline_counts_from_when_the_first_step_was_complete() -> None:
    batcher = batcher_of(3, timeout_ns=100, on_stall=False)
    for part, now_ns in ((slice(2), 10), (slice(2, 3), 50)):
        assert taken(batcher, step_of(0, 1)[part], now_ns) == []
    assert taken(batcher, step_of(1, 1), 149) == []
    assert taken(batcher, step_of(2, 2), 150) == [(1, FlushReason.deadline, [0, 1])]


def test_at_the_end_all_that_is_held_leaves() -> None:
    batcher = batcher_of(4, on_stall=False)
    assert taken(batcher, steps((1, 2), (0, 1), (2, 2)), is_drained=True) == [
        (2, FlushReason.drain, [1, 2]),
        (1, FlushReason.drain, [0]),
    ]
    assert taken(batcher, step_of(3, 1)[:1], is_drained=True) == []
    assert (batcher.held, batcher.partial) == (0, 1)


def test_in_rounds_the_last_record_says_that_nobody_else_will_come() -> None:
    batcher = batcher_of(4, limit=2, in_rounds=True)
    assert taken(batcher, step_of(0, 1)) == []
    assert taken(batcher) == []  # though every live request is held
    assert taken(batcher, steps((1, 1), (2, 2))) == [(1, FlushReason.full, [0, 1])]
    batcher.landed(0)
    batcher.landed(1)
    assert taken(batcher) == []
    assert taken(batcher, step_of(3, 1, flags=ROUND_END)) == []
    assert taken(batcher) == [(2, FlushReason.stall, [2]), (1, FlushReason.stall, [3])]  # though 0 and 1 are not held
    batcher.landed(2)
    batcher.landed(3)
    assert taken(batcher, step_of(0, 1)) == []
    assert taken(batcher) == []  # the next round


def test_thousands_of_prompts_of_different_lengths() -> None:
    count = 3_000
    batcher = StepBatcher(np.ones(count, np.int64), LONGEST, 64, FlushRules(NEVER_NS))
    records = np.concatenate([step_of(request, 1) for request in range(count)])
    records["n"] = 1 + np.repeat(np.random.default_rng(1).permutation(count), 3)
    assert list(batcher.take(records, 0)) == []
    batches = list(batcher.take(NOTHING, 0))
    assert [(batch.size, batch.rows) for batch in batches] == [(1, 3)] * count
    assert batcher.flushes[FlushReason.stall] == count


def test_prompts_that_are_as_long_as_each_other_share_a_bucket() -> None:
    records = np.concatenate([step_of(request, 1) for request in range(900)])
    records["n"] = 1 + np.repeat(np.arange(900) % 300, 3)
    batcher = StepBatcher(np.ones(900, np.int64), LONGEST, 3, FlushRules(NEVER_NS), kinds=300)
    assert [records_of(batch)["request"][0].tolist() for batch in batcher.take(records, 0)] == [
        [request, request + 300, request + 600] for request in range(300)
    ]
    batcher = StepBatcher(np.ones(900, np.int64), LONGEST, 3, FlushRules(NEVER_NS), kinds=299)
    with pytest.raises(RunError, match="command 2 of request 299 ends a step of one kind too many"):
        list(batcher.take(records, 0))


@pytest.mark.parametrize("size", [2, 3, 50, 1000])
def test_members_leave_in_ascending_order(size: int) -> None:
    batcher = StepBatcher(np.ones(size, np.int64), LONGEST, size, FlushRules(NEVER_NS))
    order = np.random.default_rng(size).permutation(size).tolist()
    assert taken(batcher, steps(*((request, 0) for request in order))) == [(0, FlushReason.full, list(range(size)))]


@pytest.mark.parametrize("when", ["held", "left", "finished"])
def test_a_step_out_of_turn_is_an_error(when: str) -> None:
    batcher = batcher_of(2, total=1)
    assert taken(batcher, step_of(1, 1)) == []
    if when != "held":
        assert len(taken(batcher)) == 1
    if when == "finished":
        batcher.landed(1)
    with pytest.raises(RunError, match="command 41 begins or ends a step of request 1 out of turn"):
        taken(batcher, step_of(1, 1, first=41))


def test_what_was_not_announced_is_an_error() -> None:
    with pytest.raises(RunError, match="command 5 is of request 4, which"):
        taken(batcher_of(4), step_of(4, 1, first=5))
    too_long = step_of(0, 6)
    too_long["flags"] = 0
    with pytest.raises(RunError, match="command 0 of request 0 does not end its step, which is longer"):
        taken(batcher_of(4), np.concatenate([too_long, step_of(0, 1)]))


def test_steps_of_requests_are_those_that_a_driver_issues() -> None:
    """Prompts in chunks, with the first token at their end; or the whole stream's count of commands, divided."""
    prompts, outputs = np.array([0, 5, 4, 9, 1]), np.array([4, 1, 3, 0, 2])
    asked = Requests(np.zeros(5, np.int64), prompts, outputs)
    for chunk, expected in ((None, [4, 1, 3, 1, 2]), (4, [4, 2, 3, 3, 2])):
        stream = ChainStream([(16, 8), (8, 16)], 2, asked, Dtype.fp32, 1, ChainSettings(chunk_tokens=chunk))
        assert steps_of_requests(stream.table).tolist() == expected
        assert sum(expected) * 4 == stream.commands
        short = stream.table[:2].copy()
        short[:, ChainColumn.DECODES] = np.minimum(short[:, ChainColumn.DECODES], 2)
        assert steps_of_requests(short).tolist() == [2, expected[1]]
