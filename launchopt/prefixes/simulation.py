"""What caches of prefixes would hit in a trace of prompts, and what they cost the host.

The requests run one after another, and each finds the blocks of all requests before it. All caches get the same keys.
The oracle counts by the numbers that the trace gives to blocks, without tokens and keys.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from launchopt.arrivals.mooncake import HASH_BLOCK, Prompt
from launchopt.prefixes.cache import PrefixCache, admit, warm_up
from launchopt.prefixes.chain import keys_of


@dataclass(slots=True)
class Hits:
    """What one cache did. refused: requests that need more blocks than there are. ns: time of the host."""

    refused: int = 0
    cached_tokens: int = 0
    hits: int = 0
    copies: int = 0
    evicted: int = 0
    ns: int = 0


@dataclass(slots=True)
class Simulation:
    """Sums over requests. blocks: full blocks of prompts. hash_ns: time of the host to make keys. of: by cache."""

    of: dict[str, Hits]
    requests: int = 0
    tokens: int = 0
    blocks: int = 0
    hash_ns: int = 0

    def rate(self, hits: int) -> float:
        """Return a share of the full blocks."""
        return hits / self.blocks if self.blocks else 0.0

    def ns_a_token(self, spent_ns: int) -> float:
        """Return a time by the tokens of all prompts."""
        return spent_ns / self.tokens if self.tokens else 0.0


def simulate(prompts: Sequence[Prompt], caches: Sequence[PrefixCache], block: int) -> Simulation:
    """Run the requests through empty caches with blocks of `block` tokens."""
    found = Simulation({cache.name: Hits() for cache in caches})
    warm_up(caches, block)
    for each in prompts:
        tokens = each.tokens()
        began_ns = time.perf_counter_ns()
        keys = keys_of(tokens, block)
        found.hash_ns += time.perf_counter_ns() - began_ns
        found.requests += 1
        found.tokens += each.prompt
        found.blocks += len(keys)
        for cache in caches:
            _run(each, cache, keys, block, found.of[cache.name])
    return found


def _run(request: Prompt, cache: PrefixCache, keys: Sequence[bytes], block: int, found: Hits) -> None:
    """Give a request its blocks, and take them back."""
    began_ns = time.perf_counter_ns()
    got = admit(cache, keys, request.prompt, request.answer, block)
    if got is not None:
        cache.release(got.held)
    found.ns += time.perf_counter_ns() - began_ns
    found.evicted = cache.evicted
    if got is None:
        found.refused += 1
        return
    found.hits += got.held.hits
    found.cached_tokens += got.cached
    found.copies += got.copy is not None


def oracle(prompts: Sequence[Prompt]) -> tuple[int, int]:
    """Return how many full blocks of HASH_BLOCK tokens an earlier request had, and how many there are."""
    seen, hits, blocks = set[int](), 0, 0
    for each in prompts:
        full = [int(number) for number in each.hash_ids[: each.prompt // HASH_BLOCK]]
        hits += next((at for at, number in enumerate(full) if number not in seen), len(full))
        blocks += len(full)
        seen.update(full)
    return hits, blocks
