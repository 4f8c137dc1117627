"""Places of a program's operands: those of templates, of weights, and of outputs side by side."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from support.steps.programs import PROGRAMS, SPLIT, WIDE, program_streams, requests_of, stream_of
from support.steps.stream_steps import origins_of, rows_of, steps_of

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.arenas import Arenas, to_float32
from launchopt.errors import ConfigError
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.lengths import StepKind
from launchopt.streams.chains.placement import Origin
from launchopt.streams.chains.program import HEAD, layer_program, linear_program, qkv_program
from launchopt.streams.model import ModelShape
from launchopt.streams.operands import ArenaKey

properties = settings(deadline=None, max_examples=60)


@properties
@given(program_streams())
def test_templates_are_the_rows_of_each_kind(stream: ChainStream) -> None:
    """This holds for all layers, also for those that `Placement` does not place one by one."""
    for index, kind in enumerate(stream.kinds):
        own, rows = rows_of(stream, kind), stream.rows(index)
        assert stream.rows_of(index) == range(own.start, own.stop)
        template = stream.template[own]
        assert len(template) == len(rows) == stream.commands_per_step + bool(stream.vocab and kind.ends_token)
        for i, (record, row) in enumerate(zip(template, rows, strict=True)):
            at = own.start + i
            assert [int(record[f"slot_{role}"]) for role in "abc"] == [row.a.slot, row.b.slot, row.c.slot]
            assert [stream.a_from[at], stream.b_from[at], stream.c_from[at]] == [
                row.a.origin,
                row.b.origin,
                row.c.origin,
            ]
            assert stream.replica_moves[at] == row.move
            shape = stream.shape_of(row)
            assert [int(record[name]) for name in ("m", "n", "k", "op", "dtype")] == [
                *(shape.m, shape.n, shape.k, shape.op, shape.packed_dtype)
            ]
            assert stream.operands(shape) == row.operands
            assert shape in stream.counts


@properties
@given(program_streams())
def test_requests_in_step_are_evenly_spaced(stream: ChainStream) -> None:
    """In decode steps after the first, the operands of neighbouring requests are one stride apart."""
    strides = stream.strides()
    kind = StepKind(1, False, True)
    if kind not in stream.kinds or stream.requests < 2:
        return
    rows = rows_of(stream, kind)
    for row, record, *origins in zip(
        stream.rows(stream.kinds.index(kind)),
        stream.template[rows],
        stream.a_from[rows],
        stream.b_from[rows],
        stream.c_from[rows],
        strict=True,
    ):
        shape = stream.shape_of(row)
        own = [origin in (Origin.LANE, Origin.INPUT) for origin in origins]
        assert strides[shape] == tuple(stream.lane_units * each for each in own), record
        expected = {Op.ADD: [True] * 3, Op.KV_WRITE: [True, True, False]}.get(row.op, [False, True, True])
        assert own == expected


@properties
@given(program_streams(most_layers=3))
def test_each_weight_has_a_place_of_its_own_in_every_copy(stream: ChainStream) -> None:
    places: dict[tuple[ArenaKey, int, int], tuple[int, str, int]] = {}  # bytes -> whose
    for index, _ in enumerate(stream.kinds):
        for row in stream.rows(index):
            if row.a.origin != Origin.WEIGHT:
                continue
            operand = row.operands[0]
            size = (row.m * row.k if row.op is Op.GEMM else operand.arena.cols) * stream.dtype.itemsize
            assert operand.arena.is_weight
            for replica in range(stream.replicas):
                first = (row.a.slot + replica * row.move) * operand.slot_bytes
                assert first + size <= operand.arena.slot_bytes * stream.arenas[operand.arena]
                whose = row.layer, row.name, 0 if row.name == HEAD else replica
                assert places.setdefault((operand.arena, first, first + size), whose) == whose
    for arena in {arena for arena, _, _ in places}:
        spans = sorted((first, stop) for each, first, stop in places if each == arena)
        assert all(stop <= first for (_, stop), (first, _) in pairwise(spans))
    weights, size = sum(stop - first for _, first, stop in places), stream.dtype.itemsize
    head = stream.hidden * (stream.vocab or 0)
    assert weights == stream.program.weight_bytes(size) * stream.layers * stream.replicas + head * size
    assert set(stream.fills) == {arena for arena, _, _ in places} | {stream.activations}


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
def test_weights_side_by_side_are_the_rows_of_one(dtype: Dtype) -> None:
    stream = stream_of("qkv", [(3, 2), (0, 2)], dtype, layers=2, replicas=2)
    arenas = Arenas(np, stream.arenas, stream.fills)
    arenas.fill(1)
    merged = ArenaKey("a", 512, 128, dtype)
    rows = {(row.layer, row.name): row for row in stream.rows(0)}
    for layer in range(2):
        for replica in range(2):
            parts = []
            for name in "qkv":
                row = rows[layer, name]
                slot = row.a.slot + replica * row.move
                parts.append(arenas.view(row.operands[0], row.m, row.k)[slot])
            whole = arenas.matrices(merged, [layer + 2 * replica])[0]
            assert np.array_equal(to_float32(np.concatenate(parts), dtype), whole)


@pytest.mark.parametrize("prompt", [0, 5])
def test_outputs_side_by_side_are_the_columns_of_one(prompt: int) -> None:
    stream = stream_of("qkv", [(prompt, 2)], Dtype.fp16, layers=1)
    for index, kind in enumerate(stream.kinds):
        q, k, v, o, *_ = stream.rows(index)
        assert [row.c.slot - q.c.slot for row in (q, k, v)] == [0, 2, 3]  # 256 and 128 features, 128 a unit
        assert o.b == q.c
        if kind.n > 1:
            assert {row.operands[2].row_elements for row in (q, k, v)} == {512} == {o.operands[1].row_elements}
            assert o.operands[2].row_elements == 128


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("prompt", [0, 5])
def test_a_layer_apart_has_the_memory_of_one_that_is_merged(prompt: int, dtype: Dtype) -> None:
    """The same arenas with the same random weights, the same rows but those GEMMs, and the same places."""
    made = [
        ChainStream(layer_program(SPLIT, 9, merged=merged), 3, requests_of([(prompt, 2)] * 2), dtype, 2)
        for merged in (False, True)
    ]
    (apart, together) = made
    assert (apart.arenas, apart.fills, apart.lane_units) == (together.arenas, together.fills, together.lane_units)
    assert (apart.flops, apart.commands_per_step) == (together.flops, together.commands_per_step + 3 * 3)
    for index in range(len(apart.kinds)):
        own, others = (stream.rows(index) for stream in made)
        split = ("q", "k", "v", "gate", "up")
        assert [row for row in own if row.name not in split] == [
            row for row in others if row.name not in ("qkv", "gate_up")
        ]
        firsts = [row for row in own if row.name in ("q", "gate")]
        wholes = [row for row in others if row.name in ("qkv", "gate_up")]
        for first, whole in zip(firsts, wholes, strict=True):
            assert (first.b, first.c, first.operands[1]) == (whole.b, whole.c, whole.operands[1])
            address, same = (row.a.slot * row.operands[0].slot_bytes for row in (first, whole))
            assert address == same


@pytest.mark.parametrize("prompt", [0, 5])
def test_q_and_o_of_one_size_are_of_two_shapes(prompt: int) -> None:
    """Their weights are in different arenas, and the rows of a prompt's inputs have different lengths."""
    stream = stream_of("square", [(prompt, 3)], Dtype.fp16, layers=1)
    for index, kind in enumerate(stream.kinds):
        q, _, _, o, *_ = stream.rows(index)
        keys = [stream.shape_of(row) for row in (q, o)]
        assert keys == [ShapeKey(256, kind.n, 256, Dtype.fp16, layout=layout) for layout in (0, 1)]
        assert len({key.packed for key in keys}) == 2


