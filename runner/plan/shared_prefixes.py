"""What the requests of a config share, by `scheduler.prefixes`: prompts of a trace, or prompts that begin alike.

Refuses, in one line, a config whose requests cannot share pages of a KV cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

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


def shared_of(config: Config, requests: Requests | None) -> SharedPrefixes | None:
    """Return what the requests find cached; None if no prefix is shared. ConfigError if none could be."""
    kind = config.scheduler.prefixes
    if kind is Prefixes.none or requests is None:
        return None
    workload = config.workload
    page = workload.page if isinstance(workload, Layer) else None
    if page is None:
        _refuse(config, "shares pages of a KV cache: use workload=layer workload.kv=paged")
    consumers = len(config.device.gpus or (0,)) if config.parallel.tensor == 1 else 1
    if consumers > 1 and config.device.routing is Routing.least_outstanding:
        why = "depends on times, so that nobody knows before a run what is cached: use prefix or round_robin"
        raise ConfigError("device.routing", "least_outstanding", why)
    make = HashCache if kind is Prefixes.hash else RadixCache
    caches = [make(config.scheduler.prefix_blocks) for _ in range(consumers)]
    turns = None if config.device.routing is Routing.prefix else by_turns(requests.arrival_ns, consumers)
    return share(_prompts(config, requests), caches, page, turns)


def prefix_notice(shared: SharedPrefixes) -> str:
    """Return what the user should know of the cached tokens."""
    rate, ns = shared.hit_rate or 0.0, shared.host_ns_per_token or 0.0
    found = f"{shared.cached_tokens:,} of {shared.tokens:,} tokens of prompts are cached"
    about = (
        f"prefixes: {found}, {rate:.1%} of full blocks; before the run the host took {ns:.1f} ns a token to find them"
    )
    return f"{about}; {shared.too_large} requests need more than scheduler.prefix_blocks" if shared.too_large else about


def _prompts(config: Config, requests: Requests) -> Iterator[tuple[NDArray[np.int32], int]]:
    """Return the tokens of each prompt, and the number of tokens of its answer."""
    if isinstance(config.arrival, Replay):
        prompts = config.arrival.prompts()
        if prompts is None:
            _refuse(config, f"needs hash_ids: {config.arrival.path} is no Mooncake trace")
        tokens = (prompt.tokens() for prompt in prompts)
    else:
        prefix = config.workload.shared_prefix
        if config.arrival.has_requests or not prefix:
            _refuse(config, "no prompts share tokens: give workload.shared_prefix=TOKENS, or replay a Mooncake trace")
        tokens = (_beginning_alike(prefix, number, int(n)) for number, n in enumerate(requests.context_tokens))
    return zip(tokens, requests.generated_tokens.tolist(), strict=True)


def _beginning_alike(prefix: int, request: int, count: int) -> NDArray[np.int32]:
    """Return `count` tokens: the first `prefix` as those of all other requests, then a token that none of them has."""
    tokens = np.arange(count, dtype=np.int32)
    tokens[prefix:] = -1 - request
    return tokens


def _refuse(config: Config, why: str) -> NoReturn:
    raise ConfigError(KEY, config.scheduler.prefixes.value, why)
