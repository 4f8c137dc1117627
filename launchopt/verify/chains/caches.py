"""Keys and values of requests: those that a run left in memory, and those that a check computes itself."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.arenas import Arenas, to_float32
from launchopt.streams.chains.attention import Attention
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.placement import NO_LAYER
from launchopt.types import Array
from launchopt.verify.chains.columns import Columns
from launchopt.verify.ops import Graded, exact


class Cache(Protocol):
    """Keys and values of requests, by layer."""

    def kept(self, requests: NDArray[np.int64], layer: int, count: int) -> tuple[Graded, Graded]:
        """Return the keys and the values of the first `count` positions of some requests.

        The heads of one request come after those of another: [count, requests * kv heads, head dim] each.
        """

    def write(self, layer: int, at: Columns, rope: Graded) -> None:
        """Store the keys and values of some columns. rope: output of ROPE for them (rotated q and k, and v)."""


class LeftCache:
    """The KV caches in memory after a run, of all layers and requests.

    rank: the number of this GPU among those that split the model; its cache has its own heads.
    """

    def __init__(self, stream: ChainStream, arenas: Arenas, rank: int = 0) -> None:
        assert stream.attention is not None
        self._attention, self._dtype, self._xp = stream.attention, stream.dtype, arenas.xp
        self._rank = rank
        heads, dim = stream.attention.kv_heads, stream.attention.head_dim
        pool = (stream.attention.pages_total, 2, stream.attention.page_tokens, heads, dim)
        elements = int(np.prod(pool))
        self._pools = [slot[:elements].reshape(pool) for slot in arenas.arrays[stream.cache]]
        self._table = stream.page_table

    def slots(self, requests: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of tokens, as the slot map numbers them. requests, positions: of each token."""
        page, within = np.divmod(positions, self._attention.page_tokens)
        pages = self._table[requests, page].astype(np.int64)
        slots: NDArray[np.int64] = pages * self._attention.page_tokens + within
        return slots

    def at(self, requests: NDArray[np.int64], layer: int, positions: NDArray[np.int64]) -> Array:
        """Return keys and values of tokens, float64 [tokens, 2, kv heads, head dim]."""
        page, within = np.divmod(self.slots(requests, positions), self._attention.page_tokens)
        taken = self._pools[layer][self._xp.asarray(page), :, self._xp.asarray(within)]
        return to_float32(taken, self._dtype).astype(np.float64)

    def own(self, both: Graded) -> Graded:
        """Return the keys and values of the heads that this GPU has. both: those of all heads of the model."""
        width = self._attention.kv_width
        heads = slice(self._rank * width, (self._rank + 1) * width)

        def of_heads(array: Array) -> Array:
            return None if array is None else array.reshape(len(array), 2, -1)[:, :, heads].reshape(len(array), -1)

        variance = self._xp.broadcast_to(both.variance, both.value.shape)
        return Graded(of_heads(both.value), of_heads(variance), None, of_heads(both.storing))

    def kept(self, requests: NDArray[np.int64], layer: int, count: int) -> tuple[Graded, Graded]:
        """Return the keys and the values of the first `count` positions of some requests."""
        positions = np.tile(np.arange(count), len(requests))
        both = self.at(np.repeat(requests, count), layer, positions)
        keys, values = _side_by_side(both, len(requests))
        return exact(self._xp, keys), exact(self._xp, values)

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

    def kept(self, requests: NDArray[np.int64], layer: int, count: int) -> tuple[Graded, Graded]:
        """Return the keys and the values of the first `count` positions of some requests. They must be written."""
        assert layer == self._layer
        heads, dim = self._attention.kv_heads, self._attention.head_dim
        found = [self._of(request).part(slice(count)) for request in requests.tolist()]
        value, variance = (
            _side_by_side(
                self._xp.concatenate([getattr(part, name) for part in found]).reshape(-1, 2, heads, dim), len(requests)
            )
            for name in ("value", "variance")
        )
        return Graded(value[0], variance[0]), Graded(value[1], variance[1])

    def _of(self, request: int) -> Graded:
        parts = self._parts[request]
        if len(parts) > 1:
            joined = (self._xp.concatenate([getattr(part, name) for part in parts]) for name in ("value", "variance"))
            parts[:] = [Graded(*joined)]
        return parts[0]


def _side_by_side(both: Array, requests: int) -> tuple[Array, Array]:
    """Return keys and values with the heads of all requests side by side, [count, requests * kv heads, head dim].

    both: [requests * count, 2, kv heads, head dim].
    """
    _, _, heads, dim = both.shape
    by_request = both.reshape(requests, -1, 2, heads, dim).transpose(2, 1, 0, 3, 4)
    keys, values = by_request.reshape(2, -1, requests * heads, dim)
    return keys, values
