"""The chain for any layers and requests: places of operands, counts, and that each GEMM reads the previous output."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from support.steps.chain_steps import Span, inputs_and_outputs, requests_of, shapes_of, steps_of, streams, template_of

from launchopt.command import NO_TOKEN, Dtype, Flag, ShapeKey
from launchopt.errors import ArenaMemoryError, ConfigError
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.chain_table import NO_PROMPT, ChainColumn
from launchopt.streams.chains.lengths import StepKind
from launchopt.streams.model import ModelShape
from launchopt.streams.operands import ArenaKey

TINY = ModelShape("tiny", 64, 2, 4, 2, 16, 128).linear_sizes()
properties = settings(deadline=None, max_examples=80)


@properties
@given(streams())
def test_everything_is_counted_as_one_counts_by_hand(stream: ChainStream) -> None:
    steps = list(steps_of(stream))
    shapes = [shape for step in steps for shape in shapes_of(stream, step.kind)]
    assert stream.counts == Counter(shapes)
    assert stream.shapes == sorted(set(shapes))
    assert stream.commands == len(shapes)
    assert stream.flops == sum(shape.flops for shape in shapes)
    assert stream.bytes_moved == sum(shape.bytes for shape in shapes)
    assert stream.tokens == sum(step.kind.ends_token for step in steps)
    assert stream.outputs.tolist() == [
        sum(step.kind.ends_token and step.request == request for step in steps) for request in range(stream.requests)
    ]
    assert set(stream.kinds) == {step.kind for step in steps}
    assert len(stream.kinds) == len(set(stream.kinds))
    for shape in stream.shapes:
        users = {step.request for step in steps if shape in shapes_of(stream, step.kind)}
        assert len(users) <= stream.together(shape) <= stream.requests


@properties
@given(streams())
def test_the_table_says_which_steps_a_request_has(stream: ChainStream) -> None:
    """These are the steps that the driver issues: full chunks, the rest of the prompt, then one step per token."""
    first = 0
    for request, row in enumerate(stream.table):
        kinds = [step.kind for step in steps_of(stream) if step.request == request]
        expected = [stream.chunk_kind] * int(row[ChainColumn.FULL_CHUNKS])
        expected += [int(row[ChainColumn.REST_KIND])] * int(row[ChainColumn.REST_KIND] != NO_PROMPT)
        expected += [stream.decode_kind] * int(row[ChainColumn.DECODES])
        assert [stream.kinds[at] for at in expected] == kinds
        assert sum(kind.n for kind in kinds if kind.is_prompt) == stream.asked.context_tokens[request]
        assert row[ChainColumn.FIRST_TOKEN] == first
        assert (row[ChainColumn.DUE_NS], row[ChainColumn.AFTER]) == (10 * request, -1)
        first += sum(kind.ends_token for kind in kinds)


@properties
@given(streams())
def test_templates_are_the_gemms_of_a_step_in_order(stream: ChainStream) -> None:
    assert stream.kind_stops[-1] == len(stream.template)
    for kind in stream.kinds:
        records, _ = template_of(stream, kind)
        assert [ShapeKey(int(r["m"]), int(r["n"]), int(r["k"]), stream.dtype) for r in records] == shapes_of(
            stream, kind
        )
        assert (records["dtype"] == stream.dtype).all()
        assert records["step"].tolist() == list(range(len(records)))
        assert records["flags"].tolist() == [0] * (len(records) - 1) + [Flag.STEP_END]
        assert set(records["token"].tolist()) == {0 if kind.ends_token else NO_TOKEN}


@properties
@given(streams())
def test_each_input_is_the_output_before_it(stream: ChainStream) -> None:
    for kind in stream.kinds:
        step = next(step for step in steps_of(stream) if step.kind == kind)
        records, _ = template_of(stream, kind)
        spans = inputs_and_outputs(stream, step)
        assert spans[0][0] is None
        for i, ((_, before), (source, _)) in enumerate(pairwise(spans), 1):
            assert source is not None
            width = int(records[i - 1]["m"])
            assert records[i]["k"] <= width
            if records[i]["n"] == kind.n:  # the columns of its input are the columns of the previous output
                assert source.start == before.start
                if kind.n > 1:
                    shape = shapes_of(stream, kind)[i]
                    assert stream.operands(shape)[1].row_elements == stream.row_elements(width)
            else:  # the LM head reads only the last column of a prompt
                assert (i, records[i]["m"], records[i]["n"]) == (stream.gemms_per_step, stream.vocab, 1)
                assert source == Span(before.stop - stream.units(stream.hidden), before.stop)


@properties
@given(streams())
def test_nothing_is_written_where_another_reads_or_writes(stream: ChainStream) -> None:
    table = Span(0, stream.table_rows * stream.units(stream.hidden))
    assert stream.fills[stream.activations][0] == table.stop
    own: list[set[Span]] = [set() for _ in range(stream.requests)]
    for step in steps_of(stream):
        lane = int(stream.table[step.request, ChainColumn.LANE])
        fed_back = Span(lane, lane + stream.units(stream.hidden))
        spans = inputs_and_outputs(stream, step)
        for source, output in spans:
            assert not output.meets(table)
            assert not output.meets(fed_back)
            assert source is None or not output.meets(source)
            assert output.stop <= stream.total_units
        if not step.kind.is_prompt:  # a token's outputs are kept until the next token
            assert not any(a.meets(b) for (_, a), (_, b) in combinations(spans, 2))
        own[step.request] |= {fed_back, *(output for _, output in spans)}
    for mine, others in combinations(own, 2):
        assert not any(a.meets(b) for a in mine for b in others)


@properties
@given(streams())
def test_requests_in_step_lie_a_lane_apart_and_prompts_in_the_table(stream: ChainStream) -> None:
    assert (np.diff(stream.table[:, ChainColumn.LANE]) == stream.lane_units).all()
    assert set(stream.strides().values()) == {(0, stream.lane_units, stream.lane_units)}
    row_units = stream.units(stream.hidden)
    rows, rest = np.divmod(stream.table[:, ChainColumn.PROMPT], row_units)
    assert not rest.any()
    assert (rows >= 0).all()
    assert (rows + np.maximum(stream.asked.context_tokens, 1) <= stream.table_rows).all()
    assert stream.table_rows >= (stream.vocab or 0)


@properties
@given(streams())
def test_each_weight_has_a_slot_of_its_own_in_every_copy(stream: ChainStream) -> None:
    """Every kind of step uses the same slot. The LM head has one copy, since it is as large as many layers."""
    slots: dict[tuple[ArenaKey, int], tuple[int, int]] = {}  # slot -> (GEMM of a step, copy of the weights)
    for kind in stream.kinds:
        records, rows = template_of(stream, kind)
        for i, (record, move) in enumerate(zip(records, stream.replica_moves[rows].tolist(), strict=True)):
            arena = ArenaKey("a", int(record["m"]), int(record["k"]), stream.dtype)
            is_head = i == stream.gemms_per_step
            for replica in range(stream.replicas):
                place = arena, int(record["slot_a"]) + replica * move
                assert place[1] < stream.arenas[arena]
                assert slots.setdefault(place, (i, 0 if is_head else replica)) == (i, 0 if is_head else replica)
    heads = int(stream.vocab is not None)
    assert len(slots) == stream.gemms_per_step * stream.replicas + heads
    assert stream.input_bytes == sum(arena.slot_bytes for arena, _ in slots)
    assert stream.arenas[stream.activations] == stream.total_units
    assert stream.arenas.get(stream.history) == (None if stream.vocab else stream.tokens)
    assert stream.arena_bytes == sum(arena.slot_bytes * count for arena, count in stream.arenas.items())


def test_a_head_of_a_layers_own_shape_has_its_own_weight() -> None:
    """The tiny model has such a head: its vocab is 256, and its gate and up are 256 x 64."""
    stream = ChainStream(TINY, 2, requests_of((3, 2)), Dtype.fp16, 3, ChainSettings(vocab=256))
    arena = ArenaKey("a", 256, 64, Dtype.fp16)
    assert stream.arenas[arena] == 2 * 3 + 1
    records, rows = template_of(stream, StepKind(1, False, True))
    assert (records[-1]["slot_a"], stream.replica_moves[rows][-1]) == (6, 0)
    assert records["slot_a"][[2, 6]].tolist() == [0, 1]


def test_the_seed_chooses_the_prompts_alone() -> None:
    sizes = requests_of(*[(7, 3)] * 20)
    one, same, other = (ChainStream(TINY, 2, sizes, Dtype.fp16, 1, ChainSettings(seed=seed)) for seed in (1, 1, 2))
    assert one.table.tobytes() == same.table.tobytes() != other.table.tobytes()
    columns = [column for column in ChainColumn if column != ChainColumn.PROMPT]
    assert np.array_equal(one.table[:, columns], other.table[:, columns])
    assert len(set(one.table[:, ChainColumn.PROMPT].tolist())) > 10


def test_weights_keep_the_rms_of_their_input() -> None:
    wide = ModelShape("wide", 512, 16, 4, 2, 128, 1024).linear_sizes()
    stream = ChainStream(wide, 16, requests_of((0, 1)), Dtype.fp32, 1, ChainSettings(vocab=1000))
    generator = np.random.default_rng(5)
    values = generator.uniform(-1, 1, (64, 512))
    before = np.sqrt((values**2).mean())
    for record in stream.template:
        arena = ArenaKey("a", int(record["m"]), int(record["k"]), Dtype.fp32)
        slots, bound = stream.fills[arena]
        assert slots == stream.arenas[arena]
        assert bound == math.sqrt(3 / record["k"])
        weight = generator.uniform(-bound, bound, (arena.rows, arena.cols))
        values = values[:, : arena.cols] @ weight.T
        assert 0.5 < np.sqrt((values**2).mean()) / before < 2
    assert len(stream.template) == 16 * 4 + 1
    assert stream.fills[stream.activations][1] == 1.0


@pytest.mark.parametrize(
    ("linears", "text"),
    [
        ([(8, 16), (16, 9)], "8 -> 9"),
        ([(64, 16), (8, 64), (16, 9)], "8 -> 9"),
        ([(8, 16), (8, 8)], "8 -> 16"),
        ([(40, 16), (24, 32)], "the last layer must give hidden=16"),
    ],
)
def test_layers_that_do_not_fit_one_another_are_refused(linears: list[tuple[int, int]], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ChainStream(linears, 1, requests_of((0, 1)), Dtype.fp16, 1)


def test_gemms_of_one_shape_that_lie_differently_differ_in_layout() -> None:
    """The first reads rows of 200 elements, the third rows of 300."""
    linears = [(300, 200), (200, 16), (300, 200), (200, 300)]
    stream = ChainStream([(200, 200), (300, 16), (200, 200), (200, 200)], 2, requests_of((5, 3)), Dtype.fp16, 1)
    rows = [stream.operands(ShapeKey(200, 5, 200, Dtype.fp16, layout=layout))[1].row_elements for layout in (0, 1)]
    assert rows == [256, 384]
    # With one column, the distance between rows does not matter.
    assert ShapeKey(200, 1, 200, Dtype.fp16, layout=1) not in stream.shapes
    records, _ = template_of(stream, StepKind(5, True, True))
    assert (records["dtype"] >> 4).tolist() == [0, 0, 1, 0] * 2
    assert ChainStream(linears, 2, requests_of((5, 3)), Dtype.fp16, 1).commands == 24


def test_a_layer_of_one_gemm_does_not_write_over_its_own_input() -> None:
    for layers, prompt in ((1, 4), (3, 0), (3, 4)):
        stream = ChainStream([(16, 16)], layers, requests_of((prompt, 2)), Dtype.fp16, 1)
        assert stream.commands == 2 * layers
        for step in steps_of(stream):
            assert not any(source and source.meets(output) for source, output in inputs_and_outputs(stream, step))


def test_more_activations_than_a_slot_can_name_are_refused() -> None:
    with pytest.raises(ArenaMemoryError, match=r"activations need [\d,]+ GB, of which 1,100 can be addressed"):
        ChainStream(TINY, 2, requests_of((1 << 30, 1)), Dtype.fp16, 1)
