"""Records of a step that arrive while the device runs the step before it; test_step_batcher_model.py draws them."""

from __future__ import annotations

import numpy as np
import pytest
from support.steps.step_models import LONGEST, NEVER_NS, NOTHING, Left, left, records_of, step_of, steps

from launchopt.batching.batch import FlushReason, FlushRules
from launchopt.batching.step_batcher import StepBatcher
from launchopt.command import Records
from launchopt.errors import RunError


def batcher_of(
    requests: int, limit: int = 9, timeout_ns: int = NEVER_NS, total: int = 9, ahead: bool = True
) -> StepBatcher:
    return StepBatcher(np.full(requests, total), LONGEST, limit, FlushRules(timeout_ns), ahead=ahead)


def taken(batcher: StepBatcher, records: Records = NOTHING, now_ns: int = 0) -> list[Left]:
    return [left(batch) for batch in batcher.take(records, now_ns)]


def test_records_that_come_early_wait_for_the_last() -> None:
    """While the step before is with the device; the step counts from when the last has come."""
    batcher = batcher_of(2, timeout_ns=100)
    assert taken(batcher, steps((0, 1), (1, 1)), 5) == [(1, FlushReason.full, [0, 1])]
    for request, now_ns in ((1, 10), (0, 20)):
        assert taken(batcher, step_of(request, 2)[:2], now_ns) == []
    assert (batcher.held, batcher.partial, batcher.live) == (0, 2, 2)
    assert taken(batcher, now_ns=500) == []
    batcher.landed(0)
    assert taken(batcher, step_of(0, 2)[2:], 600) == []
    assert taken(batcher, now_ns=699) == []  # the other one's is with the device: no stall
    (batch,) = batcher.take(NOTHING, 700)
    assert left(batch) == (2, FlushReason.deadline, [0])
    assert records_of(batch)["turn"].tolist() == [[600]] * 3
    batcher.landed(1)
    assert taken(batcher, step_of(0, 1)[:2], 710) == []
    assert taken(batcher, step_of(1, 2)[2:], 720) == []
    batcher.landed(0)
    assert taken(batcher, step_of(0, 1)[2:], 730) == []
    assert taken(batcher, now_ns=740) == [(2, FlushReason.stall, [1]), (1, FlushReason.stall, [0])]


def test_what_came_early_is_as_if_it_had_not() -> None:
    """Of a batch of all requests, which is not copied, and of others."""
    for limit in (4, 2):
        batcher, plain = batcher_of(4, limit), batcher_of(4, limit, ahead=False)
        for number in range(4):
            records = np.concatenate([step_of(request, 1, 3 * request, number) for request in range(4)])
            is_last = records["flags"] > 0
            if number:
                assert taken(batcher, records[~is_last], 10 * number) == []
                for request in range(4):
                    batcher.landed(request)
                    plain.landed(request)
            coming = records[is_last] if number else records
            pairs = zip(batcher.take(coming, 10 * number + 5), plain.take(records, 10 * number + 5), strict=True)
            for early, late in pairs:
                assert records_of(early).tobytes() == records_of(late).tobytes()
                assert early.reason is late.reason


@pytest.mark.parametrize(
    "records", [step_of(1, 1, 39)[2:], step_of(1, 1, 39), step_of(1, 0, 41)], ids=["alone", "behind others", "only one"]
)
def test_a_last_record_before_its_time_is_an_error(records: Records) -> None:
    """Alone, behind the others, or that of a step which has no other."""
    batcher = batcher_of(2)
    assert len(taken(batcher, steps((0, 1), (1, 1)))) == 1
    with pytest.raises(RunError, match="command 41 begins or ends a step of request 1 out of turn"):
        taken(batcher, records)


@pytest.mark.parametrize("when", ["held", "last"])
def test_a_record_is_early_only_while_a_step_is_with_the_device_and_another_follows(when: str) -> None:
    batcher = batcher_of(2, total=9 if when == "held" else 1)
    assert taken(batcher, step_of(1, 1)) == []
    if when == "last":
        assert len(taken(batcher)) == 1
    with pytest.raises(RunError, match="command 41 begins or ends a step of request 1 out of turn"):
        taken(batcher, step_of(1, 1, first=41)[:1])
