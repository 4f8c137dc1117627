"""The batcher against a model of it: dictionaries of lists, and a clock that the test turns by hand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.batching.batcher import Batch, Batcher
from launchopt.batching.buckets import FlushReason
from launchopt.command import COMMAND_DTYPE, Dtype, Records, ShapeKey
from launchopt.errors import RunError

# Shapes that differ in one dimension each, or have dimensions swapped.
SHAPES = [ShapeKey(m, n, k, Dtype.fp16) for m, n, k in [(64, 1, 8), (64, 2, 8), (65, 1, 8), (1, 64, 8), (8, 1, 64)]]
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


def seqs(batch: Batch) -> list[int]:
    records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
    assert records["slot_c"].tolist() == records["seq"].tolist()
    return list(records["seq"].tolist())


class Model:
    """What a batcher must hold: per shape the sequence numbers in order, and when the first of them came."""

    def __init__(self, limits: list[int], timeout_ns: int) -> None:
        self.limits, self.timeout_ns = limits, timeout_ns
        self.held: dict[int, list[int]] = {}
        self.opened: dict[int, int] = {}
        self.flushes = [0] * len(FlushReason)

    def add(self, shape: int, seq: int, now_ns: int) -> list[tuple[int, list[int]]]:
        self.opened.setdefault(shape, now_ns)
        self.held.setdefault(shape, []).append(seq)
        return [self.take(shape, FlushReason.full)] if len(self.held[shape]) == self.limits[shape] else []

    def take(self, shape: int, reason: FlushReason) -> tuple[int, list[int]]:
        self.flushes[reason] += 1
        del self.opened[shape]
        return shape, self.held.pop(shape)

    @property
    def deadline_ns(self) -> int | None:
        return min(self.opened.values()) + self.timeout_ns if self.opened else None


def take(batch: Batch, reason: FlushReason, model: Model) -> None:
    """A batch which is not full must be the model's oldest bucket."""
    assert batch.reason is reason
    assert model.opened[batch.shape_index] == min(model.opened.values())
    assert (batch.shape_index, seqs(batch)) == model.take(batch.shape_index, reason)


turn = st.one_of(
    st.lists(st.integers(0, len(SHAPES) - 1), max_size=12),  # commands of these shapes
    st.integers(0, 30),  # time passes, and due buckets leave
    st.sampled_from([FlushReason.idle, FlushReason.drain]),
)


@settings(properties, max_examples=300)
@given(
    limits=st.lists(st.integers(1, 9), min_size=len(SHAPES), max_size=len(SHAPES)),
    timeout_ns=st.integers(0, 100),
    turns=st.lists(turn, max_size=25),
)
def test_batcher_does_what_its_model_does(
    limits: list[int], timeout_ns: int, turns: list[list[int] | int | FlushReason]
) -> None:
    batcher, model = Batcher(SHAPES, limits, timeout_ns), Model(limits, timeout_ns)
    now_ns, sent = 1_000, 0
    for action in [*turns, FlushReason.drain]:
        if isinstance(action, FlushReason):
            for batch in batcher.flush(action):
                take(batch, action, model)
            assert batcher.held == 0
        elif isinstance(action, list):
            full = [(b.shape_index, seqs(b)) for b in batcher.add(commands((SHAPES[i] for i in action), sent), now_ns)]
            assert full == [left for seq, i in enumerate(action, sent) for left in model.add(i, seq, now_ns)]
            sent += len(action)
        else:
            now_ns += action
            while (due := batcher.due(now_ns)) is not None:
                assert model.deadline_ns is not None
                assert model.deadline_ns <= now_ns
                take(due, FlushReason.deadline, model)
            assert model.deadline_ns is None or model.deadline_ns > now_ns
        assert batcher.next_deadline_ns() == model.deadline_ns
        assert batcher.held == sum(map(len, model.held.values()))
        assert batcher.flushes == model.flushes


