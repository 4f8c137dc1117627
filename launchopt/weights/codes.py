"""Convert between float32 values and codes of fp8, int8 and int4, with NumPy or CuPy, to the same bits on both.

Values are rounded to the nearest code, ties to even. Values beyond the largest code become the largest code.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from launchopt.types import Array
from launchopt.weights.packing import LARGEST_CODE, WeightFormat

E4M3_BIAS, E4M3_MANTISSA, E4M3_NAN = 7, 3, 0x7F
DROPPED_BITS = 23 - E4M3_MANTISSA  # bits of a float32's mantissa that e4m3 lacks
LEAST_NORMAL = 2.0 ** (1 - E4M3_BIAS)
SUBNORMAL_STEP = LEAST_NORMAL / (1 << E4M3_MANTISSA)
INT4_OFFSET = 8  # added to a code of int4, so that it is not negative


def encoded(xp: ModuleType, values: Array, weight_format: WeightFormat) -> Array:
    """Return the codes of float32 values in units of their scale, uint8 [..., cols], or [..., cols / 2] of int4."""
    if weight_format is WeightFormat.fp8:
        return encode_e4m3(xp, values)
    largest = LARGEST_CODE[weight_format]
    whole = xp.clip(xp.rint(values), -largest, largest).astype(np.int8)
    if weight_format is WeightFormat.int8:
        return whole.view(np.uint8)
    raised = (whole + np.int8(INT4_OFFSET)).view(np.uint8)
    return raised[..., ::2] | raised[..., 1::2] << np.uint8(4)


def decoded(xp: ModuleType, codes: Array, weight_format: WeightFormat) -> Array:
    """Return the values of codes in units of their scale, float32 [..., cols]. codes: as `encoded` gives them."""
    if weight_format is WeightFormat.int8:
        return codes.view(np.int8).astype(np.float32)
    if weight_format is WeightFormat.fp8:
        return xp.asarray(_E4M3)[codes]
    pairs = xp.asarray(_INT4_PAIRS).view(np.int64).reshape(-1)[codes]  # a pair of float32 is one number of 8 bytes
    return pairs.view(np.float32)


def encode_e4m3(xp: ModuleType, values: Array) -> Array:
    """Return float32 values as e4m3, uint8. NaN stays NaN; larger values than 448, and infinities, become 448."""
    bits = xp.ascontiguousarray(values).view(np.uint32)
    size = bits & np.uint32(0x7FFF_FFFF)
    half, low = np.uint32((1 << (DROPPED_BITS - 1)) - 1), np.uint32(1)
    rounded = (size + half + (size >> np.uint32(DROPPED_BITS) & low)) >> np.uint32(DROPPED_BITS)
    normal = rounded - np.uint32((127 - E4M3_BIAS) << E4M3_MANTISSA)
    least = np.float32(LEAST_NORMAL).view(np.uint32)
    subnormal = xp.rint(xp.minimum(size, least).view(np.float32) * np.float32(1 / SUBNORMAL_STEP)).astype(np.uint32)
    code = xp.where(size < least, subnormal, normal)
    code = xp.minimum(code, np.uint32(E4M3_NAN - 1))
    code = xp.where(size > np.uint32(0x7F80_0000), np.uint32(E4M3_NAN), code)
    return (code | bits >> np.uint32(24) & np.uint32(0x80)).astype(np.uint8)


def _e4m3_values() -> NDArray[np.float32]:
    """Return the values of all codes of e4m3, float32 [256]."""
    codes = np.arange(256)
    exponent, mantissa = codes >> E4M3_MANTISSA & 0xF, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - E4M3_BIAS)
    size = np.where(exponent == 0, mantissa * SUBNORMAL_STEP, normal)
    size[codes & 0x7F == E4M3_NAN] = np.nan
    return np.where(codes & 0x80, -size, size).astype(np.float32)


_E4M3 = _e4m3_values()
_INT4_PAIRS = np.stack([np.arange(256) % 16, np.arange(256) // 16], axis=1).astype(np.float32) - INT4_OFFSET
