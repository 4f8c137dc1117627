"""A cache of prefixes as a hash table: one entry for each block, as vLLM has it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from launchopt.prefixes.cache import Held


class HashCache:
    """Blocks in a dict by their keys. See `PrefixCache`."""

    name = "hash table"

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity, self.evicted = capacity, 0
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._users: dict[int, int] = {}  # of blocks that are pinned
        self._idle: OrderedDict[int, None] = OrderedDict()  # blocks with a key that nobody uses, the oldest first
        self._free: list[int] = []  # blocks without a key that nobody uses
        self._made = 0  # blocks that were used at least once

    def match(self, keys: Sequence[bytes]) -> int:
        """See `PrefixCache`."""
        return next((at for at, key in enumerate(keys) if key not in self._block_of), len(keys))

    def take(self, keys: Sequence[bytes], more: int = 0) -> Held | None:
        """See `PrefixCache`."""
        hits = self.match(keys)
        found = [self._block_of[key] for key in keys[:hits]]
        needed = len(keys) - hits + more
        if self.capacity is not None:
            idle = len(self._idle) - sum(block in self._idle for block in found)
            if needed > self.capacity - self._made + len(self._free) + idle:
                return None
        for block in found:
            self._idle.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        fresh = [self._fresh() for _ in range(needed)]
        for key, block in zip(keys[hits:], fresh, strict=False):
            self._block_of[key], self._key_of[block] = block, key
        return Held([*found, *fresh], hits, keys)

    def _fresh(self) -> int:
        """Return a block without a key, pinned."""
        if self._free:
            block = self._free.pop()
        elif self.capacity is None or self._made < self.capacity:
            block = self._made
            self._made += 1
        else:
            block, _ = self._idle.popitem(last=False)
            del self._block_of[self._key_of.pop(block)]
            self.evicted += 1
        self._users[block] = 1
        return block

    def release(self, held: Held) -> None:
        """See `PrefixCache`. The last block becomes the oldest, so that it goes before those in front of it."""
        for block in reversed(held.blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            del self._users[block]
            if block in self._key_of:
                self._idle[block] = None
            else:
                self._free.append(block)
