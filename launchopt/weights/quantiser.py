"""Quantise weights, and give back the values that quantised weights stand for.

    packed = quantised(np, weights, packing)     # float32 [n, rows, cols] -> uint8 [n, slot bytes]
    dequantised(np, packed, rows, cols, packing) # float32 [n, rows, cols]

The scale of a group of values is its largest magnitude over the largest code. A value differs from the quantised one by
half a step of the format at most. A group of zeros has the scale 1.
"""

from __future__ import annotations

from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from launchopt.types import Array
from launchopt.weights.codes import decoded, encoded
from launchopt.weights.packing import BLOCK, LARGEST_CODE, Packing, Scales

PART_ELEMENTS = 1 << 20  # values that are rounded at a time; their temporary arrays stay in a cache
LEAST_SCALE = {2: 2.0**-24, 4: 2.0**-126}  # smallest scale by its bytes: a subnormal fp16, the least normal fp32


def quantised(xp: ModuleType, values: Array, packing: Packing, out: Array = None) -> Array:
    """Return weights, float32 [n, rows, cols], as bytes of their slots, uint8 [n, slot bytes].

    out: takes the bytes, [n, at least the slot bytes]. What it has behind a weight's codes and scales becomes 0.
    """
    count, rows, cols = values.shape
    if out is None:
        out = xp.empty((count, packing.end(rows, cols)), np.uint8)
    size = packing.codes_bytes(rows, cols)
    start, stop = packing.scales_at(rows, cols), packing.end(rows, cols)
    out[:, size:start], out[:, stop:] = 0, 0
    scales = _scales_of(xp, values, packing)
    out[:, start:stop] = scales.reshape(count, -1).astype(f"f{packing.scale_bytes}").view(np.uint8)
    codes = xp.empty((count, rows, size // rows), np.uint8)
    together, most = max(1, PART_ELEMENTS // (rows * cols)), max(1, PART_ELEMENTS // cols)
    for at, first in product(range(0, count, together), range(0, rows, most)):
        own, part = slice(at, at + together), slice(first, min(first + most, rows))
        codes[own, part] = encoded(xp, values[own, part] / _spread(xp, scales[own], packing, part), packing.format)
    out[:, :size] = codes.reshape(count, -1)
    return out


def dequantised(
    xp: ModuleType, packed: Array, rows: int, cols: int, packing: Packing, dtype: type[np.floating[Any]] = np.float32
) -> Array:
    """Return the values of quantised weights, [n, rows, cols] of `dtype`. packed: bytes of their slots, [n, ...].

    float64 is exact. float32 rounds each product of a code and a scale. ValueError for slots that are too short.
    """
    count, size = len(packed), packing.codes_bytes(rows, cols)
    if packed.shape[1] < packing.end(rows, cols):
        shape = "x".join(map(str, packing.scales_shape(rows, cols)))
        raise ValueError(f"{rows}x{cols} weights of {packing} have {shape} scales: {packed.shape[1]} bytes are too few")
    codes = decoded(xp, xp.ascontiguousarray(packed[:, :size]).reshape(count, rows, -1), packing.format)
    values = codes.astype(dtype, copy=False)
    values *= _spread(xp, scales_in(packed, rows, cols, packing).astype(dtype), packing, slice(0, rows))
    return values


def rounded(xp: ModuleType, values: Array, packing: Packing, dtype: type[np.floating[Any]] = np.float32) -> Array:
    """Return values, float32 [n, rows, cols], as they are after quantisation, [n, rows, cols] of `dtype`."""
    _, rows, cols = values.shape
    return dequantised(xp, quantised(xp, values, packing), rows, cols, packing, dtype)


def scales_in(packed: Array, rows: int, cols: int, packing: Packing) -> Array:
    """Return a copy of the scales in slots, [n, rows, columns of scales], fp32 or fp16."""
    own = packed[:, packing.scales_at(rows, cols) : packing.end(rows, cols)].copy()
    return own.view(f"f{packing.scale_bytes}").reshape(len(packed), *packing.scales_shape(rows, cols))


def _scales_of(xp: ModuleType, values: Array, packing: Packing) -> Array:
    """Return the scales of weights as they are stored, float32 [n, rows, columns of scales]."""
    count, rows, cols = values.shape
    if packing.scales is Scales.tensor:
        largest = _largest(xp, values.reshape(count, 1, 1, -1))
    elif packing.scales is Scales.channel:
        largest = _largest(xp, values)[..., None]
    else:
        largest = _largest(xp, values.reshape(count, rows, cols // BLOCK, BLOCK))
        if packing.block_rows > 1:
            starts = np.arange(0, rows, packing.block_rows)
            parts = [largest[:, start : start + packing.block_rows].max(axis=1) for start in starts.tolist()]
            largest = xp.stack(parts, axis=1)
    stored = (largest / np.float32(LARGEST_CODE[packing.format])).astype(f"f{packing.scale_bytes}").astype(np.float32)
    least = np.float32(LEAST_SCALE[packing.scale_bytes])
    return xp.where(largest == 0, np.float32(1), xp.maximum(stored, least))


def _largest(xp: ModuleType, values: Array) -> Array:
    """Return the largest magnitude along the last axis."""
    return xp.maximum(values.max(axis=-1), -values.min(axis=-1))


def _spread(xp: ModuleType, scales: Array, packing: Packing, part: slice) -> Array:
    """Return scales in a shape that broadcasts to some rows of weights, [n, 1 or rows, 1 or cols]."""
    if packing.scales is Scales.tensor:
        return scales
    if packing.scales is Scales.channel:
        return scales[:, part]
    wide = xp.repeat(scales, BLOCK, axis=2)
    if packing.block_rows == 1:
        return wide[:, part]
    of_rows = xp.arange(part.start, part.stop) // packing.block_rows
    return wide[:, of_rows]
