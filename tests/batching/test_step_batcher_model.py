"""Batches of whole steps against a model of the batcher, for random streams and turns."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.step_models import (
    KINDS,
    LONGEST,
    NEVER_NS,
    Issuer,
    Left,
    Model,
    check_batch,
    left,
    records_of,
)

from launchopt.batching.batch import FlushReason, FlushRules
from launchopt.batching.step_batcher import StepBatcher
from launchopt.command import COMMAND_DTYPE

properties = settings(deadline=None, max_examples=150)
plans = st.lists(st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=4), min_size=1, max_size=8)
turns = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 99), st.integers(1, 9)),
        st.tuples(st.just("push"), st.integers(0, 99), st.just(LONGEST)),
        st.tuples(st.just("pop"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("pop"), st.just(100), st.just(0)),
        st.tuples(st.just("time"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("land"), st.integers(1, 4), st.just(0)),
    ),
    max_size=60,
)


@settings(properties, max_examples=400)
@given(
    plans=plans,
    turns=turns,
    limit=st.integers(1, 9),
    timeout_ns=st.integers(0, 100) | st.just(NEVER_NS),
    idle_ns=st.none() | st.integers(0, 60),
    on_stall=st.booleans(),
    in_rounds=st.booleans(),
    rounds=st.lists(st.booleans(), min_size=1, max_size=5),
    ahead=st.booleans(),
)
def test_step_batcher_does_what_its_model_does(
    plans: list[list[int]],
    turns: list[tuple[str, int, int]],
    limit: int,
    timeout_ns: int,
    idle_ns: int | None,
    on_stall: bool,
    in_rounds: bool,
    rounds: list[bool],
    ahead: bool,
) -> None:
    """Records of several requests mixed in any way, popped in any pieces; every one leaves once, as the rules say.

    That some of a step come while the one before it is with the device changes nothing.
    """
    ahead = ahead and not in_rounds
    totals = np.array([len(plan) for plan in plans])
    rules = FlushRules(timeout_ns, idle_ns, on_stall, in_rounds)
    batcher = StepBatcher(totals, LONGEST, limit, rules, kinds=len(KINDS), ahead=ahead)
    model = Model(totals.tolist(), limit, timeout_ns, idle_ns, on_stall, in_rounds)
    issuer, now_ns = Issuer(plans, rounds, ahead), 1_000
    queue: deque[tuple[np.void, int]] = deque()
    out: list[np.void] = []
    got: list[Left] = []
    flying: deque[int] = deque()
    complete_ns: dict[tuple[int, int], int] = {}

    def pop(most: int, is_drained: bool = False) -> None:
        part = [queue.popleft() for _ in range(min(most, len(queue)))]
        records = np.array([record for record, _ in part], COMMAND_DTYPE)
        for record in records[records["flags"] > 0]:
            complete_ns[int(record["request"]), int(record["step"]) // LONGEST] = now_ns
        for batch in batcher.take(records, now_ns, is_drained):
            check_batch(batch, limit, complete_ns)
            got.append(left(batch))
            out.extend(records_of(batch).reshape(-1))
            flying.extend(got[-1][2])
            issuer.left.update(got[-1][2])
        model.take([(int(r["request"]), kind, int(r["flags"])) for r, kind in part], now_ns, is_drained)
        assert got == model.out
        assert (batcher.held, batcher.live, batcher.partial) == (len(model.held), len(model.live), len(model.partial))

    def land(most: int) -> None:
        for _ in range(min(most, len(flying))):
            request = flying.popleft()
            batcher.landed(request)
            model.land(request)
            issuer.landed(request)

    for what, count, most in turns:
        if what == "push" and (able := issuer.able):
            queue.extend(issuer.push(able[count % len(able)], most))
        elif what == "pop":
            pop(count)
        elif what == "time":
            now_ns += count
        elif what == "land":
            land(count)
    while issuer.able or queue or flying or batcher.held:  # to the end
        for request in issuer.able:
            queue.extend(issuer.push(request, LONGEST))
        pop(1 << 30, is_drained=not issuer.able)
        land(1 << 30)
    assert (batcher.held, batcher.live, batcher.partial) == (0, 0, 0)
    assert batcher.flushes == [sum(reason is flushed for _, flushed, _ in got) for reason in FlushReason]
    out.sort(key=lambda record: (record["request"], record["step"]))
    issuer.sent.sort(key=lambda record: (record["request"], record["step"]))
    for mine, theirs in zip(out, issuer.sent, strict=True):
        mine["turn"] = theirs["turn"]
        assert mine.tobytes() == theirs.tobytes()