@properties
@given(
    stream=st.lists(st.integers(0, len(SHAPES) - 1), max_size=300),
    chunk=st.integers(1, 50),
    limit=st.integers(1, 16),
)
def test_every_command_leaves_exactly_once_and_in_order(stream: list[int], chunk: int, limit: int) -> None:
    """The same said without a model: what came out is what went in."""
    batcher = Batcher(SHAPES, [limit] * len(SHAPES), timeout_ns=7)
    out: list[list[int]] = [[] for _ in SHAPES]
    batches = 0

    def left(batch: Batch) -> None:
        nonlocal batches
        assert 1 <= len(batch) <= limit
        out[batch.shape_index] += seqs(batch)
        batches += 1

    for now_ns, first in enumerate(range(0, len(stream), chunk)):
        for batch in batcher.add(commands((SHAPES[i] for i in stream[first : first + chunk]), first), now_ns):
            left(batch)
        while (due := batcher.due(now_ns)) is not None:
            left(due)
    for batch in batcher.flush(FlushReason.drain):
        left(batch)
    assert out == [[seq for seq, i in enumerate(stream) if i == shape] for shape in range(len(SHAPES))]
    assert (batcher.held, sum(batcher.flushes)) == (0, batches)


def test_a_rare_shape_does_not_starve_beside_a_busy_one() -> None:
    batcher = Batcher(SHAPES[:2], [8, 8], timeout_ns=100)
    list(batcher.add(commands([SHAPES[1]]), now_ns=0))
    for now_ns in range(100):
        list(batcher.add(commands([SHAPES[0]] * 3, 1 + 3 * now_ns), now_ns))
        assert batcher.due(now_ns) is None
    rare = batcher.due(100)
    assert rare is not None
    assert (rare.shape_index, seqs(rare)) == (1, [0])


def test_a_bucket_that_was_emptied_starts_a_new_deadline() -> None:
    batcher = Batcher(SHAPES[:1], [3], timeout_ns=100)
    list(batcher.add(commands([SHAPES[0]] * 3), now_ns=0))
    assert batcher.next_deadline_ns() is None
    list(batcher.add(commands([SHAPES[0]], 3), now_ns=50))
    list(batcher.add(commands([SHAPES[0]], 4), now_ns=90))  # company does not put it off
    assert batcher.next_deadline_ns() == 150


def test_without_a_timeout_everything_is_due_at_once() -> None:
    batcher = Batcher(SHAPES, [4] * len(SHAPES), timeout_ns=0)
    list(batcher.add(commands(SHAPES), now_ns=5))
    assert sorted(batch.shape_index for batch in iter(lambda: batcher.due(5), None)) == list(range(len(SHAPES)))


def test_many_shapes_find_their_own_bucket() -> None:
    """200 shapes in a table of 512 places collide; each must still be told from the others."""
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
    batcher = Batcher(shapes, [3] * 200, timeout_ns=0)
    assert batcher.classify(records, np.zeros(4000, np.int32)).tolist() == wanted.tolist()
    assert batcher.held == 0
    out: dict[int, list[int]] = {}
    for batches in (batcher.add(records, 0), batcher.flush(FlushReason.drain)):
        for batch in batches:
            out.setdefault(batch.shape_index, []).extend(seqs(batch))
    assert out == {i: np.flatnonzero(wanted == i).tolist() for i in set(wanted.tolist())}


def test_flags_do_not_tell_shapes_apart() -> None:
    records = commands([SHAPES[0]] * 4)
    records["flags"] = [0, 1, 0x8000, 0xFFFF]
    batcher = Batcher(SHAPES, [4] * len(SHAPES), timeout_ns=0)
    assert batcher.classify(records, np.zeros(4, np.int32)).tolist() == [0] * 4
    assert [seqs(batch) for batch in batcher.add(records, 0)] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("field", ["m", "n", "k", "dtype", "op"])
def test_an_unknown_shape_is_named(field: str) -> None:
    records = commands([*SHAPES, SHAPES[0]], first=40)
    records[field][5] = 77
    names = {"m": 64, "n": 1, "k": 8, "dtype": 1, "op": 0} | {field: 77}
    text = "command 45 has shape {m}x{n}x{k} (dtype {dtype}, op {op}), which".format(**names)
    batcher = Batcher(SHAPES, [4] * len(SHAPES), timeout_ns=0)
    with pytest.raises(RunError) as caught:
        batcher.classify(records, np.zeros(6, np.int32))
    assert str(caught.value).startswith(text)
    with pytest.raises(RunError) as caught:
        list(batcher.add(records, 0))
    assert str(caught.value).startswith(text)
