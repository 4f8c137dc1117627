"""Number of copies of the weights that a stream cycles through, so that inputs come from memory and not from a cache.

`cold` (the default): distinct weights add up to at least four times the last-level cache. `hot`: as many copies as fit
into half of that cache, at least one; results then say so.
"""

from __future__ import annotations

import enum

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
