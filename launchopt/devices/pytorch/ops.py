"""The ops of a step in PyTorch, written as in an ordinary model.

A, B and C are tensors [rows, features]. A step of several requests has one row per request; a step of one request has
one row per column. The weight A is [k, m], transposed, or a vector [m]. An op writes C in place. Ops of attention also
take `Now`, which the slot map computes from the state of the sequences. Shapes do not depend on positions, so that
launches can be captured: attention covers all of `ctx`, with a mask.

Values that depend only on positions (angles, masks, places in the cache) are computed once per step, as models do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from launchopt.command import Op
from launchopt.devices.pytorch.views import Tensor
from launchopt.streams.attention import Attention

NORM_EPSILON = 1e-5
HALF_BYTES = 2  # bytes of an element in half precision
HIDDEN_SCORE = float("-inf")
# Number of operators of an op that submit work to the device; making a view submits none. `Heads.copies` counts the
# copies of operands that cannot be viewed.
CALLS = {
    **dict.fromkeys((Op.GEMM, Op.BIAS, Op.RELU, Op.SCALE, Op.ADD, Op.KV_WRITE), 1),
    **dict.fromkeys((Op.NORM, Op.SILU_MUL, Op.QK), 2),
    **dict.fromkeys((Op.SOFTMAX, Op.AV), 3),
    Op.ROPE: 4,
    Op.SLOT_MAP: 11,
}


class Sequences(NamedTuple):
    """State of the requests of a step: views of the device's state, and `local` and `columns`, which never change."""

    start: Tensor  # int32 [requests]: position of the first column of this step
    following: Tensor  # int32 [requests]: position of the first column of the next step
    pages: Tensor  # int64 [requests, pages per request]: numbers of pages
    local: Tensor  # int64 [rows]: index of the request that a row belongs to, from 0
    columns: Tensor  # int64 [columns]: 0, 1, 2, ...


class Now(NamedTuple):
    """Values computed from the positions of a step's rows, [requests, columns, ...] or [rows]."""

    pages: Tensor  # int64 [requests, pages per request]: numbers of pages
    page: Tensor  # [rows]: page for a row's keys and values; index of the request if the cache is not paged
    offset: Tensor  # [rows]: position within that page
    cosines: Tensor  # [requests, columns, 1, head_dim]
    sines: Tensor  # [requests, columns, 1, head_dim]
    seen: Tensor  # bool [requests, columns, 1, 1, ctx]: positions that a column attends to
    unseen: Tensor  # bool [requests, columns, 1, 1, ctx]: all other positions


Function = Callable[..., "Now | None"]  # (A, B, C, Now | None); the slot map returns Now


def write(c: Tensor, value: Tensor) -> None:
    """Write a value to C. It prevents a compiler from passing the unrounded value to the next reader of C."""
    if torch.compiler.is_compiling() and c.element_size() == HALF_BYTES:
        bits = value.to(c.dtype).view(torch.int16) | 0  # an operator between the two views, or they would cancel
        value = bits.view(c.dtype)
    c.copy_(value)


def into(c: Tensor, function: Callable[..., Tensor], *operands: Tensor, **options: float) -> None:
    """Write the result of an operator to C. While compiling, write it as a copy, which the compiler may remove."""
    if torch.compiler.is_compiling():
        write(c, function(*operands, **options))
    else:
        function(*operands, out=c, **options)


def gemm(a: Tensor, b: Tensor, c: Tensor, now: Now | None) -> None:
    """C = B @ A, with A transposed already."""
    into(c, torch.mm, b, a)


def bias(a: Tensor, b: Tensor, c: Tensor, now: Now | None) -> None:
    """C = B + A."""
    into(c, torch.add, b, a)


def relu(a: Tensor, b: Tensor, c: Tensor, now: Now | None) -> None:
    """C = max(B, 0)."""
    into(c, torch.clamp, b, min=0)


def scale(a: Tensor, b: Tensor, c: Tensor, now: Now | None) -> None:
    """C = B * A."""
    into(c, torch.mul, b, a)


def norm(a: Tensor, b: Tensor, c: Tensor, now: Now | None) -> None:
    """C = RMSNorm of B with gain A. PyTorch has no RMSNorm that writes in place, so the result is copied."""
    write(c, functional.rms_norm(b, a.shape, a, NORM_EPSILON))


