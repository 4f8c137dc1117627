"""Streams whose prompts share tokens: their steps leave out what is cached, and nothing else."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.shared_prompts import BLOCK, CACHED, DONORS, OUTPUTS, PROMPTS, alike_prompts, stream_of
from support.steps.stream_steps import steps_of

from launchopt.recording.identity import stream_hash
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.lengths import Lengths, StepKind, lengths_of


@pytest.mark.parametrize(
    ("chunk", "full", "steps"), [(None, [0] * 6, [0, 1, 1, 0, 1, 0]), (3, [3, 1, 1, 1, 1, 0], [0, 3, 2, 0, 2, 0])]
)
def test_a_prompt_has_steps_for_its_own_tokens(chunk: int | None, full: list[int], steps: list[int]) -> None:
    table = stream_of(chunk=chunk).table
    assert table[:, ChainColumn.CACHED].tolist() == CACHED
    assert table[:, ChainColumn.DONOR].tolist() == DONORS
    assert table[:, ChainColumn.FULL_CHUNKS].tolist() == full
    assert table[:, ChainColumn.DONOR_STEPS].tolist() == steps
    assert table[:, ChainColumn.DECODES].tolist() == [2, 1, 3, 2, 1, 2]


@settings(deadline=None, max_examples=60)
@given(alike_prompts(), st.none() | st.integers(1, 6))
def test_lengths_and_columns_are_those_of_every_step(prompts: list[str], chunk: int | None) -> None:
    stream = stream_of(prompts, [2] * len(prompts), chunk=chunk)
    starts = defaultdict[StepKind, list[int]](list)
    for request, prompt in enumerate(prompts):
        at = int(stream.table[request, ChainColumn.CACHED])
        for kind in steps_of(stream, request):
            starts[kind].append(at)
            at += kind.n
        assert at == len(prompt) + 2 - (1 if prompt else 0)
    expected = {}
    for kind, firsts in starts.items():
        seen = sum(first + column + 1 for first in firsts for column in range(kind.n))
        expected[kind] = Lengths(len(firsts), len(firsts) * kind.n, seen, sum(first + kind.n for first in firsts))
    lengths = stream.asked.context_tokens, chunk or max(1, *map(len, prompts), 1), stream.table[:, ChainColumn.DECODES]
    assert lengths_of(*lengths, stream.table[:, ChainColumn.CACHED]) == expected
    assert set(stream.kinds) == set(expected)


def test_cached_positions_have_the_inputs_of_those_who_compute_them() -> None:
    stream = stream_of()
    row = stream.units(stream.hidden)

    def units(request: int) -> list[int]:
        positions = np.arange(len(PROMPTS[request]))
        return stream.prompt_units(np.full(len(positions), request), positions).tolist()

    assert units(1)[:8] == units(0)[:8]
    assert units(2)[:12] == units(4)[:12] == units(1)[:12]
    assert units(2)[12:] == [int(stream.table[2, ChainColumn.PROMPT]) + at * row for at in range(4)]


def test_the_page_table_shares_whole_blocks_only() -> None:
    stream = stream_of()
    table = stream.page_table
    assert table[1, :2].tolist() == table[0, :2].tolist()
    assert table[4, :3].tolist() == table[2, :3].tolist() == table[1, :3].tolist()
    assert stream.attention is not None
    used = [-(-(len(prompt) + count) // BLOCK) for prompt, count in zip(PROMPTS, OUTPUTS, strict=True)]
    own = [table[request, CACHED[request] // BLOCK : used[request]].tolist() for request in range(len(PROMPTS))]
    assert sorted(page for pages in own for page in pages) == list(range(stream.attention.pages_total))
    assert stream.attention.pages_total == sum(used) - sum(CACHED) // BLOCK


def test_the_hash_of_a_stream_says_what_is_shared() -> None:
    apart = [chr(ord("a") + at) * len(prompt) for at, prompt in enumerate(PROMPTS)]
    assert stream_hash(stream_of()) == stream_hash(stream_of())
    assert stream_hash(stream_of()) != stream_hash(stream_of(apart, OUTPUTS))
