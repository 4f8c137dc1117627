"""Caches of prefixes: a hash table and a radix tree find, pin and evict the same blocks, and lose none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.prefixes.cache import Held, PrefixCache, admit
from launchopt.prefixes.chain import keys_of
from launchopt.prefixes.hash_cache import HashCache
from launchopt.prefixes.radix_cache import RadixCache

KINDS: Sequence[Callable[[int | None], PrefixCache]] = (HashCache, RadixCache)
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=8)
# What happens: a request with a prompt and further blocks comes, or the request of this number ends.
EVENTS = st.lists(st.tuples(PROMPTS, st.integers(0, 2)) | st.integers(0, 5), max_size=40)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=["hash table", "radix tree"])


def keys(*tokens: int) -> Sequence[bytes]:
    """Return keys of blocks of one token."""
    return keys_of(np.array(tokens, np.int32), 1)


@given(EVENTS, st.none() | st.integers(1, 12))
def test_both_hit_and_evict_the_same(events: list[Any], capacity: int | None) -> None:
    caches = [kind(capacity) for kind in KINDS]
    running: list[tuple[Held, ...]] = []
    for event in events:
        if isinstance(event, int):
            if event < len(running):
                for cache, held in zip(caches, running.pop(event), strict=True):
                    cache.release(held)
            continue
        prompt, more = event
        wanted = keys(*prompt)
        first, second = (cache.take(wanted, more) for cache in caches)
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            assert first.hits == second.hits
            running.append((first, second))
        assert caches[0].evicted == caches[1].evicted
        for at, cache in enumerate(caches):
            _check_pins(cache, [held[at] for held in running])


def _check_pins(cache: PrefixCache, running: Sequence[Held]) -> None:
    """Check that each block has one content, and that prompts of running requests stay in the cache."""
    content: dict[int, object] = {}
    for number, held in enumerate(running):
        assert cache.match(held.keys) == len(held.keys)
        own = [*held.keys, *((number, at) for at in range(len(held.blocks) - len(held.keys)))]
        assert len(held.blocks) == len(own) == len(set(held.blocks))
        for block, what in zip(held.blocks, own, strict=True):
            assert content.setdefault(block, what) == what
    if cache.capacity is not None:
        assert len(content) <= cache.capacity
        assert all(0 <= block < cache.capacity for block in content)


@given(st.lists(PROMPTS, max_size=12))
def test_without_a_limit_the_longest_beginning_of_all_earlier_prompts_is_found(prompts: list[list[int]]) -> None:
    for kind in KINDS:
        cache, seen = kind(None), set[tuple[int, ...]]()
        for prompt in prompts:
            longest = max((at for at in range(len(prompt) + 1) if tuple(prompt[:at]) in seen or not at), default=0)
            held = cache.take(keys(*prompt))
            assert held is not None
            assert held.hits == longest
            cache.release(held)
            seen |= {tuple(prompt[:at]) for at in range(1, len(prompt) + 1)}


@each_kind
def test_the_end_of_the_prompt_that_was_used_longest_ago_is_evicted_first(
    kind: Callable[[int | None], PrefixCache],
) -> None:
    cache = kind(5)
    for prompt in ((1, 2, 3), (1, 4)):
        held = cache.take(keys(*prompt))
        assert held is not None
        cache.release(held)
    held = cache.take(keys(7, 8))
    assert held is not None
    assert [cache.match(keys(*prompt)) for prompt in ((1, 2, 3), (1, 4), (7, 8))] == [2, 2, 2]
    assert cache.evicted == 1


@each_kind
def test_a_request_that_does_not_fit_takes_nothing(kind: Callable[[int | None], PrefixCache]) -> None:
    cache = kind(3)
    held = cache.take(keys(1, 2))
    assert held is not None
    assert cache.take(keys(1, 3), more=1) is None
    cache.release(held)
    assert cache.match(keys(1, 2)) == 2, "and evicts nothing"
    assert cache.take(keys(1, 3), more=1) is not None


@each_kind
def test_the_last_block_of_a_prompt_that_is_cached_as_a_whole_is_copied(
    kind: Callable[[int | None], PrefixCache],
) -> None:
    cache, tokens = kind(None), np.arange(8, dtype=np.int32)
    wanted = keys_of(tokens, 4)
    first, second = admit(cache, wanted, 8, 3, 4), admit(cache, wanted, 8, 3, 4)
    assert first is not None
    assert second is not None
    assert (first.cached, first.copy) == (0, None)
    assert second.cached == 7, "the last token runs again"
    assert second.copy == (first.table[1], second.table[1])
    assert second.table[0] == first.table[0]
    assert len({*first.table, *second.table}) == 5, "one block is shared; the copied one and the answers' are not"
    assert [len(each.table) for each in (first, second)] == [3, 3]
    for each in (first, second):
        cache.release(each.held)


@each_kind
def test_a_prompt_that_ends_within_a_block_copies_nothing(kind: Callable[[int | None], PrefixCache]) -> None:
    cache, tokens = kind(None), np.arange(9, dtype=np.int32)
    for cached in (0, 8):
        found = admit(cache, keys_of(tokens, 4), 9, 2, 4)
        assert found is not None
        assert (found.cached, found.copy, len(found.table)) == (cached, None, 3)
        cache.release(found.held)
    nothing = admit(cache, [], 0, 2, 4)
    assert nothing is not None
    assert nothing.cached == 0


@each_kind
def test_a_cached_prompt_that_fills_the_cache_computes_its_last_block_again(
    kind: Callable[[int | None], PrefixCache],
) -> None:
    cache, wanted = kind(2), keys_of(np.arange(8, dtype=np.int32), 4)
    for cached in (0, 4, 4):
        found = admit(cache, wanted, 8, 0, 4)
        assert found is not None
        assert (found.cached, found.copy, len(found.table)) == (cached, None, 2)
        cache.release(found.held)
