"""What a cache of prefixes would hit in a trace of prompts, and what it costs the host.

The requests run one after another, so each finds what all before it have left. The oracle needs no tokens: it knows
which blocks are the same by the numbers that the trace gives them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from launchopt.arrivals.mooncake import HASH_BLOCK, Prompt
from launchopt.prefixes.cache import PrefixCache, admit
from launchopt.prefixes.chain import keys_of


@dataclass(slots=True)
class Hits:
    """Sums over requests. blocks: full blocks of prompts. refused: requests that need more blocks than there are."""

    requests: int = 0
    refused: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    blocks: int = 0
    hits: int = 0
    copies: int = 0
    evicted: int = 0
    hash_ns: int = 0  # time of the host to make keys
    cache_ns: int = 0  # ... to take and to release blocks

    @property
    def rate(self) -> float:
        """Share of the full blocks that were in the cache."""
        return self.hits / self.blocks if self.blocks else 0.0

    def ns_a_token(self, spent_ns: int) -> float:
        """Return a time by the tokens of all prompts."""
        return spent_ns / self.tokens if self.tokens else 0.0


def simulate(prompts: Sequence[Prompt], cache: PrefixCache, block: int) -> Hits:
    """Run the requests through an empty cache with blocks of `block` tokens."""
    found = Hits()
    for each in prompts:
        tokens = each.tokens()
        began_ns = time.perf_counter_ns()
        keys = keys_of(tokens, block)
        hashed_ns = time.perf_counter_ns()
        got = admit(cache, keys, each.prompt, each.answer, block)
        if got is not None:
            cache.release(got.held)
        found.cache_ns += time.perf_counter_ns() - hashed_ns
        found.hash_ns += hashed_ns - began_ns
        found.requests += 1
        found.tokens += each.prompt
        found.blocks += len(keys)
        if got is None:
            found.refused += 1
            continue
        found.hits += got.held.hits
        found.cached_tokens += got.cached
        found.copies += got.copy is not None
    found.evicted = cache.evicted
    return found


def oracle(prompts: Sequence[Prompt]) -> tuple[int, int]:
    """Return how many full blocks of HASH_BLOCK tokens an earlier request had, and how many there are."""
    seen, hits, blocks = set[int](), 0, 0
    for each in prompts:
        full = [int(number) for number in each.hash_ids[: each.prompt // HASH_BLOCK]]
        hits += next((at for at, number in enumerate(full) if number not in seen), len(full))
        blocks += len(full)
        seen.update(full)
    return hits, blocks
