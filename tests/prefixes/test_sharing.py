"""What requests find cached before a run: full blocks that an earlier prompt begins with, and who computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.steps.shared_prompts import BLOCK, CACHED, DONORS, OUTPUTS, PROMPTS, alike_prompts, shared_by

from launchopt.arrivals.mooncake import HASH_BLOCK, Prompt
from launchopt.errors import RunError
from launchopt.prefixes.cache import WARM_UPS, Held, PrefixCache
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
    assert (found.cached_tokens, found.hit_rate, found.evicted, found.too_large) == (32, 9 / 14, 0, 0)
    assert found.pages_of.tolist() == [4, 4, 5, 2, 5, 1]
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
    width = -(-(max(map(len, prompts)) + 2) // BLOCK)
    own = np.arange(len(prompts) * width, dtype=np.int32).reshape(len(prompts), width)
    table = found.pages(own)
    seen: dict[int, tuple[int, int]] = {}  # of each page: the request that computes it, and its block
    for request, prompt in enumerate(prompts):
        blocks = np.arange(found.pages_of[request])
        assert blocks.size == -(-(len(prompt) + 2) // BLOCK), "those of the prompt and of the answer"
        owners = np.full(blocks.size, request)
        count = int(found.cached[request]) // BLOCK
        owners[:count] = found.owners(owners[:count], blocks[:count] * BLOCK)
        for page, *what in zip(table[request].tolist(), owners.tolist(), blocks.tolist(), strict=False):
            assert seen.setdefault(page, tuple(what)) == tuple(what)
    assert sorted(seen) == list(range(found.page_count)), "no page is left over"
    assert len({*seen.values()}) == len(seen), "and none is there twice"


@given(alike_prompts(), st.integers(2, 3))
def test_requests_find_only_what_their_own_consumer_has(prompts: list[str], count: int) -> None:
    found = shared_by(prompts, [2] * len(prompts), count)
    assert set(found.consumers.tolist()) == set(range(min(count, len(prompts)))), "every consumer has a request"
    has_donor = found.donors != NO_DONOR
    assert (found.consumers[found.donors[has_donor]] == found.consumers[has_donor]).all()
    for consumer in range(count):
        own = np.flatnonzero(found.consumers == consumer)
        alone = shared_by([prompts[request] for request in own], [2] * len(own))
        assert found.cached[own].tolist() == alone.cached.tolist()


def test_a_prefix_attracts_requests_until_the_other_consumer_has_much_less_to_compute() -> None:
    prompts = ["aaaabbbbccccx", "zzzzyyyyxxxxw", *["aaaabbbbccccx"] * 5]
    found = shared_by(prompts, [2] * len(prompts), 2)
    # Consumer 0 has computed 15 tokens, and 3 more with each further request; the other one would compute 15 more.
    assert found.consumers.tolist() == [0, 1, 0, 0, 0, 0, 0]
    found = shared_by(prompts, [8] * len(prompts), 2)
    # 21 tokens, and 9 more each: consumer 1 has 21, and would have 42 with its first such request.
    assert found.consumers.tolist() == [0, 1, 0, 0, 1, 0, 1]


def test_given_consumers_are_kept() -> None:
    prompts = [(np.zeros(9, np.int32), 1)] * 4
    found = share(prompts, [HashCache(), HashCache()], BLOCK, np.array([0, 1, 1, 0]))
    assert found.consumers.tolist() == [0, 1, 1, 0]
    assert found.donors.tolist() == [NO_DONOR, NO_DONOR, 1, 0]


def test_hits_of_a_trace_are_those_that_its_numbers_imply() -> None:
    ids = ([1, 2, 3], [1, 2, 4], [1, 2, 4, 5], [9], [1, 2, 3])
    prompts = [Prompt(HASH_BLOCK * len(each), 5, np.array(each, np.int64)) for each in ids]
    found = share(((each.tokens(), each.answer) for each in prompts), [HashCache()], HASH_BLOCK)
    assert (found.hits, found.blocks) == oracle(prompts) == (8, 14)
    assert found.cached.tolist() == [0, 1024, 1536, 0, 1024]  # the last block of the last prompt is computed again


def test_a_small_cache_evicts_and_what_was_evicted_is_computed_again_in_another_page() -> None:
    prompts = ["aaaabbbb", "ccccddddeeee", "aaaabbbb", "aaaabbbbx"]
    found = shared_by(prompts, [1] * 4, HashCache(4))
    assert found.cached.tolist() == [0, 0, 0, 8]
    assert found.donors.tolist() == [NO_DONOR, NO_DONOR, NO_DONOR, 2]
    assert (found.hits, found.blocks, found.evicted) == (2, 9, 4)
    table = found.pages(np.arange(16, dtype=np.int32).reshape(4, 4))
    assert table[3, :2].tolist() == table[2, :2].tolist() != table[0, :2].tolist()


def _common(one: str, other: str) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if len({*pair}) > 1), min(len(one), len(other))
    )


@given(alike_prompts(), st.integers(1, 12))
def test_a_small_cache_finds_only_what_prompts_share(prompts: list[str], capacity: int) -> None:
    for cache in (HashCache(capacity), RadixCache(capacity)):
        found = shared_by(prompts, [2] * len(prompts), cache)
        found.require_same(lambda one, other: _common(prompts[one], prompts[other]))


def test_tokens_that_a_prompt_does_not_have_are_refused() -> None:
    """The check of outputs takes the inputs of cached tokens from their donors, so it would not see this."""
    found = shared_by(PROMPTS, OUTPUTS)
    with pytest.raises(RunError, match=r"request 2 found 12 tokens of request 1 cached, but their prompts share 11: "):
        found.require_same(lambda one, other: 11)


def test_a_request_larger_than_the_cache_finds_nothing() -> None:
    found = shared_by(["aaaabbbb", "aaaabbbbc"], [1, 1], HashCache(3))
    assert found.cached.tolist() == [0, 8]
    found = shared_by(["aaaabbbb", "aaaabbbbc"], [1, 1], HashCache(2))
    assert (found.cached.tolist(), found.too_large) == ([0, 0], 2)


def test_the_first_calls_of_a_cache_are_made_in_another_one_and_are_not_timed() -> None:
    class Seen(HashCache):
        takes: ClassVar[dict[int, int]] = {}

        def take(self, keys: Sequence[bytes], more: int = 0) -> Held | None:
            self.takes[id(self)] = self.takes.get(id(self), 0) + 1
            return super().take(keys, more)

    cache = Seen()
    found = share([(np.arange(2 * BLOCK, dtype=np.int32), 1)], [cache], BLOCK)
    assert (found.hits, found.blocks) == (0, 2), "the warm-up left nothing in the cache"
    own = Seen.takes.pop(id(cache))
    assert own == 1
    assert sum(Seen.takes.values()) == WARM_UPS