def add(a: Tensor, b: Tensor, c: Tensor, now: Now | None) -> None:
    """C = A + B."""
    into(c, torch.add, a, b)


def silu_mul(a: Tensor, b: Tensor, c: Tensor, now: Now | None) -> None:
    """C = silu(gate) * up, of B = [gate | up]."""
    gate, up = b.chunk(2, 1)
    into(c, torch.mul, functional.silu(gate), up)


PLAIN: dict[Op, Function] = {
    Op.GEMM: gemm,
    Op.BIAS: bias,
    Op.RELU: relu,
    Op.SCALE: scale,
    Op.NORM: norm,
    Op.ADD: add,
    Op.SILU_MUL: silu_mul,
}


class Heads:
    """The ops of an attention."""

    def __init__(self, attention: Attention, dtype: torch.dtype, device: torch.device) -> None:
        self.q_heads, self.kv_heads, self.head_dim = attention.q_heads, attention.kv_heads, attention.head_dim
        self.ctx, self.page_tokens, self.is_paged = attention.ctx, attention.page_tokens, attention.is_paged
        self.qk_norm = attention.qk_norm
        self.group = self.q_heads // self.kv_heads
        self.q_width = self.q_heads * self.head_dim
        self.score_scale = self.head_dim**-0.5
        half = np.arange(self.head_dim // 2)
        angles = np.outer(np.arange(self.ctx), attention.theta ** (-2.0 * half / self.head_dim))
        cosines, sines = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
        self.cosines = torch.from_numpy(np.concatenate([cosines, cosines], 1)).to(device)
        self.sines = torch.from_numpy(np.concatenate([-sines, sines], 1)).to(device)
        self.positions = torch.arange(self.ctx, device=device)
        self.nothing = torch.zeros((1, 1, 1), dtype=dtype, device=device)  # operand that baddbmm adds, times 0
        self.functions: dict[Op, Function] = {
            Op.SLOT_MAP: self.slot_map,
            Op.ROPE: self.rope,
            Op.KV_WRITE: self.kv_write,
            Op.QK: self.qk,
            Op.SOFTMAX: self.softmax,
            Op.AV: self.av,
        }

    def slot_map(self, a: Sequences, b: object, c: Tensor, now: object) -> Now:
        """Advance the positions of each request by the number of columns; return `Now`.

        C, int32 [requests, columns] = slots of the columns in the cache.
        """
        a.start.copy_(a.following)
        a.following.add_(a.columns.shape[0])
        tokens = a.start.unsqueeze(1) + a.columns
        page, offset = a.pages.gather(1, tokens // self.page_tokens), tokens % self.page_tokens
        into(c, torch.add, offset, page, alpha=self.page_tokens)
        by_token = tokens.unsqueeze(2)
        seen = (self.positions <= by_token).unsqueeze(2).unsqueeze(2)
        unseen = (self.positions > by_token).unsqueeze(2).unsqueeze(2)
        cosines, sines = self.cosines[tokens].unsqueeze(2), self.sines[tokens].unsqueeze(2)
        place = page.reshape(-1) if self.is_paged else a.local
        return Now(a.pages, place, offset.reshape(-1), cosines, sines, seen, unseen)

    def _by_head(self, rows: Tensor, now: Now, features: int) -> Tensor:
        """Return [rows, heads * features] as [requests, columns, heads, features]."""
        requests, columns = now.seen.shape[0], now.seen.shape[1]
        return rows.view(requests, columns, rows.shape[1] // features, features)

    def _grouped(self, rows: Tensor, now: Now, features: int) -> Tensor:
        """Return [rows, heads * features] as [requests, columns, kv heads, heads that share one, features]."""
        requests, columns = now.seen.shape[0], now.seen.shape[1]
        return rows.view(requests, columns, self.kv_heads, self.group, features)

    def _for_product(self, rows: Tensor) -> Tensor:
        """Return grouped rows as [kv heads * requests, columns * heads that share one, features]."""
        requests, columns, _, _, features = rows.shape
        return rows.permute(2, 0, 1, 3, 4).reshape(self.kv_heads * requests, columns * self.group, features)

    def _of_product(self, product: Tensor, now: Now) -> Tensor:
        """Return a product of `_for_product` rows as grouped rows."""
        requests, columns = now.seen.shape[0], now.seen.shape[1]
        return product.view(self.kv_heads, requests, columns, self.group, -1).permute(1, 2, 0, 3, 4)

    def _cached(self, pool: Tensor, is_value: int, now: Now) -> Tensor:
        """Return keys or values of all positions, [kv heads * requests, ctx, head_dim], gathered if paged."""
        rows = pool[:, is_value].permute(2, 0, 1, 3)  # [kv heads, pages, tokens per page, head_dim]
        if self.is_paged:
            rows = rows.index_select(1, now.pages.reshape(-1))
        return rows.reshape(self.kv_heads * now.pages.shape[0], -1, self.head_dim)[:, : self.ctx]

    def rope(self, a: Tensor, b: Tensor, c: Tensor, now: Now) -> None:
        """C = q and k rotated by their position, and v unchanged. A: gains of q and of k, which are normed first."""
        given, result = self._by_head(b, now, self.head_dim), self._by_head(c, now, self.head_dim)
        heads = self.q_heads + self.kv_heads
        turned = self._normed(given, a) if self.qk_norm else given[:, :, :heads]
        swapped = turned.roll(self.head_dim // 2, -1)
        into(result[:, :, :heads], torch.addcmul, turned * now.cosines, swapped, now.sines)
        write(result[:, :, heads:], given[:, :, heads:])

    def _normed(self, given: Tensor, gains: Tensor) -> Tensor:
        """Return the heads of q and k, normed one by one. gains: [2 * head_dim], those of q, then those of k."""
        parts = given[:, :, : self.q_heads], given[:, :, self.q_heads : self.q_heads + self.kv_heads]
        both = zip(parts, gains.chunk(2), strict=True)
        return torch.cat([functional.rms_norm(part, own.shape, own, NORM_EPSILON) for part, own in both], 2)

    def kv_write(self, a: object, b: Tensor, c: Tensor, now: Now) -> None:
        """Write keys and values of B into the cache C, [pages, 2, tokens per page, kv heads, head_dim]."""
        rows = b[:, self.q_width :].view(b.shape[0], 2, self.kv_heads, self.head_dim)
        c[now.page, :, now.offset] = rows

    def qk(self, a: Tensor, b: Tensor, c: Tensor, now: Now) -> None:
        """C = scores of the positions that a column attends to; other elements of C stay."""
        queries = self._for_product(self._grouped(b[:, : self.q_width], now, self.head_dim))
        keys = self._cached(a, 0, now).transpose(1, 2)
        scores = torch.baddbmm(self.nothing, queries, keys, beta=0, alpha=self.score_scale)
        result = self._grouped(c, now, self.ctx)
        into(result, torch.where, now.seen, self._of_product(scores, now), result)

    def softmax(self, a: object, b: Tensor, c: Tensor, now: Now) -> None:
        """C = probabilities of the positions that a column attends to; other elements of C stay."""
        scores, result = self._grouped(b, now, self.ctx), self._grouped(c, now, self.ctx)
        powers = torch.softmax(scores.masked_fill(now.unseen, HIDDEN_SCORE), -1)
        into(result, torch.where, now.seen, powers, result)

    def av(self, a: Tensor, b: Tensor, c: Tensor, now: Now) -> None:
        """C = values weighted by the probabilities. Values that no step wrote must be zeros in the cache."""
        weights = self._for_product(self._grouped(b, now, self.ctx).masked_fill(now.unseen, 0))
        product = torch.bmm(weights, self._cached(a, 1, now))
        write(self._grouped(c, now, self.head_dim), self._of_product(product, now))

    def copies(self, op: Op, requests: int, columns: int) -> int:
        """Return the number of operators that submit work in addition to `CALLS`.

        They are gathers, copies of operands, and the norms of q and k.
        """
        if op is Op.ROPE and self.qk_norm:
            return 3
        if op not in (Op.QK, Op.AV):
            return 0
        several = requests > 1 and self.kv_heads > 1
        cached = int(self.is_paged or several)
        apart = columns > 1 and self.group > 1 and (op is Op.QK or self.kv_heads > 1)
        return cached + int(several or apart)
