"""The stream of a trace's GEMMs: properties for any GEMMs, then the check of its outputs."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.straight import multiply, operands, records_of

from launchopt.command import Dtype, Records, ShapeKey
from launchopt.streams.gemm_stream import INPUT_TURNS
from launchopt.streams.operands import arenas_of
from launchopt.streams.trace_stream import TraceStream, first_commands
from launchopt.traces.gemms import Gemm
from launchopt.verify.commands import CheckSettings, verify

properties = settings(deadline=None, max_examples=60)
sizes = st.sampled_from([1, 2, 3, 8])


@st.composite
def traces(draw: st.DrawFn) -> list[Gemm]:
    """Draw operators in order of time; threads are numbered in order of their first operator."""
    gemms, now_ns, threads = [], 0, 1
    for number in range(draw(st.integers(1, 12))):
        now_ns += draw(st.integers(0, 5_000)) if number else 0
        thread = draw(st.integers(0, min(threads, 2))) if number else 0
        threads = max(threads, thread + 1)
        shape = draw(st.tuples(sizes, sizes, sizes))
        gemms.append(Gemm(now_ns, now_ns + draw(st.integers(0, 900)), thread, *shape, draw(st.integers(1, 5)), "float"))
    return gemms


def stream_of(gemms: list[Gemm], weights: int = 2, repeat: int = 1, speed: float | None = None) -> TraceStream:
    return TraceStream(gemms, Dtype.fp32, lambda arena, uses: weights, repeat, speed)


def commands_of(gemms: list[Gemm], repeat: int) -> list[tuple[int, int, int, int]]:
    """Return the thread and the sizes of each command."""
    return [(gemm.thread, gemm.m, gemm.n, gemm.k) for gemm in gemms * repeat for _ in range(gemm.batch)]


def shape_of(record: np.void) -> ShapeKey:
    return ShapeKey(int(record["m"]), int(record["n"]), int(record["k"]), Dtype.fp32)


@properties
@given(traces(), st.integers(1, 4), st.integers(1, 3))
def test_commands_come_in_the_order_of_the_trace(gemms: list[Gemm], weights: int, repeat: int) -> None:
    stream = stream_of(gemms, weights, repeat)
    records = records_of(stream)
    assert records[["request", "m", "n", "k"]].tolist() == commands_of(gemms, repeat)
    assert records["seq"].tolist() == list(range(stream.commands))
    for request in range(stream.requests):
        steps = records["step"][records["request"] == request]
        assert steps.tolist() == list(range(len(steps))) != []
    shapes = [shape_of(record) for record in records]
    assert stream.counts == Counter(shapes)
    assert stream.shapes == sorted(set(shapes))
    assert stream.flops == sum(shape.flops for shape in shapes)
    assert not records["flags"].any()


@properties
@given(traces(), st.integers(1, 4), st.integers(1, 3))
def test_inputs_take_turns_and_outputs_are_their_own(gemms: list[Gemm], weights: int, repeat: int) -> None:
    stream = stream_of(gemms, weights, repeat)
    uses = Counter(arena for gemm in commands_of(gemms, repeat) for arena in arenas_of(ShapeKey(*gemm[1:], Dtype.fp32)))
    assert stream.arenas.keys() == uses.keys()
    next_use: Counter[object] = Counter()
    for record in records_of(stream):
        for arena in arenas_of(shape_of(record)):
            assert record[f"slot_{arena.role}"] == next_use[arena] % stream.arenas[arena]
            next_use[arena] += 1
    for arena, slots in stream.arenas.items():
        most = {"a": weights, "b": weights * INPUT_TURNS, "c": uses[arena]}[arena.role]
        assert slots == min(uses[arena], most)
    reused = [slots for arena, slots in stream.arenas.items() if arena.is_weight and slots < uses[arena]]
    assert stream.fewest_weights == (min(reused) if reused else None)


@properties
@given(traces(), st.integers(1, 3), st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 30))
def test_each_is_due_when_it_was_asked_for(gemms: list[Gemm], repeat: int, speed: float, block_records: int) -> None:
    stream = stream_of(gemms, repeat=repeat, speed=speed)
    turn_ns = round(max(gemm.end_ns for gemm in gemms) / speed)
    expected = [
        turn * turn_ns + round(gemm.start_ns / speed)
        for turn in range(repeat)
        for gemm in gemms
        for _ in range(gemm.batch)
    ]
    blocks = list(stream.blocks(block_records))
    assert [due_ns for block in blocks for due_ns in (block.due_ns if block.due_ns is not None else [])] == expected
    assert stream.span_ns == expected[-1]
    assert np.array_equal(np.concatenate([block.records for block in blocks]), records_of(stream))
    assert all(len(block.records) <= block_records for block in blocks)


@properties
@given(traces())
def test_without_gaps_nothing_is_due(gemms: list[Gemm]) -> None:
    stream = stream_of(gemms)
    assert all(block.due_ns is None for block in stream.blocks())
    assert stream.span_ns == 0


@properties
@given(traces(), st.integers(1, 4), st.integers(1, 3))
def test_strides_can_be_launched_with(gemms: list[Gemm], weights: int, repeat: int) -> None:
    stream = stream_of(gemms, weights, repeat)
    records = records_of(stream)
    for shape, move in stream.strides().items():
        own = records[(records["m"] == shape.m) & (records["n"] == shape.n) & (records["k"] == shape.k)]
        moves = Counter(zip(*(np.diff(own[f"slot_{role}"].astype(int)).tolist() for role in "abc"), strict=True))
        forward = [count for each, count in moves.items() if min(each) >= 0]
        assert moves[move] == max(forward) if forward else move == (1, 1, 1)


@properties
@given(traces(), st.integers(1, 70))
def test_the_first_commands_are_the_first(gemms: list[Gemm], commands: int) -> None:
    cut = first_commands(gemms, commands)
    assert commands_of(cut, 1) == commands_of(gemms, 1)[:commands]
    assert first_commands(gemms, None) == gemms


def test_a_child_process_gets_columns_and_not_commands() -> None:
    stream = stream_of([Gemm(0, 1, 0, 4, 2, 8, 1_000_000, "float")])
    assert len(pickle.dumps(stream)) < 10_000
    first = next(stream.blocks())
    assert len(first.records) < 10_000


MIXED = [
    Gemm(0, 1, 0, 8, 2, 16, 1, "float"),
    Gemm(2, 3, 0, 8, 5, 16, 3, "float"),  # the same weights, other columns
    Gemm(4, 5, 1, 16, 2, 8, 2, "float"),
]


@pytest.mark.parametrize("dtype", Dtype)
def test_every_output_is_checked(dtype: Dtype) -> None:
    stream = TraceStream(MIXED, dtype, lambda arena, uses: 2, 3)
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, records)
    found = verify(stream, arenas, CheckSettings(256))
    assert (found.ok, found.commands, found.compared_share) == (True, 18, 1.0)


@pytest.mark.parametrize("missing", [0, 2, 5, 17])
def test_a_missing_output_is_found(missing: int) -> None:
    stream = stream_of(MIXED, repeat=3)
    arenas, records = operands(stream), records_of(stream)
    ran: Records = np.delete(records, missing)
    multiply(stream, arenas, ran)
    found = verify(stream, arenas, CheckSettings(256))
    assert (found.ok, found.wrong) == (False, 1)
    assert str(found.first_wrong).startswith(f"{shape_of(records[missing])}, output slot {records['slot_c'][missing]}")
