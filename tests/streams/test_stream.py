"""The stream: properties for any linears, layers and segments, then the counts that the workloads must give."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.arrivals.requests import Requests
from launchopt.batching.batcher import Batcher, FlushRules
from launchopt.command import COMMAND_DTYPE, Dtype, Records, ShapeKey, as_words
from launchopt.devices.runs import run_end
from launchopt.streams.footprint import COLD_CACHES, Cache, replicas_for
from launchopt.streams.model import ModelShape
from launchopt.streams.operands import SLOT_ALIGNMENT_BYTES, ArenaKey, arenas_of
from launchopt.streams.stream import INPUT_ARENA_LIMIT_BYTES, INPUT_TURNS, CommandOrder, GemmStream, Segment
from launchopt.workloads.decode import decode, decode_requests
from launchopt.workloads.gemv import gemv
from launchopt.workloads.prefill import prefill, prefill_requests

PREDECESSOR = ModelShape("predecessor", 1024, 8, 8, 2, 128, 4096, gated=False)
TINY = ModelShape("tiny", 8, 2, 2, 1, 4, 16)
properties = settings(deadline=None, max_examples=60)

sizes = st.sampled_from([1, 2, 3, 8])
segments = st.lists(
    st.builds(Segment, st.integers(1, 3), st.integers(1, 12), st.integers(0, 2), st.none() | st.integers(0, 9)),
    min_size=1,
    max_size=5,
)
streams = st.builds(
    GemmStream,
    st.lists(st.tuples(sizes, sizes), min_size=1, max_size=4),
    st.integers(1, 3),
    segments,
    st.sampled_from(Dtype),
    st.integers(1, 4),
    st.builds(CommandOrder, st.booleans(), st.integers(0, 3)),
)


def all_records(stream: GemmStream, block_records: int = 4096) -> Records:
    return np.concatenate([block.records for block in stream.blocks(block_records)])


def shape_of(record: np.void, dtype: Dtype) -> ShapeKey:
    assert record["dtype"] == dtype
    return ShapeKey(int(record["m"]), int(record["n"]), int(record["k"]), dtype)


@properties
@given(streams)
def test_commands_are_numbered_and_counted(stream: GemmStream) -> None:
    records = all_records(stream)
    assert records["seq"].tolist() == list(range(stream.commands))
    shapes = [shape_of(record, stream.dtype) for record in records]
    assert stream.counts == Counter(shapes)
    assert stream.shapes == sorted(set(shapes))
    assert stream.flops == sum(shape.flops for shape in shapes)
    assert stream.bytes_moved == sum(shape.bytes for shape in shapes)
    assert not records["flags"].any()
    assert not records["enqueue_ns"].any()


@properties
@given(streams)
def test_each_step_is_every_gemm_of_every_layer_once_and_in_order(stream: GemmStream) -> None:
    width = len(stream.linears) * stream.layers
    expected = [
        (segment.request, m, segment.n, k)
        for segment in stream.segments
        for _ in range(segment.steps * stream.layers)
        for m, k in stream.linears
    ]
    records = all_records(stream)
    assert records[["request", "m", "n", "k"]].tolist() == expected
    for request in set(records["request"].tolist()):
        own = records[records["request"] == request]
        assert own["step"].tolist() == list(range(len(own)))
        assert len(own) % width == 0
    assert stream.requests == len(set(records["request"].tolist()))


@properties
@given(streams)
def test_no_two_commands_write_one_output_and_all_slots_exist(stream: GemmStream) -> None:
    used: dict[ArenaKey, list[int]] = {arena: [] for arena in stream.arenas}
    for record in all_records(stream):
        for arena in arenas_of(shape_of(record, stream.dtype)):
            used[arena].append(int(record[f"slot_{arena.role}"]))
    for arena, slots in used.items():
        if arena.role == "c":
            assert sorted(slots) == list(range(stream.arenas[arena]))
        assert max(slots) < stream.arenas[arena]
    assert stream.arena_bytes == sum(arena.slot_bytes * count for arena, count in stream.arenas.items())
    assert stream.input_bytes == sum(
        arena.slot_bytes * count for arena, count in stream.arenas.items() if arena.role in "ab"
    )


@properties
@given(streams)
def test_inputs_follow_the_documented_rule(stream: GemmStream) -> None:
    """Weights: the step's slot, in the copy whose turn it is. Inputs: the next slot of a cycle of their own."""
    width = stream.gemms_per_step
    records = all_records(stream).reshape(-1, width)
    next_b: Counter[ArenaKey] = Counter()
    weights: dict[tuple[ArenaKey, int, int], int] = {}  # (arena, copy, rank) is always one and the same slot
    for step, commands in enumerate(records):
        rank_a: Counter[ArenaKey] = Counter()
        for record in commands:
            a, b, _ = arenas_of(shape_of(record, stream.dtype))
            key = (a, step % stream.replicas, rank_a[a])
            rank_a[a] += 1
            slot = weights.setdefault(key, int(record["slot_a"]))
            assert record["slot_a"] == slot
            assert record["slot_b"] == next_b[b] % stream.arenas[b]
            next_b[b] += 1
        for arena, count in rank_a.items():
            assert stream.arenas[arena] == count * stream.replicas
    for arena in {key[0] for key in weights}:
        slots = [slot for key, slot in weights.items() if key[0] == arena]
        assert len(set(slots)) == len(slots)


