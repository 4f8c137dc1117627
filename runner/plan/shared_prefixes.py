"""What the requests of a config share, by `scheduler.prefixes`: prompts of a trace, or prompts that begin alike.

Refuses, in one line, a config whose requests cannot share pages of a KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.replay import Replay
from launchopt.arrivals.requests import Requests
from launchopt.errors import ConfigError
from launchopt.prefixes.hash_cache import HashCache
from launchopt.prefixes.radix_cache import RadixCache
from launchopt.prefixes.sharing import SharedPrefixes, share
from launchopt.producing.production import Routing, by_turns
from launchopt.workloads.layer import Layer
from runner.config.groups import Prefixes
from runner.config.schema import Config

KEY = "scheduler.prefixes"


class _Prompts(NamedTuple):
    """The prompts of a run. tokens: of each. common: returns the tokens with which those of two requests both begin."""

    tokens: Iterator[NDArray[np.int32]]
    common: Callable[[int, int], int]


def shared_of(config: Config, requests: Requests | None) -> SharedPrefixes | None:
    """Return what the requests find cached; None if no prefix is shared. ConfigError if none could be."""
    kind = config.scheduler.prefixes
    if kind is Prefixes.none or requests is None:
        return None
    workload = config.workload
    page = workload.page if isinstance(workload, Layer) else None
    if page is None:
        _refuse(config, "shares pages of a KV cache: use workload=layer workload.kv=paged")
    _require_blocks(config, requests, page)
    consumers = len(config.device.gpus or (0,)) if config.parallel.tensor == 1 else 1
    if consumers > 1 and config.device.routing is Routing.least_outstanding:
        why = "depends on times, so that nobody knows before a run what is cached: use prefix or round_robin"
        raise ConfigError("device.routing", "least_outstanding", why)
    make = HashCache if kind is Prefixes.hash else RadixCache
    caches = [make(config.scheduler.prefix_blocks) for _ in range(consumers)]
    turns = None if config.device.routing is Routing.prefix else by_turns(requests.arrival_ns, consumers)
    prompts = (
        _of_trace(config, config.arrival) if isinstance(config.arrival, Replay) else _alike(config, requests, page)
    )
    shared = share(zip(prompts.tokens, requests.generated_tokens.tolist(), strict=True), caches, page, turns)
    shared.require_same(prompts.common)
    return shared


def _require_blocks(config: Config, requests: Requests, page: int) -> None:
    """Raise ConfigError if no request fits into the blocks of the cache."""
    blocks = config.scheduler.prefix_blocks
    least = int((-(-(requests.context_tokens + requests.generated_tokens) // page)).min())
    if blocks is not None and blocks < least:
        why = f"no request fits: must be at least {least}, the blocks of the smallest request"
        raise ConfigError("scheduler.prefix_blocks", blocks, why)


def prefix_notice(shared: SharedPrefixes) -> str:
    """Return what the user should know of the cached tokens."""
    rate, ns = shared.hit_rate or 0.0, shared.host_ns_per_token or 0.0
    found = f"{shared.cached_tokens:,} of {shared.tokens:,} tokens of prompts are cached, {rate:.1%} of full blocks"
    parts = [f"prefixes: {found}", f"before the run the host took {ns:.1f} ns a token to find them"]
    if shared.evicted:
        parts.append(f"blocks evicted: {shared.evicted:,}")
    if shared.too_large:
        parts.append(f"requests that need more than scheduler.prefix_blocks, and find nothing: {shared.too_large:,}")
    return "; ".join(parts)


def _of_trace(config: Config, trace: Replay) -> _Prompts:
    prompts = trace.prompts()
    if prompts is None:
        _refuse(config, f"needs hash_ids: {trace.path} is no Mooncake trace")
    return _Prompts((prompt.tokens() for prompt in prompts), lambda one, other: prompts[one].common(prompts[other]))


def _alike(config: Config, requests: Requests, page: int) -> _Prompts:
    prefix = config.workload.shared_prefix
    if config.arrival.has_requests or not prefix:
        _refuse(config, "no prompts share tokens: give workload.shared_prefix=TOKENS, or replay a Mooncake trace")
    if prefix < page:
        why = f"no page is full: must be at least workload.page_tokens, which is {page}"
        raise ConfigError("workload.shared_prefix", prefix, why)
    tokens = (_beginning_alike(prefix, number, int(n)) for number, n in enumerate(requests.context_tokens))
    return _Prompts(tokens, lambda one, other: prefix)


def _beginning_alike(prefix: int, request: int, count: int) -> NDArray[np.int32]:
    """Return `count` tokens: the first `prefix` as those of all other requests, then a token that none of them has."""
    tokens = np.arange(count, dtype=np.int32)
    tokens[prefix:] = -1 - request
    return tokens


def _refuse(config: Config, why: str) -> NoReturn:
    raise ConfigError(KEY, config.scheduler.prefixes.value, why)
