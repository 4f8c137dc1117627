"""Ops of a layer with experts on the CPU, in NumPy: top-k, the map of rows, permutation and weighted sum.

`views` has the operands of a shape, and `apply` computes a stack of commands. A table has a row per column: the numbers
of its experts, then the bits of their weights in fp32. A map has the row of each expert of each column, then the first
row of each expert, and their end. Both are int32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from launchopt.command import Op, ShapeKey
from launchopt.devices.arenas import Arenas, from_float32, to_float32
from launchopt.streams.operands import Operand, Operands
from launchopt.types import Array

WORD_BYTES = 4


def views(arenas: Arenas, shape: ShapeKey, operands: Operands) -> tuple[Array, Array, Array]:
    """Return views of every slot of A, B and C: matrices [slots, rows, features], or int32 words [slots, ...]."""
    a, b, c = operands
    view, n = arenas.view, shape.n
    if shape.op is Op.TOP_K:
        return view(a, n, shape.k), view(b, n, shape.k), _words(arenas, c, n, 2 * shape.m)
    if shape.op is Op.EXPERT_MAP:
        table = _words(arenas, b, n, 2 * shape.m)
        return table, table, _words(arenas, c, 1, n * shape.m + shape.k + 1)[:, 0]
    if shape.op is Op.PERMUTE:
        top_k = shape.m // shape.k
        rows = _words(arenas, a, 1, n * top_k)[:, 0].reshape(-1, n, top_k)
        return rows, view(b, n, shape.k), view(c, n * top_k, shape.k)
    top_k, row_words = shape.k // shape.m, a.row_elements * a.arena.dtype.itemsize // WORD_BYTES
    table = _words(arenas, a, 1, n * row_words + n * top_k)[:, 0]
    return table, view(b, n * top_k, shape.m), view(c, n, shape.m)


def _words(arenas: Arenas, operand: Operand, rows: int, words: int) -> Array:
    """Return every slot as int32 [slots, rows, words]."""
    flat = arenas.arrays[operand.arena].reshape(-1).view(np.int32)
    pitch = operand.row_elements * operand.arena.dtype.itemsize
    last = ((rows - 1) * pitch) + words * WORD_BYTES  # bytes of a slot, without the padding of its last row
    slots = 1 + (flat.nbytes - last) // operand.slot_bytes
    steps = (operand.slot_bytes, pitch, WORD_BYTES)
    return arenas.xp.lib.stride_tricks.as_strided(flat, (slots, rows, words), steps)


def apply(shape: ShapeKey, a: Array, b: Array, c: Array) -> None:
    """Compute C from A and B, for each command of a stack of `views`."""
    for one in zip(a, b, c, strict=True):
        _OPS[shape.op](shape, *one)


def _top_k(shape: ShapeKey, a: Array, b: Array, c: Array) -> None:
    logits, most = to_float32(b, shape.dtype), shape.m
    chosen = np.argpartition(-(logits + to_float32(a, shape.dtype)), most - 1, axis=1)[:, :most]
    chosen = np.sort(chosen, axis=1)
    powers = np.take_along_axis(logits, chosen, axis=1)
    powers = np.exp(powers - powers.max(axis=1, keepdims=True))
    c[:, :most] = chosen
    c[:, most:].view(np.float32)[:] = powers / powers.sum(axis=1, keepdims=True)


def _expert_map(shape: ShapeKey, _: Array, b: Array, c: Array) -> None:
    # Numbers beyond the experts come only from memory that no command has written, after a fault in the order.
    experts = np.clip(b[:, : shape.m], 0, shape.k - 1).reshape(-1)
    rows = len(experts)
    c[np.argsort(experts, kind="stable")] = np.arange(rows)
    c[rows] = 0
    np.cumsum(np.bincount(experts, minlength=shape.k), out=c[rows + 1 :])


def _permute(shape: ShapeKey, a: Array, b: Array, c: Array) -> None:
    is_row = (a >= 0) & (a < len(c))  # false only for memory that no command has written
    c[a[is_row]] = b[np.nonzero(is_row)[0]]


def _combine(shape: ShapeKey, a: Array, b: Array, c: Array) -> None:
    rows_total, columns = len(b), shape.n
    top_k = rows_total // columns
    row_words = (len(a) - rows_total) // columns
    weights = a[: columns * row_words].reshape(columns, row_words)[:, top_k : 2 * top_k].view(np.float32)
    rows = np.clip(a[columns * row_words :].reshape(columns, top_k), 0, rows_total - 1)
    sums = np.zeros((columns, shape.m), np.float32)
    for i in range(top_k):
        sums += weights[:, i : i + 1] * to_float32(b[rows[:, i]], shape.dtype)
    c[:] = from_float32(sums, shape.dtype)


_OPS: dict[Op, Callable[[ShapeKey, Array, Array, Array], None]] = {
    Op.TOP_K: _top_k,
    Op.EXPERT_MAP: _expert_map,
    Op.PERMUTE: _permute,
    Op.COMBINE: _combine,
}
