"""Keys and values of requests: those that a run left in memory, and those that a check computes itself."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.arenas import Arenas, to_float32
from launchopt.streams.attention import Attention
from launchopt.streams.chain import ChainStream
from launchopt.streams.placement import NO_LAYER
from launchopt.types import Array
from launchopt.verify.columns import Columns
from launchopt.verify.ops import Graded, exact


class Cache(Protocol):
    """Keys and values of requests, by layer."""

    def kept(self, request: int, layer: int, count: int) -> tuple[Graded, Graded]:
        """Return the keys and the values of a request's first `count` positions, [count, kv heads, head dim] each."""

    def write(self, layer: int, at: Columns, rope: Graded) -> None:
        """Store the keys and values of some columns. rope: output of ROPE for them (rotated q and k, and v)."""


class LeftCache:
    """The KV caches in memory after a run, of all layers and requests."""

    def __init__(self, stream: ChainStream, arenas: Arenas) -> None:
        assert stream.attention is not None
        self._attention, self._dtype, self._xp = stream.attention, stream.dtype, arenas.xp
        heads, dim = stream.attention.kv_heads, stream.attention.head_dim
        pool = (stream.attention.pages_total, 2, stream.attention.page_tokens, heads, dim)
        elements = int(np.prod(pool))
        self._pools = [slot[:elements].reshape(pool) for slot in arenas.arrays[stream.cache]]
        self._table = stream.page_table

    def slots(self, request: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of a request's tokens, as the slot map numbers them."""
        page, within = np.divmod(positions, self._attention.page_tokens)
        slots: NDArray[np.int64] = self._table[request, page].astype(np.int64) * self._attention.page_tokens + within
        return slots

    def at(self, request: int, layer: int, positions: NDArray[np.int64]) -> Array:
        """Return keys and values at these positions, float64 [positions, 2, kv heads, head dim]."""
        page, within = np.divmod(self.slots(request, positions), self._attention.page_tokens)
        taken = self._pools[layer][self._xp.asarray(page), :, self._xp.asarray(within)]
        return to_float32(taken, self._dtype).astype(np.float64)

    def kept(self, request: int, layer: int, count: int) -> tuple[Graded, Graded]:
        """Return the keys and the values of a request's first `count` positions."""
        both = self.at(request, layer, np.arange(count))
        return exact(self._xp, both[:, 0]), exact(self._xp, both[:, 1])

    def write(self, layer: int, at: Columns, rope: Graded) -> None:
        """Do nothing, since the run wrote this cache."""


class SequenceCache:
    """The expected keys and values of one layer of the requests under evaluation; a new layer empties the cache.

    note: called with each layer, columns, and their keys and values, [columns, 2 * kv width], that are stored.
    """

    def __init__(self, attention: Attention, xp: ModuleType, note: Callable[[int, Columns, Graded], None]) -> None:
        self._attention, self._xp, self._note = attention, xp, note
        self._layer, self._parts = NO_LAYER, dict[int, list[Graded]]()

    def write(self, layer: int, at: Columns, rope: Graded) -> None:
        """Append the keys and values of some columns."""
        if layer != self._layer:
            self._layer, self._parts = layer, {}
        added = rope.part((slice(None), slice(-2 * self._attention.kv_width, None)))
        self._note(layer, at, added)
        for request, own in at.by_request():
            self._parts.setdefault(request, []).append(added.part(own))

    def kept(self, request: int, layer: int, count: int) -> tuple[Graded, Graded]:
        """Return the keys and the values of a request's first `count` positions. They must have been written."""
        assert layer == self._layer
        parts = self._parts[request]
        if len(parts) > 1:
            joined = (self._xp.concatenate([getattr(part, name) for part in parts]) for name in ("value", "variance"))
            parts[:] = [Graded(*joined)]
        heads, dim = self._attention.kv_heads, self._attention.head_dim
        both = [array[:count].reshape(count, 2, heads, dim) for array in (parts[0].value, parts[0].variance)]
        return Graded(both[0][:, 0], both[1][:, 0]), Graded(both[0][:, 1], both[1][:, 1])
