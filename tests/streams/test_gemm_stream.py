"""The stream of GEMMs for any linears, layers and segments: order, slots, inputs and blocks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.command import COMMAND_DTYPE, Dtype, Records, ShapeKey, as_words
from launchopt.streams.gemm_stream import INPUT_ARENA_LIMIT_BYTES, INPUT_TURNS, CommandOrder, GemmStream, Segment
from launchopt.streams.operands import SLOT_ALIGNMENT_BYTES, ArenaKey, arenas_of
from launchopt.workloads.gemv import gemv

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
    """A command reads the slot of its weight in the copy of its step, and the next slot of the cycle of inputs."""
    width = stream.gemms_per_step
    records = all_records(stream).reshape(-1, width)
    next_b: Counter[ArenaKey] = Counter()
    weights: dict[tuple[ArenaKey, int, int], int] = {}  # (arena, copy, rank) -> slot, always the same one
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


@properties
@given(streams)
def test_strides_can_be_launched_with(stream: GemmStream) -> None:
    """For any stream, no stride is negative, and the stride of outputs is not 0."""
    strides = stream.strides()
    assert sorted(strides) == stream.shapes
    assert all(min(move) >= 0 and move[2] > 0 for move in strides.values())


def test_records_are_the_ones_compiled_code_reads() -> None:
    records = all_records(gemv(4, 1, 4, 3, Dtype.fp32, 2))
    assert records.dtype == COMMAND_DTYPE
    assert as_words(records).shape == (3, 8)
