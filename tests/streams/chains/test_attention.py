"""Numbers of attention: pages, and the bytes and operations of steps, counted one by one."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.program_interpreter import steps_of
from support.steps.programs import program_streams, stream_of

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.streams.chains.attention import Attention, AttentionShape
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.lengths import Lengths, StepKind, lengths_of

properties = settings(deadline=None, max_examples=60)
ATTENDING = ("layer", "paged")


def test_a_contiguous_cache_is_a_page_a_request_in_turn() -> None:
    attention = Attention.of(AttentionShape(4, 2, 16, 37), 5)
    assert (attention.page_tokens, attention.pages_a_request, attention.pages_total) == (37, 1, 5)
    assert attention.page_table(3).tolist() == [[0], [1], [2], [3], [4]]


@properties
@given(requests=st.integers(1, 9), ctx=st.integers(1, 40), page=st.integers(1, 50), seed=st.integers(0, 5))
def test_every_page_of_a_paged_cache_belongs_to_one_request(requests: int, ctx: int, page: int, seed: int) -> None:
    attention = Attention.of(AttentionShape(4, 2, 16, ctx, page), requests)
    table = attention.page_table(seed)
    assert table.dtype == np.int32
    assert table.shape == (requests, attention.pages_a_request)
    assert sorted(table.reshape(-1).tolist()) == list(range(attention.pages_total))
    assert attention.pages_a_request * page >= ctx > (attention.pages_a_request - 1) * page
    assert table.tolist() == attention.page_table(seed).tolist()


def test_pages_are_handed_out_in_an_order_that_the_seed_says() -> None:
    tables = [stream_of("paged", [(30, 2)] * 4, seed=seed).page_table for seed in (1, 1, 2)]
    assert tables[0].tolist() == tables[1].tolist() != tables[2].tolist()
    assert tables[0].reshape(-1).tolist() != list(range(tables[0].size))


def positions_of(stream: ChainStream) -> dict[StepKind, list[int]]:
    """Return the start positions of the steps of each kind."""
    found = defaultdict(list)
    for request in range(stream.requests):
        at = 0
        for kind in steps_of(stream, request):
            found[kind].append(at)
            at += kind.n
    return found


@properties
@given(program_streams())
def test_lengths_are_those_of_every_step(stream: ChainStream) -> None:
    chunk = stream.chunk_tokens or int(max(1, stream.asked.context_tokens.max()))
    decodes = stream.outputs - (stream.asked.context_tokens > 0)
    expected = {}
    for kind, starts in positions_of(stream).items():
        seen = sum(start + column + 1 for start in starts for column in range(kind.n))
        read = sum(start + kind.n for start in starts)
        expected[kind] = Lengths(len(starts), len(starts) * kind.n, seen, read)
    assert lengths_of(stream.asked.context_tokens, chunk, decodes) == expected


@properties
@given(program_streams(ATTENDING, 3))
def test_work_is_that_of_every_position_seen(stream: ChainStream) -> None:
    attention, size = stream.attention, stream.dtype.itemsize
    assert attention is not None
    heads, dim, kept = attention.q_heads, attention.head_dim, attention.kv_heads * attention.head_dim
    known = {Op.QK, Op.AV, Op.SOFTMAX, Op.KV_WRITE}
    plain = [(shape, count) for shape, count in stream.counts.items() if shape.op not in known]
    flops = sum(shape.flops * count for shape, count in plain)
    moved = sum(shape.bytes * count for shape, count in plain)
    for kind, starts in positions_of(stream).items():
        for start in starts:
            scores = sum(heads * (start + column + 1) for column in range(kind.n))
            flops += stream.layers * (4 * dim * scores + scores)
            reads = 2 * (kind.n * heads * dim + (start + kind.n) * kept + scores) + 2 * scores
            moved += stream.layers * (reads * size + kind.n * (4 * kept * size + 4))
    assert (stream.flops, stream.bytes_moved) == (flops, moved)


def test_work_of_a_shape_without_a_gemm() -> None:
    def work(op: Op, m: int, k: int, dtype: Dtype = Dtype.fp16) -> tuple[int, int]:
        shape = ShapeKey(m, 3, k, dtype, op)
        return shape.flops, shape.bytes

    assert work(Op.BIAS, 10, 10) == work(Op.SCALE, 10, 10) == work(Op.NORM, 10, 10) == (30, 2 * (30 + 30 + 10))
    assert work(Op.RELU, 10, 10, Dtype.fp32) == work(Op.ROPE, 10, 10, Dtype.fp32) == (30, 4 * 60)
    assert work(Op.ADD, 10, 10) == (30, 2 * 90)
    assert work(Op.SILU_MUL, 10, 20) == (30, 2 * 90)
    assert work(Op.SLOT_MAP, 1, 1) == (0, 12)
    assert work(Op.KV_WRITE, 8, 20) == (0, 2 * 48 + 12)
    # An op of attention counts one position, the least.
    assert work(Op.QK, 40, 20) == work(Op.SOFTMAX, 40, 40) == (3, 12)
    assert work(Op.AV, 8, 40) == (24, 48)
