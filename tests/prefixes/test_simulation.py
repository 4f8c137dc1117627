"""What a trace hits: to the block what its numbers of blocks say, and no more with less memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from launchopt.arrivals.mooncake import HASH_BLOCK, Prompt
from launchopt.prefixes.hash_cache import HashCache
from launchopt.prefixes.radix_cache import RadixCache
from launchopt.prefixes.simulation import oracle, simulate


@st.composite
def traces(draw: st.DrawFn) -> list[Prompt]:
    """Prompts whose blocks have numbers in a chain: each draws the next block of a tree."""
    numbers: dict[tuple[int, ...], int] = {}
    prompts = []
    for _ in range(draw(st.integers(1, 10))):
        way = tuple(draw(st.lists(st.integers(0, 1), max_size=5)))
        ids = [numbers.setdefault(way[: at + 1], len(numbers)) for at in range(len(way))]
        length = HASH_BLOCK * len(ids)
        if ids and draw(st.booleans()):
            length -= draw(st.integers(1, HASH_BLOCK - 1))  # the last block is not full, and its number is its own
            ids[-1] = numbers.setdefault((*way, -len(prompts)), len(numbers))
        prompts.append(Prompt(length, draw(st.integers(1, 600)), np.array(ids, np.int64)))
    return prompts


@given(traces())
def test_hits_equal_those_that_the_numbers_of_blocks_imply(prompts: list[Prompt]) -> None:
    found = simulate(prompts, (HashCache(), RadixCache()), HASH_BLOCK)
    assert found.requests == len(prompts)
    assert found.tokens == sum(each.prompt for each in prompts)
    for each in found.of.values():
        assert (each.hits, found.blocks) == oracle(prompts)
        assert each.refused == each.evicted == 0


@given(traces(), st.integers(1, 20))
def test_a_limit_loses_hits_and_both_caches_the_same(prompts: list[Prompt], capacity: int) -> None:
    one, other = simulate(prompts, (HashCache(capacity), RadixCache(capacity)), HASH_BLOCK).of.values()
    assert replace(one, ns=0) == replace(other, ns=0)
    assert one.hits <= oracle(prompts)[0]


def test_smaller_blocks_also_hit_the_beginning_of_a_block() -> None:
    ids = np.array([3], np.int64)
    prompts = [Prompt(500, 1, ids), Prompt(500, 1, ids)]
    for block, cached in ((HASH_BLOCK, 0), (16, 496)):
        (found,) = simulate(prompts, [HashCache()], block).of.values()
        assert found.cached_tokens == cached