@properties
@given(streams, st.integers(1, 200))
def test_blocks_of_any_size_are_the_same_stream(stream: GemmStream, block_records: int) -> None:
    blocks = list(stream.blocks(block_records))
    assert np.concatenate([block.records for block in blocks]).tobytes() == all_records(stream).tobytes()
    assert all(len(block.records) <= max(block_records, stream.gemms_per_step) for block in blocks)
    due = {
        segment.request: {s.due_ns for s in stream.segments if s.request == segment.request}
        for segment in stream.segments
    }
    for block in blocks:
        due_ns = {None} if block.due_ns is None else set(block.due_ns.tolist())
        assert block.due_ns is None or len(block.due_ns) == len(block.records)
        assert len(due_ns) == 1
        assert due_ns <= due[int(block.records["request"][0])]


def test_without_shuffle_the_copies_are_taken_in_turn_and_with_it_they_are_a_permutation() -> None:
    plain, shuffled = (
        all_records(gemv(2, 1, 2, 40, Dtype.fp32, 16, CommandOrder(shuffle, seed=1))) for shuffle in (False, True)
    )
    assert plain["slot_a"].tolist() == [i % 16 for i in range(40)]
    order = shuffled["slot_a"][:16].tolist()
    assert sorted(order) == list(range(16)) != order
    assert shuffled["slot_a"].tolist() == [order[i % 16] for i in range(40)]
    again = all_records(gemv(2, 1, 2, 40, Dtype.fp32, 16, CommandOrder(shuffle=True, seed=1)))
    other = all_records(gemv(2, 1, 2, 40, Dtype.fp32, 16, CommandOrder(shuffle=True, seed=2)))
    assert again.tobytes() == shuffled.tobytes() != other.tobytes()


