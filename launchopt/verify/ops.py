"""Each op in float64, together with a bound on the error of a correct device.

Inputs are `Graded` values, read from memory (variance 0) or computed by an earlier op. The result of an op has, for
each element, the variance of the error of a device that computes in fp32 and stores in the stream's dtype. This is
running error analysis (Wilkinson; Higham, Accuracy and Stability of Numerical Algorithms, 3.3). Roundings count as
independent and of mean zero (Higham & Mary 2019), so that their squares add up:

    storing x           unit roundoff u of the dtype times x: the largest rounding, not its rms (0.4 u x)
    computing in fp32   2**-24 per rounding, relative to the rounded value; sqrt(terms) of them in a sum, in any order.
                        In half precision one more for every 8 terms: tensor cores truncate sums instead of rounding
                        them (Fasi et al. 2021), so that these errors have one sign and add up
    errors of inputs    through the op's derivative; weights spread an error evenly over the features of the output

The error must be below SAFETY standard deviations (`allowed`): 8, as in `verify.commands.tolerance`, where the largest
element's rounding is 8 roundings of a typical one. The standard deviation is taken 2.5 times too large, so that the
bound is 20 true ones: between 6, the largest of a billion normal errors, and hundreds, which a fault causes.

Arrays are NumPy's or CuPy's, [columns, features], the columns of one request together; scores are
[heads, columns, positions].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from launchopt.command import Dtype
from launchopt.types import Array

SAFETY = 8.0
TRUNCATED_TERMS = 8  # fewest terms that a tensor core adds at once
NORM_EPSILON = 1e-5
FP32_ROUNDOFF = 2.0**-24
# Half the smallest number of the storage type: the error of a result below it. fp32 and bf16 may flush it to zero.
UNDERFLOW = {Dtype.fp32: 2.0**-126, Dtype.fp16: 2.0**-25, Dtype.bf16: 2.0**-126}


@dataclass(frozen=True, slots=True)
class Graded:
    """Exact values, and the variance of a device's error in each (broadcast to them). Infinite: not compared.

    differing: for scores, the variance without the part that is common to a row, which softmax ignores; for
    probabilities, the part of the variance whose errors sum to 0 over a row.
    """

    value: Array
    variance: Array
    differing: Array = None

    def part(self, index: Array) -> Graded:
        """Return some of the elements."""
        rest = None if self.differing is None else self.differing[index]
        return Graded(self.value[index], self.variance[index], rest)


def exact(xp: ModuleType, value: Array) -> Graded:
    """Return a value that was read from memory."""
    return Graded(value, xp.broadcast_to(xp.zeros((1,) * value.ndim), value.shape))


def stored(value: Array, variance: Array, dtype: Dtype, roundings: Array = 4.0) -> Graded:
    """Return a result that was computed with `roundings` fp32 roundings and then rounded to be stored."""
    relative = dtype.unit_roundoff + roundings * FP32_ROUNDOFF
    return Graded(value, variance + (relative * value) ** 2 + UNDERFLOW[dtype] ** 2)


def _of_sum(terms: int, dtype: Dtype) -> float:
    """Return the variance of the fp32 error of a sum, in units of the sum of its terms' squares."""
    roundings = math.sqrt(terms)
    if dtype is not Dtype.fp32:
        roundings += terms / TRUNCATED_TERMS
    return (roundings * FP32_ROUNDOFF) ** 2


def allowed(xp: ModuleType, result: Graded) -> Array:
    """Return the largest error that a device may have in each element."""
    return SAFETY * xp.sqrt(result.variance)


def gemm(b: Graded, weight: Array, dtype: Dtype) -> Graded:
    """C = the first k features of B times A [m, k] transposed."""
    k = weight.shape[1]
    values = b.value[:, :k]
    squares = (b.variance[:, :k] + _of_sum(k, dtype) * values**2).sum(axis=1, keepdims=True)
    return stored(values @ weight.T, (weight**2).mean() * squares, dtype)


def bias(b: Graded, vector: Array, dtype: Dtype) -> Graded:
    """C = B + A."""
    return stored(b.value + vector, b.variance, dtype)


def relu(xp: ModuleType, b: Graded) -> Graded:
    """C = max(B, 0), which rounds nothing."""
    return Graded(xp.maximum(b.value, 0.0), b.variance)


def scale(b: Graded, vector: Array, dtype: Dtype) -> Graded:
    """C = B * A."""
    return stored(b.value * vector, b.variance * vector**2, dtype)


def add(a: Graded, b: Graded, dtype: Dtype) -> Graded:
    """C = A + B."""
    return stored(a.value + b.value, a.variance + b.variance, dtype)


def norm(xp: ModuleType, b: Graded, gain: Array, dtype: Dtype) -> Graded:
    """C = RMSNorm of B."""
    count = b.value.shape[1]
    factor = 1.0 / xp.sqrt((b.value**2).mean(axis=1, keepdims=True) + NORM_EPSILON)
    value = b.value * factor * gain
    of_mean = (b.value**2 * b.variance).sum(axis=1, keepdims=True) / count**2
    variance = (factor * gain) ** 2 * b.variance + (value * factor**2) ** 2 * of_mean
    return stored(value, variance, dtype, 4.0 + math.sqrt(count))


