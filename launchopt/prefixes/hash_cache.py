"""A cache of prefixes as a hash table: one entry for each block, as vLLM has it."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from launchopt.prefixes.cache import Held


class HashCache:
    """Blocks in a dict by their keys. See `PrefixCache`."""

    name = "hash table"

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity, self.evicted = capacity, 0
        self._block_of: dict[bytes, int] = {}
        self._users: list[int] = []  # of each block that was used at least once: requests that pin it by its key
        self._idle: OrderedDict[int, bytes] = OrderedDict()  # blocks with a key that nobody uses, the oldest first
        self._free: list[int] = []  # blocks without a key that nobody uses

    def match(self, keys: Sequence[bytes]) -> int:
        """See `PrefixCache`. A block is in the cache only if those in front of it are, so the search is binary."""
        return bisect_left(keys, True, key=lambda key: key not in self._block_of)

    def take(self, keys: Sequence[bytes], more: int = 0) -> Held | None:
        """See `PrefixCache`."""
        hits, users, idle = self.match(keys), self._users, self._idle
        found, new = [*map(self._block_of.__getitem__, keys[:hits])], keys[hits:]
        needed = len(new) + more
        if self.capacity is not None:
            unused = self.capacity - len(users) + len(self._free)
            if needed > unused + len(idle) - sum(not users[block] for block in found):
                return None
        for block in found:
            if not users[block]:
                del idle[block]
            users[block] += 1
        fresh = self._fresh(needed)
        self._block_of.update(zip(new, fresh, strict=False))
        return Held(found + fresh, hits, keys)

    def _fresh(self, count: int) -> list[int]:
        """Return blocks without a key, each with one user."""
        split = max(0, len(self._free) - count)
        fresh, self._free = self._free[split:], self._free[:split]
        first, missing = len(self._users), count - len(fresh)
        made = missing if self.capacity is None else min(missing, self.capacity - first)
        for _ in range(missing - made):
            block, key = self._idle.popitem(last=False)
            del self._block_of[key]
            fresh.append(block)
        self.evicted += missing - made
        for block in fresh:
            self._users[block] = 1
        self._users += [1] * made
        fresh += range(first, first + made)
        return fresh

    def release(self, held: Held) -> None:
        """See `PrefixCache`. The last block becomes the oldest, so that it goes before those in front of it."""
        users, idle, count = self._users, self._idle, len(held.keys)
        for key, block in zip(reversed(held.keys), reversed(held.blocks[:count]), strict=True):
            users[block] = left = users[block] - 1
            if not left:
                idle[block] = key
        self._free += held.blocks[count:]
