"""A cache of prefixes as a radix tree: a node for each run of blocks that prompts share, as SGLang has it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count

from launchopt.prefixes.cache import Held


class Node:
    """A run of blocks, at least one but for the root.

    users: requests whose prompts go through it. used: the number of the release that used it last.
    """

    __slots__ = ("blocks", "children", "keys", "parent", "used", "users")

    def __init__(self, keys: list[bytes], blocks: list[int], parent: Node | None, users: int, used: int) -> None:
        self.keys, self.blocks, self.parent, self.users, self.used = keys, blocks, parent, users, used
        self.children: dict[bytes, Node] = {}  # by their first keys


class RadixCache:
    """Blocks in a tree of runs. See `PrefixCache`."""

    name = "radix tree"

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity, self.evicted = capacity, 0
        self._root = Node([], [], None, 1, 0)
        self._free: list[int] = []
        self._made = self._idle = self._releases = 0
        self._order = count()  # tells apart leaves that the same release used last
        self._leaves: list[tuple[int, int, Node]] = []  # a heap of leaves that nobody uses; some entries are outdated

    def match(self, keys: Sequence[bytes]) -> int:
        """See `PrefixCache`."""
        return sum(length for _, length in self._path(keys))

    def _path(self, keys: Sequence[bytes]) -> Iterator[tuple[Node, int]]:
        """Yield the nodes that begin `keys`, each with how many of its blocks they have."""
        node, at = self._root, 0
        while at < len(keys):
            child = node.children.get(keys[at])
            if child is None:
                return
            node, own, length = child, child.keys, 1
            most = min(len(own), len(keys) - at)
            while length < most and own[length] == keys[at + length]:
                length += 1
            yield node, length
            at += length
            if length < len(own):
                return

    def take(self, keys: Sequence[bytes], more: int = 0) -> Held | None:
        """See `PrefixCache`."""
        path = [*self._path(keys)]
        hits = sum(length for _, length in path)
        needed = len(keys) - hits + more
        if self.capacity is not None:
            idle = self._idle - sum(length for node, length in path if not node.users)
            if needed > self.capacity - self._made + len(self._free) + idle:
                return None
        if path and path[-1][1] < len(path[-1][0].keys):
            self._split(*path[-1])
        node, found = self._root, list[int]()
        for node, length in path:
            self._idle -= 0 if node.users else length
            node.users += 1
            found += node.blocks
        fresh = [self._fresh() for _ in range(needed)]
        if own := list(keys[hits:]):
            node.children[own[0]] = Node(own, fresh[: len(own)], node, 1, 0)
        return Held([*found, *fresh], hits, keys)

    def _split(self, node: Node, length: int) -> None:
        """Cut a node behind `length` blocks; it keeps those, and gets a child with the others."""
        rest = Node(node.keys[length:], node.blocks[length:], node, node.users, node.used)
        rest.children, node.children = node.children, {rest.keys[0]: rest}
        for child in rest.children.values():
            child.parent = rest
        node.keys, node.blocks = node.keys[:length], node.blocks[:length]
        self._offer(rest)

    def _fresh(self) -> int:
        """Return a block that is in no node."""
        if self._free:
            return self._free.pop()
        if self.capacity is None or self._made < self.capacity:
            self._made += 1
            return self._made - 1
        node = self._oldest_leaf()
        key, block = node.keys.pop(), node.blocks.pop()
        self._idle -= 1
        self.evicted += 1
        if node.keys:
            self._offer(node)
        elif node.parent is not None:
            del node.parent.children[key]
            self._offer(node.parent)
        return block

    def _oldest_leaf(self) -> Node:
        while True:
            used, _, node = heapq.heappop(self._leaves)
            if used == node.used and node.keys and not node.users and not node.children:
                return node

    def _offer(self, node: Node) -> None:
        """Let a node be evicted, if it is a leaf that nobody uses."""
        if node.keys and not node.users and not node.children:
            heapq.heappush(self._leaves, (node.used, next(self._order), node))

    def release(self, held: Held) -> None:
        """See `PrefixCache`."""
        self._releases += 1
        for node, _ in self._path(held.keys):
            node.users -= 1
            node.used = self._releases
            if not node.users:
                self._idle += len(node.keys)
                self._offer(node)
        self._free += held.blocks[len(held.keys) :]
