"""Which tokens of each prompt a request finds cached, decided before a run.

The prompts go through a cache in the order of arrival, each behind all earlier ones, as in `simulation`. So the hits
of a run do not depend on its times. An engine decides in the same way if it holds back a request while an earlier one
computes its prefix. The driver holds back requests, too: until the steps that compute their cached blocks have ended.

A block is a page of the KV cache. A request reads the pages of its *donor*, the request that computes the last block
that it finds. The donor's prompt begins with the same blocks, so its page table has all of them. At least the last
token of a prompt has a step of its own. If the whole prompt is cached, its last block is computed again, in a page of
the request, instead of being copied on write.

A limit on the blocks limits what is found. A page is not given to another request during the run: a block that was
evicted is computed again in another page.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.prefixes.cache import PrefixCache, admit
from launchopt.prefixes.chain import keys_of

NO_DONOR = -1  # in `donors`: the request finds nothing
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class SharedPrefixes:
    """What the requests of a run share.

    block: tokens of a block. cached: tokens of each prompt that need no step, whole blocks; int64 [requests]. donors:
    as above, int64 [requests]. tokens, blocks: of all prompts; blocks are full ones. hits: full blocks that were in
    the cache. too_large: requests that need more blocks than there are. host_ns: time of the host to hash the tokens
    and to find the blocks.
    """

    block: int
    cached: Numbers
    donors: Numbers
    tokens: int
    blocks: int
    hits: int
    too_large: int
    host_ns: int

    @property
    def hit_rate(self) -> float | None:
        """Share of the full blocks that were in the cache; None if there is no full block."""
        return self.hits / self.blocks if self.blocks else None

    @property
    def cached_tokens(self) -> int:
        """Tokens of all prompts that need no step."""
        return int(self.cached.sum())

    @property
    def host_ns_per_token(self) -> float | None:
        """Time of the host for each token of a prompt, ns; None without prompts."""
        return self.host_ns / self.tokens if self.tokens else None

    def owners(self, requests: Numbers, positions: Numbers) -> Numbers:
        """Return the request that computes each position of these requests."""
        owners = requests.copy()
        while np.any(is_cached := positions < self.cached[owners]):
            owners[is_cached] = self.donors[owners[is_cached]]
        return owners

    def pages(self, own: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the page table with shared pages. own: a page table without them, int32 [requests, pages]."""
        table = own.copy()
        for request in np.flatnonzero(self.cached).tolist():  # ascending: the row of the donor is complete
            count = int(self.cached[request]) // self.block
            table[request, :count] = table[self.donors[request], :count]
        return table


def share(prompts: Iterable[tuple[NDArray[np.int32], int]], cache: PrefixCache, block: int) -> SharedPrefixes:
    """Run prompts through an empty cache. prompts: the tokens of each, and the number of tokens of its answer."""
    cached, donors, owner_of = list[int](), list[int](), dict[int, int]()
    tokens = blocks = hits = too_large = host_ns = 0
    keys_of(np.zeros(block, np.int32), block)  # the first call takes longer
    for request, (prompt, answer) in enumerate(prompts):
        began_ns = time.perf_counter_ns()
        keys = keys_of(prompt, block)
        got = admit(cache, keys, len(prompt), answer, block)
        if got is not None:
            cache.release(got.held)
        host_ns += time.perf_counter_ns() - began_ns
        tokens, blocks = tokens + len(prompt), blocks + len(keys)
        found, donor = 0, NO_DONOR
        if got is None:
            too_large += 1
        else:
            held, hits = got.held, hits + got.held.hits
            if found := min(held.hits, max(0, len(prompt) - 1) // block):
                donor = owner_of[held.blocks[found - 1]]
            owner_of.update(dict.fromkeys(held.blocks[held.hits : len(held.keys)], request))
        cached.append(found * block)
        donors.append(donor)
    columns = np.array(cached, np.int64), np.array(donors, np.int64)
    return SharedPrefixes(block, *columns, tokens, blocks, hits, too_large, host_ns)
