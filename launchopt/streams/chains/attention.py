"""Attention of a layer, in numbers: its heads, its KV cache, and the part of the cache that a step reads.

In: the heads of a model, the maximum tokens of a request, and the tokens of a page of the cache. Out: `Attention`, from
which a device runs attention, with a page table fixed by a seed. `work.attention_work` has its FLOPs and bytes.

The cache of a layer is one pool, [pages_total][2][page_tokens][kv_heads][head_dim], keys then values. A contiguous
cache has one page per request, as long as the longest request can get, in the order of requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of a layer's attention.

    ctx: maximum tokens of a request. page: tokens of a page of the cache; None: one page holds a whole request.
    qk_norm: each head of the queries and keys is normalized (RMSNorm) before it is rotated, as in Qwen3.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    ctx: int
    page: int | None = None
    theta: float = 10_000.0
    qk_norm: bool = False

    def __post_init__(self) -> None:
        if self.q_heads % self.kv_heads:
            raise ConfigError("model.q_heads", self.q_heads, f"must be a multiple of kv_heads={self.kv_heads}")
        if self.head_dim % 2:
            raise ConfigError("model.head_dim", self.head_dim, "must be even: rotary embedding turns pairs")

    @property
    def q_width(self) -> int:
        """Features of q, and of the output of attention."""
        return self.q_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Features of k; v has as many."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Features of q, k and v together."""
        return self.q_width + 2 * self.kv_width

    @property
    def gains_width(self) -> int:
        """Elements of the gains with which queries and keys are normalized: of a query head, then of a key head."""
        return 2 * self.head_dim if self.qk_norm else 0

    @property
    def scores_width(self) -> int:
        """Scores of a column: `ctx` positions for each q head."""
        return self.q_heads * self.ctx


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes with which a device runs the attention of `requests` requests.

    shared: pages of a layer's cache if requests share some; None: each request has pages_a_request.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    ctx: int
    page_tokens: int
    theta: float
    requests: int
    is_paged: bool
    qk_norm: bool = False
    shared: int | None = None

    @staticmethod
    def of(shape: AttentionShape, requests: int, shared: int | None = None) -> Attention:
        """Return the attention of `requests` requests."""
        heads = shape.q_heads, shape.kv_heads, shape.head_dim
        page_tokens = shape.page or shape.ctx
        is_paged = shape.page is not None
        return Attention(*heads, shape.ctx, page_tokens, shape.theta, requests, is_paged, shape.qk_norm, shared)

    @property
    def pages_a_request(self) -> int:
        """Maximum pages of a request."""
        return -(-self.ctx // self.page_tokens)

    @property
    def pages_total(self) -> int:
        """Pages of a layer's cache."""
        return self.requests * self.pages_a_request if self.shared is None else self.shared

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys; its values have as many."""
        return self.kv_heads * self.head_dim

    def page_table(self, seed: int) -> NDArray[np.int32]:
        """Return pages for each request, which it shares with no other one, int32 [requests, pages_a_request].

        Their order is random in a paged cache, and ascending in a contiguous one. `SharedPrefixes.pages` makes the page
        table of requests that share some.
        """
        pages = np.arange(self.requests * self.pages_a_request)
        if self.is_paged:
            pages = np.random.default_rng([seed, 0x9A6E]).permutation(pages)
        return pages.astype(np.int32).reshape(self.requests, self.pages_a_request)
