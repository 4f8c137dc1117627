"""How many copies of the weights a stream cycles through, so that inputs come from memory and not from a cache.

`cold` (the rule): distinct weights add up to at least four times the last-level cache. `hot` (asked for, and
then printed): as many copies as fit in half of it, at least one.
"""

from __future__ import annotations

import enum

COLD_CACHES = 4


class Cache(enum.Enum):
    """Where inputs are to be found."""

    cold = "cold"
    hot = "hot"


def replicas_for(cache: Cache, weight_bytes: int, cache_bytes: int, multiple: int = 1) -> int:
    """Copies of `weight_bytes` for a device with `cache_bytes` of last-level cache.

    Cold copies come in multiples of `multiple`, the largest batch, so that a full batch ends where a turn ends.
    """
    if cache is Cache.hot:
        return max(1, cache_bytes // 2 // weight_bytes)
    return -(-COLD_CACHES * cache_bytes // (weight_bytes * multiple)) * multiple
