"""Every op but GEMM on the CPU, in NumPy. Results are rounded to the storage type where launchopt/kernels/ops.cu does.

`apply` writes C for a stack of commands. The op SLOT_MAP also advances the positions of the sequence state. Attention
neither reads nor writes positions that a column does not attend to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, Op
from launchopt.devices.arenas import SeqState, from_float32, to_float32
from launchopt.streams.chains.attention import Attention
from launchopt.streams.model import NORM_EPSILON
from launchopt.types import Array

Wide = NDArray[np.float32]
# The work of these ops depends on the position of the request's sequence.
STATEFUL = frozenset({Op.SLOT_MAP, Op.ROPE, Op.KV_WRITE, Op.QK, Op.SOFTMAX, Op.AV})


class Sequences(NamedTuple):
    """The sequences that the commands of a stateful op belong to."""

    requests: Sequence[int]  # the request of each command; one that `state` does not have only pads the batch
    attention: Attention
    state: SeqState


def apply(
    op: Op,
    a: Array,
    b: Array,
    c: Array,
    dtype: Dtype,
    sequences: Sequences | None = None,
    norm_epsilon: float = NORM_EPSILON,
) -> None:
    """Compute C from A and B, [commands, rows, features] each, in storage type.

    If A is a vector, it is [commands, 1, m]. A cache pool is [commands, pages, 2, page_tokens, kv_heads, head_dim].
    Cache slots are int32 [commands, n]. An operand that the op lacks is not read. The ops of STATEFUL need `sequences`.
    norm_epsilon: of norms, also of those of heads.
    """
    if op not in STATEFUL:
        wide_a = to_float32(a, dtype) if op in WITH_A else None
        with np.errstate(over="ignore"):  # exp(-x) of a very negative gate is infinite: the gate is 0
            wide = to_float32(b, dtype)
            found = norm(wide, wide_a, norm_epsilon) if op is Op.NORM else _PLAIN[op](wide, wide_a)
            c[:] = from_float32(found, dtype)
        return
    assert sequences is not None
    for i, request in enumerate(sequences.requests):
        if request < sequences.state.requests:
            place = Place(sequences.attention, sequences.state, request, norm_epsilon)
            _STATEFUL[op](place, a[i], b[i], c[i], dtype)


def norm(x: Wide, gain: Array, epsilon: float) -> Wide:
    """Return the RMS norm of rows."""
    scale = np.float32(1) / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon))
    normed: Wide = x * scale * gain
    return normed


def silu_mul(x: Wide, _: Wide | None = None) -> Wide:
    """Return SiLU(gate) * up of rows [gate | up]."""
    gate, up = np.split(x, 2, axis=-1)
    product: Wide = gate / (1 + np.exp(-gate)) * up
    return product


_PLAIN: dict[Op, Callable[[Wide, Array], Wide]] = {
    Op.BIAS: lambda x, a: x + a,
    Op.RELU: lambda x, _: np.maximum(x, 0),
    Op.SCALE: lambda x, a: x * a,
    Op.ADD: lambda x, a: x + a,
    Op.SILU_MUL: silu_mul,
}
WITH_A = frozenset({Op.BIAS, Op.SCALE, Op.NORM, Op.ADD})


class Place:
    """The position of a request's sequence, and its pages in the cache. norm_epsilon: of the norms of its heads."""

    def __init__(self, attention: Attention, state: SeqState, request: int, norm_epsilon: float) -> None:
        self.attention, self.state, self.request, self.norm_epsilon = attention, state, request, norm_epsilon
        self.start = int(state.positions[0, request])
        self.pages = state.table[request]

    def slots(self, columns: int) -> NDArray[np.int32]:
        """Return the cache slot of each column's token; -1 for a token beyond the longest context."""
        attention = self.attention
        tokens = self.start + np.arange(columns)
        pages, offsets = np.divmod(np.minimum(tokens, attention.ctx - 1), attention.page_tokens)
        slots = self.pages[pages] * attention.page_tokens + offsets
        return np.where(tokens < attention.ctx, slots, -1).astype(np.int32)

    def seen(self, columns: int) -> NDArray[np.bool_]:
        """Return whether each column attends to each token, [columns, tokens]."""
        last = self.start + np.arange(columns)
        stop = min(int(last[-1]) + 1, self.attention.ctx)
        seen: NDArray[np.bool_] = np.arange(stop) <= last[:, None]
        return seen

    def cached(self, pool: Array, is_value: int, tokens: int, dtype: Dtype) -> Wide:
        """Return the keys (is_value 0) or values (1) of the first `tokens` tokens, [kv_heads, tokens, head_dim]."""
        attention = self.attention
        pages = pool[self.pages[: -(-tokens // attention.page_tokens)], is_value]
        rows = pages.reshape(-1, attention.kv_heads, attention.head_dim)[:tokens]
        wide: Wide = to_float32(rows, dtype)
        return wide.transpose(1, 0, 2)

    def by_kv_head(self, rows: Array, features: int) -> Array:
        """Reshape [columns, q_heads * features] to [kv_heads, columns * (q_heads / kv_heads), features]."""
        kv_heads = self.attention.kv_heads
        return rows.reshape(len(rows), kv_heads, -1, features).transpose(1, 0, 2, 3).reshape(kv_heads, -1, features)

    def by_column(self, rows: Array, columns: int) -> Array:
        """Reshape the result of `by_kv_head` to [columns, q_heads, features]."""
        kv_heads, _, features = rows.shape
        return rows.reshape(kv_heads, columns, -1, features).transpose(1, 0, 2, 3).reshape(columns, -1, features)

    def per_head(self, rows: Array) -> Array:
        """Return a view of [columns, q_heads * ctx] as [columns, q_heads, ctx]."""
        return rows.reshape(len(rows), self.attention.q_heads, self.attention.ctx)


def _slot_map(place: Place, _: Array, __: Array, c: Array, ___: Dtype) -> None:
    positions = place.state.positions
    positions[0, place.request] = place.start = int(positions[1, place.request])
    positions[1, place.request] += len(c)
    c[:] = place.slots(len(c))


def rotated(place: Place, a: Array, b: Array, dtype: Dtype) -> Array:
    """Return rows B of q, k and v with q and k rotated by their positions, in storage type.

    A: the gains of q and of k, [1, 2 * head_dim], with which their heads are normed first, if the model has such norms.
    """
    attention, columns = place.attention, len(b)
    half, heads = attention.head_dim // 2, attention.q_heads + attention.kv_heads
    angles = np.outer(place.start + np.arange(columns), attention.theta ** (-np.arange(half) / half))
    cosines, sines = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))
    given = to_float32(b[:, : heads * attention.head_dim], dtype).reshape(columns, heads, attention.head_dim)
    if attention.qk_norm:
        gains = np.repeat(a.reshape(2, -1), (attention.q_heads, attention.kv_heads), axis=0)
        given = to_float32(from_float32(norm(given, to_float32(gains, dtype), place.norm_epsilon), dtype), dtype)
    turned = given.reshape(columns, heads, 2, half)
    first, second = turned[:, :, 0], turned[:, :, 1]
    turned = np.stack([first * cosines - second * sines, second * cosines + first * sines], axis=2)
    stored = from_float32(turned.reshape(columns, -1), dtype)
    return np.concatenate([stored, b[:, heads * attention.head_dim :]], axis=1)


def _rope(place: Place, a: Array, b: Array, c: Array, dtype: Dtype) -> None:
    c[:] = rotated(place, a, b, dtype)


def keep(place: Place, rows: Array, pool: Array) -> None:
    """Write the keys and values of rows of q, k and v into the cache, unless their token is beyond the context."""
    _kv_write(place, place.slots(len(rows)), rows, pool, Dtype.fp32)


def _kv_write(place: Place, a: Array, b: Array, c: Array, _: Dtype) -> None:
    attention, kept = place.attention, a >= 0
    pages, offsets = np.divmod(a[kept], attention.page_tokens)
    first = attention.q_heads * attention.head_dim
    rows = b[kept, first:].reshape(-1, 2, attention.kv_heads, attention.head_dim)
    for is_value in (0, 1):
        c[pages, is_value, offsets] = rows[:, is_value]


def attend(place: Place, rows: Wide, pool: Array, dtype: Dtype) -> Wide:
    """Return the attention of rows, whose first features are rotated queries, over the cache. Nothing is rounded."""
    attention, columns = place.attention, len(rows)
    seen = place.seen(columns)
    tokens = seen.shape[1]
    keys, values = (place.cached(pool, is_value, tokens, dtype) for is_value in (0, 1))
    queries = place.by_kv_head(rows[:, : attention.q_heads * attention.head_dim], attention.head_dim)
    scores = place.by_column(queries @ keys.transpose(0, 2, 1), columns)
    scores = np.where(
        seen[:, None], scores * (np.float32(1) / np.sqrt(np.float32(attention.head_dim))), np.float32(-np.inf)
    )
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    sums = place.by_kv_head(powers.reshape(columns, -1), tokens) @ values
    attended: Wide = place.by_column(sums, columns).reshape(columns, -1)
    return attended


def _qk(place: Place, a: Array, b: Array, c: Array, dtype: Dtype) -> None:
    attention, columns = place.attention, len(b)
    seen = place.seen(columns)
    queries = to_float32(b[:, : attention.q_heads * attention.head_dim], dtype)
    keys = place.cached(a, 0, seen.shape[1], dtype)
    scores = place.by_kv_head(queries, attention.head_dim) @ keys.transpose(0, 2, 1)
    scores = scores * (np.float32(1) / np.sqrt(np.float32(attention.head_dim)))
    scores = from_float32(place.by_column(scores, columns), dtype)
    np.copyto(place.per_head(c)[..., : seen.shape[1]], scores, where=seen[:, None])


def _softmax(place: Place, _: Array, b: Array, c: Array, dtype: Dtype) -> None:
    seen = place.seen(len(b))
    scores = to_float32(place.per_head(b)[..., : seen.shape[1]], dtype)
    scores = np.where(seen[:, None], scores, np.float32(-np.inf))
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    np.copyto(place.per_head(c)[..., : seen.shape[1]], from_float32(powers, dtype), where=seen[:, None])


def _av(place: Place, a: Array, b: Array, c: Array, dtype: Dtype) -> None:
    columns = len(b)
    seen = place.seen(columns)
    tokens = seen.shape[1]
    weights = to_float32(place.per_head(b)[..., :tokens], dtype)
    weights = np.where(seen[:, None], weights, np.float32(0)).reshape(columns, -1)
    sums = place.by_kv_head(weights, tokens) @ place.cached(a, 1, tokens, dtype)
    c[:] = from_float32(place.by_column(sums, columns).reshape(columns, -1), dtype)


_STATEFUL: dict[Op, Callable[[Place, Array, Array, Array, Dtype], None]] = {
    Op.SLOT_MAP: _slot_map,
    Op.ROPE: _rope,
    Op.KV_WRITE: _kv_write,
    Op.QK: _qk,
    Op.SOFTMAX: _softmax,
    Op.AV: _av,
}