@pytest.mark.parametrize("dtype", [Dtype.fp32, Dtype.fp16])
def test_rows_that_cannot_lie_side_by_side_are_refused(dtype: Dtype) -> None:
    narrow = qkv_program(ModelShape("narrow", 96, 1, 6, 6, 8, 64))
    with pytest.raises(ConfigError, match="multiple of 256 bytes"):
        ChainStream(narrow, 1, requests_of([(0, 1)]), dtype, 1)


def test_a_request_longer_than_scores_have_room_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="ctx=5: a request has 6 tokens"):
        ChainStream(layer_program(WIDE, 5), 1, requests_of([(4, 2)]), Dtype.fp16, 1)


def test_the_cache_has_a_pool_a_layer_and_is_no_input() -> None:
    stream = stream_of("paged", [(6, 3), (2, 2)], Dtype.bf16, layers=3)
    attention = stream.attention
    assert attention is not None
    assert (attention.pages_a_request, attention.pages_total) == (3, 6)
    assert stream.arenas[stream.cache] == 3
    assert stream.cache.slot_bytes >= 6 * 2 * 4 * 2 * 24 * 2
    arenas = Arenas(np, stream.arenas, stream.fills)
    arenas.fill(1)
    arenas.poison()
    assert np.isnan(to_float32(arenas.arrays[stream.cache], Dtype.bf16)).all()


def test_gains_are_around_one_and_biases_around_zero() -> None:
    stream = stream_of("elementwise", [(0, 2)], layers=40)
    arenas = Arenas(np, stream.arenas, stream.fills)
    arenas.fill(1)
    found = {key.role: array[:, : key.cols] for key, array in arenas.arrays.items() if key.is_weight}
    assert set(found) == {"bias", "gain"}
    for role, low, high in (("bias", -0.25, 0.25), ("gain", 0.5, 1.5)):
        assert low <= found[role].min() < low + 0.01
        assert high - 0.01 < found[role].max() <= high


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_first_step_reads_the_table_and_every_other_what_was_fed_back(name: str) -> None:
    stream = stream_of(name, [(5, 3), (0, 3)], chunk=2)
    for request in range(2):
        row = stream.table[request]
        for step, kind in enumerate(steps_of(stream, request)):
            source = origins_of(stream, request, step)[Origin.INPUT]
            moved = 2 * step * stream.units(stream.hidden)
            assert source == (row[ChainColumn.PROMPT] + moved if kind.is_prompt or step == 0 else row[ChainColumn.LANE])


def test_linears_are_a_program() -> None:
    pairs = [(96, 64), (64, 32)]
    one, other = (ChainStream(each, 2, requests_of([(3, 2)]), Dtype.fp16, 2) for each in (pairs, linear_program(pairs)))
    assert one.template.tobytes() == other.template.tobytes()
    assert one.linears == other.linears == tuple(pairs)
