"""Copies of the weights: as many as a cold cache needs, or as a hot cache holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.streams.footprint import COLD_CACHES, Cache, replicas_for


@settings(deadline=None, max_examples=60)
@given(weights=st.integers(1, 10**6), cache=st.integers(1, 10**8), multiple=st.integers(1, 600))
def test_cold_copies_are_the_fewest_that_fill_the_cache_four_times(weights: int, cache: int, multiple: int) -> None:
    copies = replicas_for(Cache.cold, weights, cache, multiple)
    assert copies % multiple == 0
    assert copies * weights >= COLD_CACHES * cache
    assert (copies - multiple) * weights < COLD_CACHES * cache


@settings(deadline=None, max_examples=60)
@given(weights=st.integers(1, 10**6), cache=st.integers(1, 10**8))
def test_hot_copies_are_the_most_that_fit_in_half_the_cache(weights: int, cache: int) -> None:
    copies = replicas_for(Cache.hot, weights, cache)
    assert copies == 1 or copies * weights <= cache / 2
    assert (copies + 1) * weights > cache / 2
