"""The batcher against a model of it: dictionaries of lists, and a clock that the test turns by hand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.order_models import NOTHING, SHAPES, Command, Left, Model, due_ns, left, seqs

from launchopt.batching.batch import FlushReason, FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.command import COMMAND_DTYPE, Dtype, Flag, Records, ShapeKey
from launchopt.errors import RunError

properties = settings(deadline=None, max_examples=100)


def commands(shapes: Iterable[ShapeKey], first: int = 0) -> Records:
    """A record for each shape, numbered from `first`."""
    wanted = list(shapes)
    records = np.zeros(len(wanted), COMMAND_DTYPE)
    for record, shape in zip(records, wanted, strict=True):
        record["m"], record["n"], record["k"] = shape.m, shape.n, shape.k
        record["dtype"], record["op"] = shape.dtype, shape.op
    records["seq"] = records["slot_c"] = first + np.arange(len(wanted))
    return records


turn = st.one_of(
    st.lists(st.integers(0, len(SHAPES) - 1), max_size=12),  # commands of these shapes
    st.integers(0, 30),  # time passes, and nothing comes
    st.just("drained"),
)


@settings(properties, max_examples=300)
@given(
    limits=st.lists(st.integers(1, 9), min_size=len(SHAPES), max_size=len(SHAPES)),
    timeout_ns=st.integers(0, 100),
    idle_ns=st.none() | st.integers(0, 60),
    turns=st.lists(turn, max_size=25),
)
def test_batcher_does_what_its_model_does(
    limits: list[int], timeout_ns: int, idle_ns: int | None, turns: list[list[int] | int | str]
) -> None:
    rules, now_ns, sent = FlushRules(timeout_ns, idle_ns), 1_000, 0
    stream = [Command(0, shape) for action in turns if isinstance(action, list) for shape in action]
    batcher, model = Batcher(SHAPES, limits, rules), Model(stream, limits, rules, None, False)
    batcher.start(now_ns)
    model.last_ns = now_ns
    got: list[Left] = []
    for action in [*turns, "drained"]:
        came = action if isinstance(action, list) else []
        now_ns += action if isinstance(action, int) else 0
        records = commands((SHAPES[i] for i in came), sent)
        got.extend(left(batch) for batch in batcher.take(records, now_ns, action == "drained"))
        model.take(range(sent, sent + len(came)), now_ns, action == "drained", lambda at: got[at][0])
        sent += len(came)
        assert got == model.out
        assert due_ns(batcher) == model.due_ns
        assert batcher.held == sum(map(len, model.buckets.values()))
    assert batcher.held == 0
    assert batcher.flushes == [sum(reason is flushed for _, flushed, _ in got) for reason in FlushReason]


@properties
@given(
    stream=st.lists(st.integers(0, len(SHAPES) - 1), max_size=300),
    chunk=st.integers(1, 50),
    limit=st.integers(1, 16),
)
def test_every_command_leaves_exactly_once_and_in_order(stream: list[int], chunk: int, limit: int) -> None:
    """Every command that enters the batcher leaves it once. This test uses no model."""
    batcher = Batcher(SHAPES, [limit] * len(SHAPES), FlushRules(7))
    out: list[list[int]] = [[] for _ in SHAPES]
    batches = 0
    parts = [stream[first : first + chunk] for first in range(0, len(stream), chunk)]
    for now_ns, part in enumerate([*parts, []]):
        records = commands((SHAPES[i] for i in part), now_ns * chunk)
        for batch in batcher.take(records, now_ns, is_drained=not part):
            assert 1 <= len(batch) <= limit
            out[batch.shape_index] += seqs(batch)
            batches += 1
    assert out == [[seq for seq, i in enumerate(stream) if i == shape] for shape in range(len(SHAPES))]
    assert (batcher.held, sum(batcher.flushes)) == (0, batches)


def test_a_rare_shape_does_not_starve_beside_a_busy_one() -> None:
    batcher = Batcher(SHAPES[:2], [8, 8], FlushRules(100))
    list(batcher.take(commands([SHAPES[1]]), now_ns=0))
    reasons = set()
    for now_ns in range(100):
        batches = list(batcher.take(commands([SHAPES[0]] * 3, 1 + 3 * now_ns), now_ns))
        reasons |= {(batch.shape_index, batch.reason) for batch in batches}
    assert reasons == {(0, FlushReason.full)}
    rare, *_ = batcher.take(NOTHING, 100)
    assert left(rare) == (1, FlushReason.deadline, [0])


def test_a_bucket_that_was_emptied_starts_a_new_deadline() -> None:
    batcher = Batcher(SHAPES[:1], [3], FlushRules(100))
    list(batcher.take(commands([SHAPES[0]] * 3), now_ns=0))
    assert due_ns(batcher) is None
    list(batcher.take(commands([SHAPES[0]], 3), now_ns=50))
    list(batcher.take(commands([SHAPES[0]], 4), now_ns=90))  # company does not put it off
    assert due_ns(batcher) == 150
    assert list(batcher.take(NOTHING, 149)) == []
    assert [left(batch) for batch in batcher.take(NOTHING, 150)] == [(0, FlushReason.deadline, [3, 4])]


def test_without_a_timeout_everything_is_due_at_once() -> None:
    batcher = Batcher(SHAPES, [4] * len(SHAPES), FlushRules(0))
    batches = list(batcher.take(commands(SHAPES), now_ns=5))
    assert sorted(batch.shape_index for batch in batches) == list(range(len(SHAPES)))


def test_many_shapes_find_their_own_bucket() -> None:
    """200 shapes in a table of 512 places collide. The batcher must still distinguish them."""
    shapes = [
        ShapeKey(m, n, k, dtype)
        for m in (1, 2, 64, 4096, 8192)
        for n in range(1, 6)
        for k in (1, 64, 128, 8192)
        for dtype in (Dtype.fp32, Dtype.bf16)
    ]
    assert len(shapes) == 200
    wanted = np.random.default_rng(0).integers(0, 200, 2000)
    records = commands(shapes[i] for i in wanted)
    batcher = Batcher(shapes, [3] * 200, FlushRules(1 << 60))
    assert batcher.classify(records, np.zeros(4000, np.int32)).tolist() == wanted.tolist()
    assert batcher.held == 0
    out: dict[int, list[int]] = {}
    for part in (records, NOTHING):
        for batch in batcher.take(part, 0, is_drained=True):
            out.setdefault(batch.shape_index, []).extend(seqs(batch))
    assert out == {i: np.flatnonzero(wanted == i).tolist() for i in set(wanted.tolist())}


def test_flags_do_not_tell_shapes_apart() -> None:
    records = commands([SHAPES[0]] * 4)
    records["flags"] = [0, 1, 0x8000, 0xFFFF]
    batcher = Batcher(SHAPES, [4] * len(SHAPES), FlushRules(1 << 60))
    assert batcher.classify(records, np.zeros(4, np.int32)).tolist() == [0] * 4
    assert [seqs(batch) for batch in batcher.take(records, 0)] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("field", ["m", "n", "k", "dtype", "op"])
def test_an_unknown_shape_is_named(field: str) -> None:
    records = commands([*SHAPES, SHAPES[0]], first=40)
    records[field][5] = 77
    names = {"m": 64, "n": 1, "k": 8, "dtype": 1, "op": 0} | {field: 77}
    text = "command 45 has shape {m}x{n}x{k} (dtype {dtype}, op {op}), which".format(**names)
    batcher = Batcher(SHAPES, [4] * len(SHAPES), FlushRules(1 << 60))
    with pytest.raises(RunError) as caught:
        batcher.classify(records, np.zeros(6, np.int32))
    assert str(caught.value).startswith(text)
    with pytest.raises(RunError) as caught:
        list(batcher.take(records, 0))
    assert str(caught.value).startswith(text)


@properties
@given(
    groups=st.lists(st.lists(st.integers(0, len(SHAPES) - 1), min_size=1, max_size=12), min_size=1, max_size=12),
    chunk=st.integers(1, 50),
    limit=st.integers(1, 5),
    buckets=st.sampled_from([1, len(SHAPES)]),
)
def test_groups_leave_one_after_another(groups: list[list[int]], chunk: int, limit: int, buckets: int) -> None:
    rules = FlushRules(1 << 40, on_stall=False, has_groups=True)
    batcher = Batcher(SHAPES, [limit] * buckets, rules)
    records = commands(SHAPES[shape] for group in groups for shape in group)
    group_of = [number for number, group in enumerate(groups) for _ in group]
    records["flags"][np.flatnonzero(np.diff(group_of, append=-1))] = Flag.GROUP_END
    out = []
    for first in range(0, len(records), chunk):
        out += [(batch.reason, seqs(batch)) for batch in batcher.take(records[first : first + chunk], 1)]
    assert batcher.held == 0
    assert {reason for reason, _ in out} <= {FlushReason.full, FlushReason.stall}
    left_in = [[group_of[seq] for seq in batch] for _, batch in out]
    assert [group for batch in left_in for group in batch] == group_of
    assert all(len(set(batch)) == 1 for batch in left_in)
    assert sorted(seq for _, batch in out for seq in batch) == list(range(len(records)))
