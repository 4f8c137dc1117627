"""Models split over several GPUs: shares add up to the whole, and an all-reduce stands behind each partial sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.config.composing import planned
from support.steps.programs import GATED, PLAIN

from launchopt.arrivals.requests import Requests
from launchopt.command import COLLECTIVES, Dtype, Op
from launchopt.errors import ConfigError
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.program import GATHERED, HEAD, Program, layer_program, linear_program, qkv_program
from launchopt.streams.chains.tensor import Split
from launchopt.streams.model import ModelShape

AT_START, VOCAB = np.zeros(2, np.int64), 100


@st.composite
def splits(draw: st.DrawFn) -> Split:
    """Return a split model: its layer, with weights merged or apart, or its linear layers."""
    tensor, kv_heads, group = (draw(st.integers(1, high)) for high in (4, 2, 3))
    heads = {
        "q_heads": kv_heads * group * tensor,
        "kv_heads": kv_heads * tensor,
        "head_dim": draw(st.integers(1, 2)) * 128,
    }
    inner = draw(st.integers(1, 3)) * 128 * tensor
    model = ModelShape("random", 128, 2, **heads, intermediate=inner, gated=draw(st.booleans()))
    kind = draw(st.sampled_from(["layer", "apart", "linear", "qkv"]))

    def program(model: ModelShape) -> Program:
        if kind in ("layer", "apart"):
            return layer_program(model, 10, merged=kind == "layer")
        if kind == "qkv":
            return qkv_program(model)
        return linear_program(model.linear_sizes(), model.linear_parts())

    return Split(program(model), program(model.share(tensor)), tensor)


def stream_of(program: Program, split: Split | None = None, vocab: int = VOCAB) -> ChainStream:
    requests = Requests(AT_START, np.array([3, 0]), np.array([4, 5]))
    return ChainStream(program, 2, requests, Dtype.bf16, 2, ChainSettings(vocab, split=split))


@given(splits())
def test_the_shares_of_all_gpus_are_each_element_of_a_weight_once(split: Split) -> None:
    for node in split.share.layer:
        if node.op is Op.GEMM:
            whole = split.whole.node(node.name)
            times = np.zeros((whole.m, whole.k), int)
            for rank in range(split.tensor):
                rows, columns = split.cut(node.name, rank)
                own = np.concatenate([np.arange(each.start, each.stop) for each in rows])
                assert (len(own), len(columns)) == (node.m, node.k)
                times[np.ix_(own, np.arange(columns.start, columns.stop))] += 1
            assert (times == 1).all()


@given(splits())
def test_partial_products_add_up_to_the_whole_one(split: Split) -> None:
    generator = np.random.default_rng(5)
    for node in split.share.layer:
        if node.op is not Op.GEMM or not split.is_partial(node.name):
            continue
        whole = split.whole.node(node.name)
        weight, given_ = generator.integers(-9, 9, (whole.m, whole.k)), generator.integers(-9, 9, (3, whole.k))
        parts = [split.cut(node.name, rank).columns for rank in range(split.tensor)]
        cuts = [slice(each.start, each.stop) for each in parts]
        assert np.array_equal(sum(given_[:, cut] @ weight[:, cut].T for cut in cuts), given_ @ weight.T)


@given(splits())
def test_work_of_gemms_and_of_attention_is_divided_and_nothing_else(split: Split) -> None:
    part, whole = stream_of(split.program, split), stream_of(split.whole)
    is_head_cut = VOCAB % split.tensor == 0

    def divided_flops(stream: ChainStream) -> int:
        """FLOPs but those of norms, adds, collectives and a whole LM head, which all GPUs execute."""
        alike = (Op.NORM, Op.ADD, *COLLECTIVES)
        common = [
            shape.flops * count
            for shape, count in stream.counts.items()
            if shape.op in alike or (shape.m == VOCAB and not is_head_cut)
        ]
        return stream.flops - sum(common)

    def weights(stream: ChainStream) -> int:
        divided = {
            arena: count
            for arena, count in stream.arenas.items()
            if arena.role == "a" and (arena.rows != VOCAB or is_head_cut)
        }
        return sum(arena.rows * arena.cols * count for arena, count in divided.items())

    assert split.tensor * divided_flops(part) == divided_flops(whole)
    assert split.tensor * weights(part) == weights(whole)
    assert {shape: part.counts[shape] for shape in part.shapes if shape.op in (Op.NORM, Op.ADD)} == {
        shape: whole.counts[shape] for shape in whole.shapes if shape.op in (Op.NORM, Op.ADD)
    }
    assert part.tensor == split.tensor


@given(splits(), st.sampled_from([VOCAB, 97]))
def test_logits_of_all_gpus_are_gathered_unless_the_vocabulary_cannot_be_divided(split: Split, vocab: int) -> None:
    stream = stream_of(split.program, split, vocab)
    rows = [row for row in stream.rows(stream.decode_kind) if row.name in (HEAD, GATHERED)]
    cuts = [split.head_cut(vocab, rank) for rank in range(split.tensor)]
    if vocab % split.tensor or split.tensor == 1:
        assert [row.m for row in rows] == [vocab]
        assert {cut.rows for cut in cuts} == {(range(vocab),)}
        return
    head, gather = rows
    assert (head.m, gather.k, gather.m) == (vocab // split.tensor, vocab // split.tensor, vocab)
    assert (gather.op, gather.b, gather.c.slot) == (Op.ALL_GATHER, head.c, stream.logits_offset)
    assert gather.c.slot + stream.units(vocab) <= head.c.slot
    assert head.c.slot + stream.units(head.m) <= stream.lane_units
    assert [row for cut in cuts for rows in cut.rows for row in rows] == list(range(vocab))


@given(splits())
def test_only_partial_sums_are_followed_by_an_all_reduce_and_nothing_else_reads_them(split: Split) -> None:
    nodes = split.program.layer
    sums = [node for node in nodes if node.op is Op.ALL_REDUCE]
    assert len(sums) == (2 if split.tensor > 1 else 0)
    for node in sums:
        before = nodes[nodes.index(node) - 1]
        assert (before.name, before.m) == (node.b, split.whole.hidden)
        assert [each.name for each in nodes if node.b in (each.b, each.a)] == [node.name]


def test_a_token_of_llama_3_8b_has_64_all_reduces() -> None:
    words = ("workload=decode", "model=llama_3_8b", "workload.dtype=bf16", "workload.tokens=1")
    model = planned(*words, "workload.layers=1", "against=[]", "mode=baseline").config.model.shape()
    split = Split(layer_program(model, 10), layer_program(model.share(2), 10), 2)
    requests = Requests(AT_START[:1], np.array([0]), np.array([1]))
    stream = ChainStream(split.program, 32, requests, Dtype.bf16, 1, ChainSettings(split=split))
    assert sum(row.op is Op.ALL_REDUCE for row in stream.rows(stream.decode_kind)) == 64
    sizes = {node.name: (node.m, node.k) for node in split.program.layer}
    assert (sizes["qkv"], sizes["o"], sizes["gate_up"], sizes["down"]) == (
        *((3072, 4096), (4096, 2048)),
        *((14336, 4096), (4096, 7168)),
    )


@pytest.mark.parametrize(
    ("model", "tensor", "why"),
    [
        (GATED, 3, "does not divide kv_heads=2 and q_heads=4 of model=gated: use one of 1, 2"),
        (PLAIN, 4, "does not divide kv_heads"),
        (ModelShape("moe", 64, 1, 4, 4, 16, 64, experts=2, experts_per_token=1), 2, "has experts or latent attention"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused(model: ModelShape, tensor: int, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"parallel.tensor={tensor}: .*{why}"):
        model.share(tensor)