def silu_mul(xp: ModuleType, b: Graded, dtype: Dtype) -> Graded:
    """C = silu(gate) * up, of B = [gate | up]."""
    half = b.value.shape[1] // 2
    gate, up = b.value[:, :half], b.value[:, half:]
    sigmoid = 1.0 / (1.0 + xp.exp(-gate))
    slope = sigmoid * (1.0 + gate * (1.0 - sigmoid))
    variance = (slope * up) ** 2 * b.variance[:, :half] + (gate * sigmoid) ** 2 * b.variance[:, half:]
    return stored(
        gate * sigmoid * up, variance, dtype, 4.0 + 2.0 * xp.abs(gate)
    )  # exp amplifies the error of its argument


def rope(xp: ModuleType, b: Graded, positions: Array, heads: int, head_dim: int, theta: float, dtype: Dtype) -> Graded:
    """C = the first `heads` heads of B rotated by their position, and the other heads copied. positions: [columns]."""
    half = head_dim // 2
    angles = xp.asarray(positions, np.float64)[:, None] * theta ** (-2.0 * xp.arange(half) / head_dim)
    cosine, sine = xp.cos(angles)[:, None], xp.sin(angles)[:, None]

    def turned(values: Array, cosine: Array, sine: Array) -> Array:
        split = values[:, : heads * head_dim].reshape(len(values), heads, 2, half)
        first, second = split[:, :, 0], split[:, :, 1]
        both = xp.stack([first * cosine + second * sine[0], second * cosine + first * sine[1]], axis=2)
        return xp.concatenate([both.reshape(len(values), -1), values[:, heads * head_dim :]], axis=1)

    value = turned(b.value, cosine, (-sine, sine))
    variance = turned(b.variance, cosine**2, (sine**2, sine**2))
    of_terms = turned(b.value**2, cosine**2, (sine**2, sine**2))  # if the two terms cancel, their roundings remain
    result = stored(value, variance + (8.0 * FP32_ROUNDOFF) ** 2 * of_terms, dtype)
    copied = heads * head_dim
    result.variance[:, copied:] = b.variance[:, copied:]
    return result


def scores(xp: ModuleType, q: Graded, keys: Graded, dtype: Dtype) -> Graded:
    """Return scores [heads, columns, positions] of q [columns, heads, dim] and keys [positions, kv heads, dim]."""
    dim = q.value.shape[2]

    def products(left: Array, right: Array) -> Array:
        return _by_head(xp, left, right.transpose(1, 2, 0))

    value = products(q.value, keys.value) / math.sqrt(dim)
    variance = products(q.value**2, keys.variance + _of_sum(dim, dtype) * keys.value**2) / dim
    of_mean = xp.where(xp.isfinite(keys.value), keys.value, 0.0).mean(axis=0, keepdims=True)
    differing = variance + products(q.variance, (keys.value - of_mean) ** 2) / dim
    variance += products(q.variance, keys.value**2) / dim
    result = stored(value, variance, dtype)
    return Graded(value, result.variance, differing + (result.variance - variance))


def softmax(xp: ModuleType, given: Graded, seen: Array, dtype: Dtype) -> Graded:
    """Return the softmax over the positions that each column sees, and 0 elsewhere. seen: [columns, positions]."""
    value = xp.where(seen, given.value, -xp.inf)
    below = value - value.max(axis=2, keepdims=True)
    powers = xp.exp(below)
    value = powers / powers.sum(axis=2, keepdims=True)
    own = xp.where(seen, given.variance if given.differing is None else given.differing, 0.0)
    variance = value**2 * (own + (value**2 * own).sum(axis=2, keepdims=True))
    roundings = 8.0 + 2.0 * xp.where(seen, -below, 0.0) + math.sqrt(value.shape[2])
    return Graded(value, stored(value, variance, dtype, roundings).variance, variance)


def weighed(xp: ModuleType, given: Graded, values: Graded, seen: Array, dtype: Dtype) -> Graded:
    """Return probabilities [heads, columns, positions] times values [positions, kv heads, dim], [columns, heads * dim].

    A value that is not finite makes NaN of the columns that see it, and of no other. seen: [columns, positions].
    """
    count = given.value.shape[2]
    broken = ~xp.isfinite(values.value).all(axis=(1, 2))
    whole = ~broken[:, None, None]
    values = Graded(xp.where(whole, values.value, 0.0), xp.where(whole, values.variance, 0.0))

    def products(left: Array, right: Array) -> Array:
        by_head = _by_head(xp, left.transpose(1, 0, 2), right.transpose(1, 0, 2))
        return by_head.transpose(1, 0, 2).reshape(left.shape[1], -1)

    value = products(given.value, values.value)
    variance = products(given.variance, values.value**2)
    if given.differing is not None:  # sums to 0: a part common to all values does not count
        sums = xp.repeat(given.differing.sum(axis=2).T, values.value.shape[2], axis=1)
        variance -= 2.0 * value * products(given.differing, values.value) - value**2 * sums
        variance = xp.maximum(variance, 0.0)
    variance += products(given.value**2, values.variance + _of_sum(count, dtype) * values.value**2)
    return stored(xp.where((seen & broken).any(axis=1)[:, None], xp.nan, value), variance, dtype)


def _by_head(xp: ModuleType, left: Array, right: Array) -> Array:
    """Return left [columns, heads, x] times right [kv heads, x, y] by head, [heads, columns, y]."""
    columns, heads, inner = left.shape
    group = heads // len(right)
    stacked = left.transpose(1, 0, 2).reshape(len(right), group * columns, inner)
    return xp.matmul(stacked, right).reshape(heads, columns, -1)
