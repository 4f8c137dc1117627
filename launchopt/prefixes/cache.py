"""What a cache of prefixes does for a request: it finds the blocks of its prompt, and pins them until the request ends.

A `PrefixCache` counts blocks and knows no memory. Blocks that no request uses stay until their space is needed: those
that were used longest ago go first, and a block before the blocks in front of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from launchopt.prefixes.chain import keys_of

WARM_UPS = 64  # requests after which Python has specialised the code


@dataclass(frozen=True, slots=True)
class Held:
    """The blocks of a request, in the order of its tokens. hits: how many of the first ones were in the cache."""

    blocks: Sequence[int]
    hits: int
    keys: Sequence[bytes]


class PrefixCache(Protocol):
    """Blocks by their keys. capacity: how many there are; None: as many as needed."""

    name: str
    capacity: int | None
    evicted: int  # blocks that have lost their key so far

    def match(self, keys: Sequence[bytes]) -> int:
        """Return how many of the first keys are in the cache."""

    def take(self, keys: Sequence[bytes], more: int = 0) -> Held | None:
        """Pin the blocks of `keys`, and `more` blocks without a key; return None if there are too few."""

    def release(self, held: Held) -> None:
        """Unpin the blocks of a request. Those with a key stay in the cache."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that has its blocks. cached: tokens of the prompt that need no step.

    copy: the shared block whose contents go to the block behind it in the pair, before the first step; None: none.
    """

    held: Held
    cached: int
    copy: tuple[int, int] | None
    table: Sequence[int]  # the block of each block of tokens


def admit(cache: PrefixCache, keys: Sequence[bytes], prompt: int, answer: int, block: int) -> Admitted | None:
    """Give a request its blocks; None if there are too few. keys: of the full blocks of its prompt.

    The last token of a prompt always runs, since the first token of the answer follows from it. If the whole prompt is
    in the cache, its last block is shared, and this token would write there. So that block is copied on write. If
    there is no block for the copy, the last block is computed again instead, in a block without a key.
    """
    blocks = -(-(prompt + answer) // block)
    is_whole = len(keys) * block == prompt and 0 < len(keys) == cache.match(keys)
    held = cache.take(keys, blocks - len(keys) + is_whole)
    if held is None and is_whole:
        is_whole, held = False, cache.take(keys[:-1], blocks - len(keys) + 1)
    if held is None:
        return None
    cached, table = max(0, min(held.hits * block, prompt - 1)), list(held.blocks)
    copy = None
    if is_whole:
        last = len(keys) - 1
        copy = table[last], table.pop()
        table[last] = copy[1]
    return Admitted(held, cached, copy, table)


def warm_up(caches: Sequence[PrefixCache], block: int) -> None:
    """Hash two blocks and look them up in caches of the same kinds: the first calls take longer, and are not timed."""
    keys = keys_of(np.arange(2 * block, dtype=np.int32), block)
    for kind in {type(cache) for cache in caches}:
        cache = kind()
        for _ in range(WARM_UPS):
            if (got := admit(cache, keys, 2 * block, 1, block)) is not None:
                cache.release(got.held)
