"""The ops of a step in PyTorch, written as in an ordinary model.

A, B and C are tensors [rows, features]. A step of several requests has one row per request; a step of one request has
one row per column. The weight A is [k, m], transposed, or a vector [m]. An op returns its output. It stores the output
in C, or in a new tensor if C is None. Ops of attention also take `Now`, which the slot map computes from the state of
the sequences. Shapes do not depend on positions, so that launches can be captured: attention covers all of `ctx`, with
a mask.

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
from launchopt.streams.chains.attention import Attention

HALF_BYTES = 2  # bytes of an element in half precision
MASK_ALIGNMENT = 16  # positions; the row length of a mask that PyTorch's attention kernels take without a padded copy
# Number of operators of an op that submit work to the device; making a view submits none. `Heads.copies` counts the
# copies of operands that cannot be viewed.
CALLS = {
    **dict.fromkeys((Op.GEMM, Op.BIAS, Op.RELU, Op.SCALE, Op.NORM, Op.ADD, Op.KV_WRITE, Op.AV), 1),
    Op.SILU_MUL: 2,
    Op.ROPE: 4,
    Op.SLOT_MAP: 11,
}
ATTENTION = (Op.QK, Op.SOFTMAX, Op.AV)  # rows that one operator computes


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
    mask: Tensor  # [requests, 1, columns, ctx]: 0 for positions that a column attends to, else -inf


Function = Callable[..., "Tensor | Now"]  # (A, B, C, Now | None); the slot map returns Now


def keep(c: Tensor | None, value: Tensor) -> Tensor:
    """Store a value in C, if there is one; return the value as it is stored."""
    if c is None:
        return value
    if torch.compiler.is_compiling() and c.element_size() == HALF_BYTES:
        # Otherwise a compiler would pass the unrounded value to the next op. The operator between the two views
        # prevents that they cancel.
        value = (value.to(c.dtype).view(torch.int16) | 0).view(c.dtype)
    c.copy_(value)
    return value


def into(c: Tensor | None, function: Callable[..., Tensor], *operands: Tensor, **options: float) -> Tensor:
    """Return the result of an operator, stored in C. While compiling, store a copy, which the compiler may remove."""
    if c is None or torch.compiler.is_compiling():
        return keep(c, function(*operands, **options))
    function(*operands, out=c, **options)
    return c


def gemm(a: Tensor, b: Tensor, c: Tensor | None, now: Now | None) -> Tensor:
    """C = B @ A, with A transposed already."""
    return into(c, torch.mm, b, a)


def bias(a: Tensor, b: Tensor, c: Tensor | None, now: Now | None) -> Tensor:
    """C = B + A."""
    return into(c, torch.add, b, a)


def relu(a: Tensor, b: Tensor, c: Tensor | None, now: Now | None) -> Tensor:
    """C = max(B, 0)."""
    return into(c, torch.clamp, b, min=0)


def scale(a: Tensor, b: Tensor, c: Tensor | None, now: Now | None) -> Tensor:
    """C = B * A."""
    return into(c, torch.mul, b, a)


def norm(epsilon: float) -> Function:
    """Return the op C = RMSNorm of B with gain A.

    PyTorch's RMSNorm cannot write in place: if C is given, the result is copied.
    """

    def normed(a: Tensor, b: Tensor, c: Tensor | None, now: Now | None) -> Tensor:
        return keep(c, functional.rms_norm(b, a.shape, a, epsilon))

    return normed


def add(a: Tensor, b: Tensor, c: Tensor | None, now: Now | None) -> Tensor:
    """C = A + B."""
    return into(c, torch.add, a, b)


def silu_mul(a: Tensor, b: Tensor, c: Tensor | None, now: Now | None) -> Tensor:
    """C = silu(gate) * up, of B = [gate | up]."""
    gate, up = b.chunk(2, 1)
    return into(c, torch.mul, functional.silu(gate), up)


def plain(norm_epsilon: float) -> dict[Op, Function]:
    """Return the ops that need no attention."""
    return {
        Op.GEMM: gemm,
        Op.BIAS: bias,
        Op.RELU: relu,
        Op.SCALE: scale,
        Op.NORM: norm(norm_epsilon),
        Op.ADD: add,
        Op.SILU_MUL: silu_mul,
    }


class Heads:
    """The ops of an attention. `AV` stands for QK, SOFTMAX and AV. norm_epsilon: of the norms of heads."""

    def __init__(self, attention: Attention, norm_epsilon: float, dtype: torch.dtype, device: torch.device) -> None:
        self.q_heads, self.kv_heads, self.head_dim = attention.q_heads, attention.kv_heads, attention.head_dim
        self.ctx, self.page_tokens, self.is_paged = attention.ctx, attention.page_tokens, attention.is_paged
        self.qk_norm, self.norm_epsilon = attention.qk_norm, norm_epsilon
        self.q_width = self.q_heads * self.head_dim
        half = np.arange(self.head_dim // 2)
        angles = np.outer(np.arange(self.ctx), attention.theta ** (-2.0 * half / self.head_dim))
        cosines, sines = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
        self.cosines = torch.from_numpy(np.concatenate([cosines, cosines], 1)).to(device)
        self.sines = torch.from_numpy(np.concatenate([-sines, sines], 1)).to(device)
        aligned = -(-self.ctx // MASK_ALIGNMENT) * MASK_ALIGNMENT
        self.positions = torch.arange(aligned, device=device)
        self.shown = torch.zeros((), dtype=dtype, device=device)
        self.hidden = torch.full((), float("-inf"), dtype=dtype, device=device)
        self.functions: dict[Op, Function] = {
            Op.SLOT_MAP: self.slot_map,
            Op.ROPE: self.rope,
            Op.KV_WRITE: self.kv_write,
            Op.AV: self.av,
        }

    def slot_map(self, a: Sequences, b: object, c: Tensor, now: object) -> Now:
        """Advance the positions of each request by the number of columns; return `Now`.

        C, int32 [requests, columns] = slots of the columns in the cache.
        """
        a.start.copy_(a.following)
        a.following.add_(len(a.columns))
        tokens = a.start.unsqueeze(1) + a.columns
        page, offset = a.pages.gather(1, tokens // self.page_tokens), tokens % self.page_tokens
        into(c, torch.add, offset, page, alpha=self.page_tokens)
        seen = self.positions <= tokens.unsqueeze(2)
        mask = torch.where(seen, self.shown, self.hidden)[:, None, :, : self.ctx]
        cosines, sines = self.cosines[tokens].unsqueeze(2), self.sines[tokens].unsqueeze(2)
        place = page.reshape(-1) if self.is_paged else a.local
        return Now(a.pages, place, offset.reshape(-1), cosines, sines, mask)

    def _by_head(self, rows: Tensor, now: Now) -> Tensor:
        """Return [rows, heads * head_dim] as [requests, columns, heads, head_dim]."""
        requests, columns = now.cosines.shape[:2]
        return rows.view(requests, columns, rows.shape[1] // self.head_dim, self.head_dim)

    def rope(self, a: Tensor | None, b: Tensor, c: Tensor | None, now: Now) -> Tensor:
        """C = q and k rotated by their position, and v unchanged. A: gains of q and of k, which are normed first."""
        heads = self.q_heads + self.kv_heads
        given = self._by_head(b, now)
        turned, values = given[:, :, :heads], given[:, :, heads:]
        if a is not None:
            turned = self._normed(turned, a)
        swapped = turned.roll(self.head_dim // 2, -1)
        if c is None:
            found = torch.addcmul(turned * now.cosines, swapped, now.sines).to(b.dtype)
            return torch.cat([found, values], 2).view(b.shape)
        result = self._by_head(c, now)
        into(result[:, :, :heads], torch.addcmul, turned * now.cosines, swapped, now.sines)
        keep(result[:, :, heads:], values)
        return c

    def _normed(self, given: Tensor, gains: Tensor) -> Tensor:
        """Return the heads of q and k, normed one by one. gains: [2 * head_dim], those of q, then those of k."""
        both = zip(given.split((self.q_heads, self.kv_heads), 2), gains.chunk(2), strict=True)
        return torch.cat([functional.rms_norm(part, own.shape, own, self.norm_epsilon) for part, own in both], 2)

    def kv_write(self, a: object, b: Tensor, c: Tensor, now: Now) -> Tensor:
        """Write keys and values of B into the cache C, [pages, 2, tokens per page, kv heads, head_dim]."""
        rows = b[:, self.q_width :].view(b.shape[0], 2, self.kv_heads, self.head_dim)
        c[now.page, :, now.offset] = rows
        return c

    def _cached(self, pool: Tensor, is_value: int, now: Now) -> Tensor:
        """Return keys or values of all positions, [requests, kv heads, ctx, head_dim], gathered if paged."""
        rows = pool[:, is_value]  # [pages, tokens per page, kv heads, head_dim]
        if self.is_paged:
            rows = rows.index_select(0, now.pages.reshape(-1))
        rows = rows.reshape(len(now.pages), -1, self.kv_heads, self.head_dim)
        return rows[:, : self.ctx].transpose(1, 2)

    def av(self, a: Tensor, b: Tensor, c: Tensor | None, now: Now) -> Tensor:
        """C = attention of the queries in B over the cache A. Values that no step wrote must be finite.

        The mask is of floats. From one of booleans, PyTorch would make one of floats in every layer.
        """
        queries = self._by_head(b[:, : self.q_width], now).transpose(1, 2)
        keys, values = self._cached(a, 0, now), self._cached(a, 1, now)
        found = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=now.mask, enable_gqa=self.q_heads > self.kv_heads
        )
        return keep(c, found.transpose(1, 2).reshape(len(b), self.q_width))

    def copies(self, op: Op) -> int:
        """Return the number of operators that submit work in addition to `CALLS`.

        They are gathers, copies of operands, and the norms of q and k.
        """
        if op is Op.ROPE and self.qk_norm:
            return 3
        return 2 * self.is_paged if op is Op.AV else 0
