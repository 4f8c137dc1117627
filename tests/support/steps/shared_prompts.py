"""Streams of a paged layer whose prompts share tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from launchopt.command import Dtype
from launchopt.prefixes.cache import PrefixCache
from launchopt.prefixes.hash_cache import HashCache
from launchopt.prefixes.sharing import SharedPrefixes, share
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from support.steps.programs import PROGRAMS, requests_of

BLOCK = 4  # tokens of a page of the program "paged"
# A donor; one that shares two blocks of it; one that shares three, of which the second computed one; one that shares
# nothing; one whose whole prompt the third one had; one without a prompt.
PROMPTS = ("aaaabbbbccc", "aaaabbbbdddde", "aaaabbbbddddffff", "gggg", "aaaabbbbddddffff", "")
OUTPUTS = (3, 2, 4, 3, 2, 2)
CACHED, DONORS = [0, 8, 12, 0, 12, 0], [-1, 0, 1, -1, 1, -1]


def shared_by(prompts: Sequence[str], outputs: Sequence[int], cache: PrefixCache | int = 1) -> SharedPrefixes:
    """Return what prompts share. Each letter is a token. cache: a number: as many consumers, each with a cache."""
    tokens = (np.frombuffer(prompt.encode(), np.uint8).astype(np.int32) for prompt in prompts)
    caches: Sequence[PrefixCache] = [HashCache() for _ in range(cache)] if isinstance(cache, int) else [cache]
    return share(zip(tokens, outputs, strict=True), caches, BLOCK)


def stream_of(
    prompts: Sequence[str] = PROMPTS,
    outputs: Sequence[int] = OUTPUTS,
    dtype: Dtype = Dtype.fp32,
    chunk: int | None = None,
    vocab: int | None = None,
    replicas: int = 1,
) -> ChainStream:
    """Return a stream of these prompts, with what they share."""
    requests = requests_of([(len(prompt), count) for prompt, count in zip(prompts, outputs, strict=True)])
    settings = ChainSettings(vocab, chunk, 5, prefixes=shared_by(prompts, outputs))
    return ChainStream(PROGRAMS["paged"](requests.longest), 2, requests, dtype, replicas, settings)


def alike_prompts() -> st.SearchStrategy[list[str]]:
    """Draw prompts of blocks that are often the same, with a few tokens behind them."""
    blocks = st.lists(st.sampled_from(["aaaa", "bbbb"]), max_size=4).map("".join)
    prompt = st.builds(str.__add__, blocks, st.sampled_from(["", "x", "yyy"]))
    return st.lists(prompt, min_size=1, max_size=8)
