"""Numbers of attention: pages, and the positions of steps, counted one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.programs import program_streams, stream_of
from support.steps.stream_steps import positions_of

from launchopt.streams.chains.attention import Attention, AttentionShape
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.lengths import Lengths, lengths_of

properties = settings(deadline=None, max_examples=60)


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
