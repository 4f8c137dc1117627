"""What requests find cached before a run: full blocks that an earlier prompt begins with, and who computes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.steps.shared_prompts import BLOCK, CACHED, DONORS, OUTPUTS, PROMPTS, alike_prompts, shared_by

from launchopt.arrivals.mooncake import HASH_BLOCK, Prompt
from launchopt.prefixes.cache import PrefixCache
from launchopt.prefixes.hash_cache import HashCache
from launchopt.prefixes.radix_cache import RadixCache
from launchopt.prefixes.sharing import NO_DONOR, share
from launchopt.prefixes.simulation import oracle


@pytest.mark.parametrize("cache", [HashCache, RadixCache])
def test_cached_tokens_are_whole_blocks_of_an_earlier_prompt(cache: type[HashCache | RadixCache]) -> None:
    found = shared_by(PROMPTS, OUTPUTS, cache())
    assert found.cached.tolist() == CACHED
    assert found.donors.tolist() == DONORS
    assert (found.tokens, found.blocks, found.hits) == (60, 14, 2 + 3 + 4)
    assert (found.cached_tokens, found.hit_rate, found.too_large) == (32, 9 / 14, 0)
    assert found.host_ns_per_token is not None
    assert found.host_ns_per_token > 0


@given(alike_prompts(), st.none() | st.integers(1, 12))
def test_each_cached_token_is_computed_by_a_request_with_the_same_beginning(
    prompts: list[str], capacity: int | None
) -> None:
    outputs = [2] * len(prompts)
    caches: tuple[PrefixCache, PrefixCache] = HashCache(capacity), RadixCache(capacity)
    found, other = (shared_by(prompts, outputs, cache) for cache in caches)
    assert found.cached.tolist() == other.cached.tolist()
    for request, prompt in enumerate(prompts):
        cached, donor = int(found.cached[request]), int(found.donors[request])
        assert cached % BLOCK == 0
        assert cached <= max(0, len(prompt) - 1)
        assert (donor == NO_DONOR) == (cached == 0)
        if cached:
            assert donor < request
            assert found.cached[donor] < cached
        positions = np.arange(len(prompt))
        owners = found.owners(np.full(len(prompt), request), positions)
        for position, owner in zip(positions.tolist(), owners.tolist(), strict=True):
            assert found.cached[owner] <= position < len(prompts[owner])
            assert (owner == request) == (position >= cached)
            assert prompts[owner][: position + 1] == prompt[: position + 1]


@given(alike_prompts())
def test_cached_pages_are_those_of_the_request_that_computes_them(prompts: list[str]) -> None:
    found = shared_by(prompts, [2] * len(prompts))
    width = 1 + max(map(len, prompts)) // BLOCK
    own = np.arange(len(prompts) * width, dtype=np.int32).reshape(len(prompts), width)
    table = found.pages(own)
    for request in range(len(prompts)):
        blocks = np.arange(width)
        owners = np.full(width, request)
        count = int(found.cached[request]) // BLOCK
        owners[:count] = found.owners(owners[:count], blocks[:count] * BLOCK)
        assert table[request].tolist() == own[owners, blocks].tolist()


def test_hits_of_a_trace_are_those_that_its_numbers_imply() -> None:
    ids = ([1, 2, 3], [1, 2, 4], [1, 2, 4, 5], [9], [1, 2, 3])
    prompts = [Prompt(HASH_BLOCK * len(each), 5, np.array(each, np.int64)) for each in ids]
    found = share(((each.tokens(), each.answer) for each in prompts), HashCache(), HASH_BLOCK)
    assert (found.hits, found.blocks) == oracle(prompts) == (8, 14)
    assert found.cached.tolist() == [0, 1024, 1536, 0, 1024]  # the last block of the last prompt is computed again


def test_a_request_larger_than_the_cache_finds_nothing() -> None:
    found = shared_by(["aaaabbbb", "aaaabbbbc"], [1, 1], HashCache(3))
    assert found.cached.tolist() == [0, 8]
    found = shared_by(["aaaabbbb", "aaaabbbbc"], [1, 1], HashCache(2))
    assert (found.cached.tolist(), found.too_large) == ([0, 0], 2)
