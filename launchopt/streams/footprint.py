"""Copies of the weights that a stream cycles through, so that inputs come from memory, and the bytes that must come.

`cold` (the default): distinct weights add up to at least four times the last-level cache. `hot`: as many copies as fit
into half of that cache, at least one; results then say so.
"""

from __future__ import annotations

import enum

from launchopt.command import ShapeKey
from launchopt.streams.chains.chain import ChainStream, Stream
from launchopt.streams.experts.stream import ExpertStream
from launchopt.streams.operands import arenas_of
from launchopt.streams.stream import CommandStream

COLD_CACHES = 4


class Cache(enum.Enum):
    """Place from which commands read their weights: memory (cold) or a cache (hot)."""

    cold = "cold"
    hot = "hot"


def replicas_for(cache: Cache, weight_bytes: int, cache_bytes: int, multiple: int = 1) -> int:
    """Return the number of copies of `weight_bytes` for a device with `cache_bytes` of last-level cache.

    The number of cold copies is a multiple of `multiple`, the largest batch. So no full batch wraps around from the
    last copy to the first.
    """
    if cache is Cache.hot:
        return max(1, cache_bytes // 2 // weight_bytes)
    return -(-COLD_CACHES * cache_bytes // (weight_bytes * multiple)) * multiple


def least_memory_bytes(stream: Stream, together: int, cache_bytes: int) -> int:
    """Return a lower bound of the bytes of weights that one run reads from memory, however it schedules its commands.

    Whatever a cache of `cache_bytes` keeps, a pass over all weights misses the rest of them. together: commands of one
    shape that may run at the same time, and then share one read of a weight.
    """
    weights = sum(arena.slot_bytes * slots for arena, slots in stream.arenas.items() if arena.is_weight)
    if isinstance(stream, ExpertStream):
        return stream.least_read_bytes(cache_bytes)
    if isinstance(stream, ChainStream):
        read, weights = _read_by_a_request(stream, weights)
    else:
        read = sum(_read_by_shape(stream, shape, together) for shape in stream.shapes)
    passes = -(-read // weights) if weights else 0
    return max(0, read - passes * cache_bytes)


def _read_by_a_request(stream: ChainStream, weights: int) -> tuple[int, int]:
    """Return the bytes of weights that a mean request reads, and that a pass over all copies reads.

    Each token of a request reads a copy of the weights, the next token the next copy. Other requests may share these
    reads. The LM head has one copy, which a cache may keep where the layers have several.
    """
    head = stream.vocab * stream.hidden * stream.dtype.itemsize if stream.vocab and stream.replicas > 1 else 0
    return (weights - head) // stream.replicas * stream.tokens // stream.requests, weights - head


def _read_by_shape(stream: CommandStream, shape: ShapeKey, together: int) -> int:
    """Return the bytes of weights that commands of a shape read if each batch reads each of its weights once."""
    arena, count = arenas_of(shape)[0], stream.counts[shape]
    uses = {other: stream.counts[other] for other in stream.shapes if arenas_of(other)[0] == arena}
    slots = stream.arenas[arena]
    if slots >= sum(uses.values()):
        return shape.weight_bytes * count  # no weight is used twice
    different = slots if len(uses) == 1 else 1  # of a batch; commands of other shapes may use the weights between
    if not stream.weights_in_turn:
        return shape.weight_bytes * different  # once each: all commands of a batch may read one weight
    return shape.weight_bytes * max(min(count, different), count * min(different, together) // together)
