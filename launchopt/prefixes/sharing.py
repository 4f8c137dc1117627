"""Which tokens of each prompt a request finds cached, decided before a run.

The prompts go through a cache in the order of arrival, each behind all earlier ones, as in `simulation`. So the hits
of a run do not depend on its times. An engine decides in the same way if it holds back a request while an earlier one
computes its prefix. The driver holds back requests, too: until the steps that compute their cached blocks have ended.

A block is a page of the KV cache. A request reads the pages of its *donor*, the request that computes the last block
that it finds. The donor's prompt begins with the same blocks, so its page table has all of them. At least the last
token of a prompt has a step of its own. If the whole prompt is cached, its last block is computed again, in a page of
the request, as vLLM does. To copy it on write would take one more command in the steps of each mode, and save less
than a block of columns.

Several consumers have a cache each, and a request finds what requests of its own consumer computed. It goes to a given
consumer, or it is routed by its prefix: to the consumer that has the least to compute when it has the request, too. To
compute are the tokens of prompts that are not cached, and all answers. So a prefix attracts requests as long as that
saves more than it unbalances.

A limit on the blocks limits what is found. A page is not given to another request during the run, since the check
compares all keys and values afterwards: a block that was evicted is computed again in another page. So the cache in
memory has a page for each block that a request computes, and none that no request uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.errors import RunError
from launchopt.prefixes.cache import Admitted, PrefixCache, admit, warm_up
from launchopt.prefixes.chain import keys_of

NO_DONOR = -1  # in `donors`: the request finds nothing
Numbers = NDArray[np.int64]
Tokens = NDArray[np.int32]


@dataclass(frozen=True, eq=False, slots=True)
class SharedPrefixes:
    """What the requests of a run share.

    block: tokens of a block. cached: tokens of each prompt that need no step, whole blocks; int64 [requests]. donors:
    as above, int64 [requests]. consumers: the consumer of each request, int64 [requests]. pages_of: pages that each
    request uses, with those of other requests, for its prompt and its answer, int64 [requests]. tokens, blocks: of all
    prompts; blocks are full ones. hits: full blocks that were in the cache. evicted: blocks that made room for others.
    too_large: requests that need more blocks than there are. host_ns: time of the host to hash the tokens, to route
    requests and to find the blocks.
    """

    block: int
    cached: Numbers
    donors: Numbers
    consumers: Numbers
    pages_of: Numbers
    tokens: int
    blocks: int
    hits: int
    evicted: int
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

    @property
    def page_count(self) -> int:
        """Pages that requests use, each counted once."""
        return int(self.pages_of.sum()) - self.cached_tokens // self.block

    def require_same(self, common: Callable[[int, int], int]) -> None:
        """Raise RunError if a request finds tokens that its prompt does not have.

        common: returns the number of tokens with which the prompts of two requests both begin. It must know that
        without keys and caches.
        """
        for request in np.flatnonzero(self.cached).tolist():
            cached, donor = int(self.cached[request]), int(self.donors[request])
            if (same := common(request, donor)) < cached:
                found = f"request {request} found {cached} tokens of request {donor} cached"
                raise RunError(f"scheduler.prefixes: {found}, but their prompts share {same}: please report this")

    def owners(self, requests: Numbers, positions: Numbers) -> Numbers:
        """Return the request that computes each position of these requests."""
        owners = requests.copy()
        while np.any(is_cached := positions < self.cached[owners]):
            owners[is_cached] = self.donors[owners[is_cached]]
        return owners

    def pages(self, own: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the page table with shared pages. own: a page table without them, int32 [requests, pages].

        Pages that no request uses get no number, so that the cache needs no memory for them. Entries behind the last
        page of a request are 0, and nothing reads them.
        """
        table = own.copy()
        for request in np.flatnonzero(self.cached).tolist():  # ascending: the row of the donor is complete
            count = int(self.cached[request]) // self.block
            table[request, :count] = table[self.donors[request], :count]
        is_used = np.arange(own.shape[1]) < self.pages_of[:, None]
        numbers = np.unique(table[is_used], return_inverse=True)[1]
        table[...] = 0
        table[is_used] = numbers
        return table


def share(
    prompts: Iterable[tuple[Tokens, int]], caches: Sequence[PrefixCache], block: int, consumers: Numbers | None = None
) -> SharedPrefixes:
    """Run prompts through empty caches, one for each consumer.

    prompts: the tokens of each, and the number of tokens of its answer. consumers: the consumer of each prompt, int64
    [prompts]; None: they are routed by their prefixes.
    """
    places = [_Place(cache) for cache in caches]
    found = list[tuple[int, int, int, int]]()  # of each prompt: cached tokens, donor, consumer, pages
    tokens = blocks = hits = too_large = host_ns = 0
    warm_up(caches, block)
    for request, (prompt, answer) in enumerate(prompts):
        began_ns = time.perf_counter_ns()
        keys = keys_of(prompt, block)
        at = _least_work(places, keys, len(prompt), block) if consumers is None else int(consumers[request])
        place = places[at]
        got = admit(place.cache, keys, len(prompt), answer, block)
        if got is not None:
            place.cache.release(got.held)
        host_ns += time.perf_counter_ns() - began_ns
        cached, donor = place.note(request, got, len(prompt), answer, block)
        found.append((cached, donor, at, -(-(len(prompt) + max(answer, 1)) // block)))
        tokens, blocks = tokens + len(prompt), blocks + len(keys)
        hits, too_large = hits + (got.held.hits if got else 0), too_large + (got is None)
    cached_of, donors, consumer_of, pages_of = np.array(found, np.int64).reshape(-1, 4).T.copy()
    evicted = sum(cache.evicted for cache in caches)
    counts = tokens, blocks, hits, evicted, too_large
    return SharedPrefixes(block, cached_of, donors, consumer_of, pages_of, *counts, host_ns)


class _Place:
    """The cache of a consumer. work: tokens that its requests compute."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache, self.work = cache, 0
        self._owners: dict[int, int] = {}  # of blocks: the request that computes each

    def note(self, request: int, got: Admitted | None, prompt: int, answer: int, block: int) -> tuple[int, int]:
        """Note what a request computes; return its cached tokens and its donor."""
        count, donor = 0, NO_DONOR
        if got is not None:
            blocks, hits = got.held.blocks, got.held.hits
            if count := _usable(hits, prompt, block):
                donor = self._owners[blocks[count - 1]]
            self._owners.update(dict.fromkeys(blocks[hits : len(got.held.keys)], request))
        self.work += prompt - count * block + max(answer, 1)
        return count * block, donor


def _usable(hits: int, prompt: int, block: int) -> int:
    """Return how many of the blocks that were hit need no step: the last token of a prompt has one."""
    return min(hits, max(0, prompt - 1) // block)


def _least_work(places: Sequence[_Place], keys: Sequence[bytes], prompt: int, block: int) -> int:
    """Return the index of the consumer that has the least to compute with a prompt; of equals, the first."""
    work = [place.work - block * _usable(place.cache.match(keys), prompt, block) for place in places]
    return work.index(min(work))
