"""The commands of a layer with experts: their order, their shapes and their operands, for any layer."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from support.steps.expert_layers import layer_stream, streams
from support.steps.straight import records_of

from launchopt.command import LAYOUT_SHIFT, Dtype, Flag, Op, Records, ShapeKey
from launchopt.recording.identity import stream_hash
from launchopt.streams.experts.layout import ExpertLayer
from launchopt.streams.experts.routing import Routing, RoutingKind
from launchopt.streams.experts.stream import ExpertStream
from launchopt.streams.footprint import least_memory_bytes

properties = settings(deadline=None, max_examples=60)
SMALL = ExpertLayer(hidden=64, inner=32, experts=8, top_k=2, columns=2)


def shapes_of(records: Records, dtype: Dtype) -> list[ShapeKey]:
    columns = zip(*(records[name].tolist() for name in ("m", "n", "k", "op", "dtype")), strict=True)
    return [ShapeKey(m, n, k, dtype, Op(op), packed >> LAYOUT_SHIFT) for m, n, k, op, packed in columns]


@properties
@given(streams)
def test_commands_are_those_that_the_stream_announces(stream: ExpertStream) -> None:
    records = records_of(stream)
    assert len(records) == stream.commands
    assert Counter(shapes_of(records, stream.dtype)) == stream.counts
    assert records["seq"].tolist() == records["step"].tolist() == list(range(stream.commands))
    assert set(stream.shapes) == stream.strides().keys()
    small = np.concatenate([block.records for block in stream.blocks(1)])
    assert (small == records).all()
    assert (records_of(pickle.loads(pickle.dumps(stream))) == records).all()


@properties
@given(streams)
def test_groups_follow_one_another_in_each_step(stream: ExpertStream) -> None:
    records = records_of(stream)
    ends = np.flatnonzero(records["flags"] & Flag.GROUP_END) + 1
    steps = np.flatnonzero(records["flags"] & Flag.STEP_END) + 1
    assert steps.tolist() == ends[7::8].tolist()
    assert np.diff(steps, prepend=0).max() == stream.pass_commands
    groups = np.split(records, ends)[:-1]
    assert ends[-1] == stream.commands
    ops = [[Op(op).name for op in np.unique(group["op"])] for group in groups]
    step = ["GEMM", "TOP_K", "EXPERT_MAP", "PERMUTE", "GEMM", "SILU_MUL", "GEMM", "COMBINE"]
    assert ops == [[name] for name in step] * stream.steps
    for i in range(stream.steps):
        sizes = [len(group) for group in groups[8 * i : 8 * (i + 1)]]
        assert sizes == [1, 1, 1, 1, stream.active[i], 1, stream.active[i], 1]
        for at in (4, 6):
            counts = Counter(shapes_of(groups[8 * i + at], stream.dtype))
            assert all(count <= stream.together(shape) for shape, count in counts.items())
            assert groups[8 * i + at]["n"].sum() == stream.layer.rows


@properties
@given(streams)
def test_every_output_has_memory_of_its_own(stream: ExpertStream) -> None:
    written = np.zeros(stream.arenas[stream.layout.activations], np.int64)
    records = records_of(stream)
    for shape, slot in zip(shapes_of(records, stream.dtype), records["slot_c"].tolist(), strict=True):
        c = stream.operands(shape)[2]
        assert c.arena == stream.layout.activations
        units = c.row_elements // c.arena.cols * shape.n * (shape.m // shape.k if shape.op is Op.PERMUTE else 1)
        if shape.op is Op.EXPERT_MAP:
            units = stream.layout.region.gathered - stream.layout.region.map
        written[slot : slot + units] += 1
    assert (written == 1).all()


@properties
@given(streams)
def test_a_step_reads_one_copy_of_the_weights(stream: ExpertStream) -> None:
    records = records_of(stream)
    gemms = records[records["op"] == Op.GEMM]
    read = set[tuple[str, int, int]]()
    step_of = np.repeat(np.arange(stream.steps), 1 + 2 * stream.active)
    for shape, slot, step in zip(shapes_of(gemms, stream.dtype), gemms["slot_a"].tolist(), step_of, strict=True):
        arena = stream.operands(shape)[0].arena
        assert 0 <= slot < stream.arenas[arena]
        assert slot // (stream.arenas[arena] // stream.replicas) == step % stream.replicas
        read.add((str(arena), slot, step))
    assert len(read) == len(gemms), "no command of a step reads the weight of another one"


def test_neighbours_with_as_many_rows_are_evenly_spaced() -> None:
    stream = layer_stream(ExpertLayer(64, 32, 4, 4, 2), 1, kind=RoutingKind.balanced)
    records, moves = records_of(stream), stream.strides()
    for which in (slice(4, 8), slice(9, 13)):
        group = records[which]
        (shape,) = set(shapes_of(group, stream.dtype))
        found = [np.unique(np.diff(group[f"slot_{role}"].astype(int))).tolist() for role in "abc"]
        assert found == [[move] for move in moves[shape]]


@pytest.mark.parametrize("dtype", list(Dtype))
def test_the_selection_bias_exceeds_every_difference_of_logits(dtype: Dtype) -> None:
    for hidden in (1, 64, 2048, 16384):
        layer = ExpertLayer(hidden, 1, 2, 1, 1)
        assert layer.margin > 2 * np.sqrt(3 * hidden) * (1 + 2 * dtype.unit_roundoff)
        assert layer.margin < 65504, "it is a number of fp16"


@properties
@given(streams)
def test_selection_biases_are_the_same_in_any_chunks(stream: ExpertStream) -> None:
    ((arena, values),) = stream.fixed.items()
    size = arena.slot_bytes // stream.dtype.itemsize
    total = size * stream.arenas[arena]
    whole = values(slice(0, total))
    parts = [values(slice(first, min(first + 7, total))) for first in range(0, total, 7)]
    assert (np.concatenate(parts) == whole).all()
    layer = stream.layer
    biases = whole.reshape(stream.steps, size)[:, : layer.columns * layer.experts]
    chosen = biases.reshape(stream.steps, layer.columns, layer.experts) == layer.margin
    assert (np.nonzero(chosen)[2].reshape(stream.routing.chosen.shape) == stream.routing.chosen).all()
    assert np.count_nonzero(whole) == stream.routing.chosen.size


def test_weights_that_must_come_from_memory_are_those_of_experts_with_rows() -> None:
    chosen = np.array([[[0]], [[0]], [[3]], [[0]]], np.int32)
    layer = ExpertLayer(64, 32, 4, 1, 1)
    router, expert = 4 * 64 * 4, (2 * 32 * 64 + 64 * 32) * 4
    for replicas, steps_together in ((1, 1), (2, 2)):
        stream = ExpertStream(layer, Routing("", 4, chosen), Dtype.fp32, replicas)
        assert stream.input_bytes == steps_together * (router + expert)
        assert least_memory_bytes(stream, 1, 0) == 4 * (router + expert)
        kept = 4 // steps_together * 1000
        assert least_memory_bytes(stream, 1, 1000) == 4 * (router + expert) - kept


def test_the_hash_tells_routings_apart_that_give_experts_as_many_rows() -> None:
    one, other = ([[[0, 1], [2, 3]]], [[[0, 2], [1, 3]]])
    hashes = {
        stream_hash(ExpertStream(SMALL, Routing("", 8, np.array(chosen, np.int32)), Dtype.fp32, 1))
        for chosen in (one, other, one)
    }
    assert len(hashes) == 2