def test_inputs_cycle_within_their_limit() -> None:
    arena = ArenaKey("b", 1024, 8192, Dtype.fp32)
    fit = INPUT_ARENA_LIMIT_BYTES // arena.slot_bytes
    assert 1 < fit < 100
    assert gemv(64, 1024, 8192, 100, Dtype.fp32, 100).arenas[arena] == fit
    deep = GemmStream([(64, 8192)], fit + 3, [Segment(1024, 2)], Dtype.fp32, 1)  # a step has more than that
    assert deep.arenas[arena] == fit
    small = gemv(64, 1, 64, 10_000, Dtype.fp32, 100)
    assert small.arenas[ArenaKey("b", 1, 64, Dtype.fp32)] == 100 * INPUT_TURNS
    huge = ArenaKey("b", 8192, 1 << 14, Dtype.fp32)
    assert huge.slot_bytes > INPUT_ARENA_LIMIT_BYTES
    over = gemv(1, huge.rows, huge.cols, 3, Dtype.fp32, 1)
    assert over.arenas[huge] == 1
    assert all_records(over)["slot_b"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("rows", [1, 64, 65])
def test_slots_are_aligned(rows: int) -> None:
    slot_bytes = ArenaKey("a", rows, 1, Dtype.fp32).slot_bytes
    assert slot_bytes % SLOT_ALIGNMENT_BYTES == 0
    assert rows * 4 <= slot_bytes < rows * 4 + SLOT_ALIGNMENT_BYTES


def common_moves(stream: GemmStream, shape: ShapeKey) -> tuple[int, ...]:
    records = all_records(stream)
    own = records[(records["m"] == shape.m) & (records["n"] == shape.n) & (records["k"] == shape.k)]
    slots = np.stack([own[f"slot_{role}"].astype(np.int64) for role in "abc"], axis=1)
    (move, _), *_ = Counter(map(tuple, np.diff(slots, axis=0).tolist())).most_common(1)
    return tuple(move)


@pytest.mark.parametrize(
    "stream",
    [
        gemv(64, 1, 64, 5000, Dtype.fp16, 32),
        decode(PREDECESSOR, 8, 40, 1, Dtype.fp16, 2),
        decode(TINY, 2, 300, 3, Dtype.fp32, 8),
    ],
    ids=["gemv", "decode", "tiny"],
)
def test_strides_are_the_most_common_move(stream: GemmStream) -> None:
    assert stream.strides() == {shape: common_moves(stream, shape) for shape in stream.shapes}


@properties
@given(streams)
def test_strides_can_be_launched_with(stream: GemmStream) -> None:
    """Whatever the stream: no slot moves backwards, and outputs never stand still."""
    strides = stream.strides()
    assert sorted(strides) == stream.shapes
    assert all(min(move) >= 0 and move[2] > 0 for move in strides.values())


def batches_of(stream: GemmStream, limit: int) -> tuple[Counter[int], int]:
    """How many batches of each size a batcher makes of the stream, and how many strided calls they need."""
    limits = [min(limit, stream.counts[shape]) for shape in stream.shapes]
    batcher, strides = Batcher(stream.shapes, limits, FlushRules(1 << 40)), stream.strides()
    sizes: Counter[int] = Counter()
    calls = 0

    def runs() -> int:
        first, count, moves = 0, 0, strides[stream.shapes[batch.shape_index]]
        while first < len(batch):
            first, count = run_end(batch.words, first, *moves), count + 1
        return count

    nothing = np.zeros(0, COMMAND_DTYPE)
    for records in (*(block.records for block in stream.blocks()), nothing):
        for batch in batcher.take(records, 0, is_drained=records is nothing):
            sizes[len(batch)] += 1
            calls += runs()
    return sizes, calls


def test_predecessors_gemv_is_2_000_000_commands_in_3907_batches() -> None:
    stream = gemv(64, 1, 8192, 2_000_000, Dtype.fp32, 512)
    assert stream.commands == 2_000_000
    assert batches_of(stream, 512) == ({512: 3906, 128: 1}, 3907)


def test_predecessors_decode_is_400_000_commands_in_25_000_batches() -> None:
    stream = decode(PREDECESSOR, 8, 12_500, 1, Dtype.fp16, 4)
    assert stream.commands == 400_000
    assert batches_of(stream, 16) == ({16: 25_000}, 25_000)


def test_predecessors_prefill_is_256_commands_in_32_batches() -> None:
    stream = prefill(PREDECESSOR, 64, 1, 256, Dtype.fp16, 1)
    assert (stream.commands, {shape.n for shape in stream.shapes}) == (256, {256})
    assert batches_of(stream, 8)[0] == {8: 32}


REQUESTS = Requests(np.array([0, 10_000, 30_000]), np.array([5, 1, 7]), np.array([2, 0, 3]))


def test_replayed_decode_is_a_prefill_and_a_step_a_token() -> None:
    stream = decode_requests(TINY, 2, REQUESTS, 2.0, Dtype.fp32, 1)
    assert stream.segments == (
        Segment(5, 1, 0, 0),
        Segment(1, 2, 0, 0),
        Segment(1, 1, 1, 5_000),
        Segment(7, 1, 2, 15_000),
        Segment(1, 3, 2, 15_000),
    )
    assert stream.commands == 8 * (3 + 1 + 4)
    assert stream.requests == 3
    third = all_records(stream)
    third = third[third["request"] == 2]
    assert third["step"].tolist() == list(range(32))  # one count over both of its segments
    assert third["n"].tolist() == [7] * 8 + [1] * 24
    due_ns = [block.due_ns for block in stream.blocks()]
    assert [None if each is None else each.tolist() for each in due_ns] == [
        [due] * 8 * steps for due, steps in ((0, 1), (0, 2), (5_000, 1), (15_000, 1), (15_000, 3))
    ]


def test_gemv_commands_are_requests_of_their_own_due_when_said() -> None:
    due_ns = np.arange(10_000) * 7
    stream = gemv(2, 1, 2, 10_000, Dtype.fp32, 3, CommandOrder(due_ns=due_ns))
    records = all_records(stream)
    assert records["request"].tolist() == list(range(10_000))
    assert not records["step"].any()
    assert (stream.requests, stream.independent) == (10_000, True)
    blocks = [block.due_ns for block in stream.blocks(100)]
    assert np.concatenate([each for each in blocks if each is not None]).tolist() == due_ns.tolist()
    assert all(block.due_ns is None for block in gemv(2, 1, 2, 10_000, Dtype.fp32, 3).blocks(100))


def test_replayed_prefill_is_the_contexts() -> None:
    stream = prefill_requests(TINY, 1, REQUESTS, 0.5, Dtype.fp32, 1)
    assert stream.segments == (Segment(5, 1, 0, 0), Segment(1, 1, 1, 20_000), Segment(7, 1, 2, 60_000))


def test_prompts_are_requests() -> None:
    records = all_records(prefill(TINY, 2, 3, 9, Dtype.bf16, 1))
    assert records["request"].tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert set(records["n"].tolist()) == {9}


@properties
@given(weights=st.integers(1, 10**6), cache=st.integers(1, 10**8), multiple=st.integers(1, 600))
def test_cold_copies_are_the_fewest_that_fill_the_cache_four_times(weights: int, cache: int, multiple: int) -> None:
    copies = replicas_for(Cache.cold, weights, cache, multiple)
    assert copies % multiple == 0
    assert copies * weights >= COLD_CACHES * cache
    assert (copies - multiple) * weights < COLD_CACHES * cache


@properties
@given(weights=st.integers(1, 10**6), cache=st.integers(1, 10**8))
def test_hot_copies_are_the_most_that_fit_in_half_the_cache(weights: int, cache: int) -> None:
    copies = replicas_for(Cache.hot, weights, cache)
    assert copies == 1 or copies * weights <= cache / 2
    assert (copies + 1) * weights > cache / 2


def test_records_are_the_ones_compiled_code_reads() -> None:
    records = all_records(gemv(4, 1, 4, 3, Dtype.fp32, 2))
    assert records.dtype == COMMAND_DTYPE
    assert as_words(records).shape == (3, 8)
