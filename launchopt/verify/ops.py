"""Compute each op in float64, together with a bound on the error of a correct device.

Inputs are `Graded` values: read from memory (variance 0), or computed by an earlier op. The result of an op holds, for
each element, the variance of the error of a device that computes in fp32 and stores in the workload's dtype. The method
is running error analysis (Wilkinson; Higham, Accuracy and Stability of Numerical Algorithms, 3.3). Roundings count as
independent and of mean zero (Higham & Mary 2019), so their variances add up. Standard deviations of the parts:

    storing x           u * x for the unit roundoff u of the dtype. This is the largest rounding; its rms is 0.4 u * x.
                        An op that PyTorch computes in two steps may store twice.
    computing in fp32   2**-24 per rounding, relative to the rounded value. A sum counts sqrt(terms) roundings, in any
                        order. Half precision adds one rounding for every 8 terms: tensor cores truncate sums instead of
                        rounding them (Fasi et al. 2021), so that these errors have one sign and add up linearly. The
                        scale of a quantised weight adds one rounding, of the weight or of a sum.
    errors of inputs    pass through the op's derivative. Weights spread an error evenly over the output's features.

The bound on the error of a result (`allowed`) is the largest error of storing it, plus SAFETY = 8 standard deviations
of everything else. So if an op's inputs are exact, its result in half precision may be one rounding off, and hardly
more. The standard deviation of errors that come from stored inputs is 2.5 times too large, so that their bound is 20
true standard deviations. The largest of a billion normal errors is at 6 of them, and a fault causes hundreds.

Arrays are of NumPy or CuPy, [columns, features], where the columns of a request are adjacent. Scores are
[heads, columns, positions].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from launchopt.command import Dtype
from launchopt.types import Array

SAFETY = 8.0
TRUNCATED_TERMS = 8  # fewest terms that a tensor core adds at once
FP32_ROUNDOFF = 2.0**-24
# Largest error of a result near zero: half the smallest number of fp16; the smallest normal number of fp32 and bf16,
# whose subnormal numbers a device may flush to zero.
UNDERFLOW = {Dtype.fp32: 2.0**-126, Dtype.fp16: 2.0**-25, Dtype.bf16: 2.0**-126}


@dataclass(frozen=True, slots=True)
class Graded:
    """Exact values, and the variance of a device's error in each value.

    variance: broadcasts to the values; infinite: the value is not compared. differing: a part of the variance. For
    scores, it excludes the error that all elements of a row share, since softmax ignores that error. For probabilities,
    it includes only errors that sum to 0 over a row. storing: largest error of storing the value, whose square is a
    part of the variance; None: 0.
    """

    value: Array
    variance: Array
    differing: Array = None
    storing: Array = None

    def part(self, index: Array) -> Graded:
        """Return the elements at an index of all arrays."""
        arrays = (self.value, self.variance, self.differing, self.storing)
        return Graded(*(None if each is None else each[index] for each in arrays))


def exact(xp: ModuleType, value: Array) -> Graded:
    """Return a value that was read from memory, with variance 0."""
    return Graded(value, xp.broadcast_to(xp.zeros((1,) * value.ndim), value.shape))


def joined(xp: ModuleType, parts: Sequence[Graded]) -> Graded:
    """Return the features of several outputs of GEMMs side by side."""
    if len(parts) == 1:
        return parts[0]
    value, variance, storing = (
        xp.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("value", "variance", "storing")
    )
    return Graded(value, variance, storing=storing)


def stored(value: Array, variance: Array, dtype: Dtype, roundings: Array = 4.0, factor: Array = None) -> Graded:
    """Return a result that a device computes with `roundings` fp32 roundings and then rounds to `dtype`.

    variance: the part of the error's variance that comes from the inputs. factor: a device may also round to `dtype`
    what it then multiplies by this.
    """
    storing = dtype.unit_roundoff * abs(value) + UNDERFLOW[dtype]
    if factor is not None:
        storing += dtype.unit_roundoff * abs(value) + UNDERFLOW[dtype] * abs(factor)
    return Graded(value, variance + (roundings * FP32_ROUNDOFF * value) ** 2 + storing**2, storing=storing)


def of_sum(terms: int, dtype: Dtype, scalings: int = 0) -> float:
    """Return the variance of the fp32 error of a sum of `terms`, divided by the sum of the squared terms.

    scalings: further roundings of each term.
    """
    roundings = math.sqrt(terms) + scalings
    if dtype is not Dtype.fp32:
        roundings += terms / TRUNCATED_TERMS
    return (roundings * FP32_ROUNDOFF) ** 2


def allowed(xp: ModuleType, result: Graded) -> Array:
    """Return the largest error that a device may have in each element."""
    if result.storing is None:
        return SAFETY * xp.sqrt(result.variance)
    return result.storing + SAFETY * xp.sqrt(xp.maximum(result.variance - result.storing**2, 0.0))


def gemm(b: Graded, weight: Array, dtype: Dtype, scalings: int = 0) -> Graded:
    """C = B[:, :k] @ A.T, for the weight A [m, k]. scalings: 1 if the weight is quantised."""
    k = weight.shape[1]
    values = b.value[:, :k]
    squares = (b.variance[:, :k] + of_sum(k, dtype, scalings) * values**2).sum(axis=1, keepdims=True)
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


def norm(xp: ModuleType, b: Graded, gain: Array, dtype: Dtype, epsilon: float) -> Graded:
    """C = RMSNorm of B."""
    count = b.value.shape[1]
    factor = 1.0 / xp.sqrt((b.value**2).mean(axis=1, keepdims=True) + epsilon)
    value = b.value * factor * gain
    of_mean = (b.value**2 * b.variance).sum(axis=1, keepdims=True) / count**2
    variance = (factor * gain) ** 2 * b.variance + (value * factor**2) ** 2 * of_mean
    return stored(value, variance, dtype, 4.0 + math.sqrt(count), gain)


def head_norm(xp: ModuleType, b: Graded, gains: Array, heads: tuple[int, int], dtype: Dtype, epsilon: float) -> Graded:
    """C = rows of q, k and v whose heads of q and k are replaced by their RMSNorm.

    gains: [1, 2 * head_dim], those of a head of q, then those of a head of k. heads: number of heads of q, and of k.
    """
    dim, columns, parts, at = gains.shape[1] // 2, len(b.value), list[Graded](), 0
    variances = xp.broadcast_to(b.variance, b.value.shape)
    for i, count in enumerate(heads):
        own = slice(at, at + count * dim)
        one = Graded(b.value[:, own].reshape(-1, dim), variances[:, own].reshape(-1, dim))
        parts.append(norm(xp, one, gains[:, i * dim : (i + 1) * dim], dtype, epsilon))
        at += count * dim
    parts.append(Graded(b.value[:, at:], variances[:, at:], storing=xp.zeros(b.value[:, at:].shape)))

    def joined(name: str) -> Array:
        return xp.concatenate([getattr(part, name).reshape(columns, -1) for part in parts], axis=1)

    return Graded(joined("value"), joined("variance"), storing=joined("storing"))


def silu_mul(xp: ModuleType, b: Graded, dtype: Dtype) -> Graded:
    """C = silu(gate) * up, of B = [gate | up]."""
    half = b.value.shape[1] // 2
    gate, up = b.value[:, :half], b.value[:, half:]
    sigmoid = 1.0 / (1.0 + xp.exp(-gate))
    slope = sigmoid * (1.0 + gate * (1.0 - sigmoid))
    bend = sigmoid * (1.0 - sigmoid) * (2.0 + gate * (1.0 - 2.0 * sigmoid))  # the second derivative of silu
    of_gate, of_up = b.variance[:, :half], b.variance[:, half:]
    variance = (slope * up) ** 2 * of_gate + (gate * sigmoid) ** 2 * of_up
    # The first derivatives vanish where gate and up are near 0, and at the minimum of silu; the second ones remain.
    variance += slope**2 * of_gate * of_up + 0.75 * (bend * up * of_gate) ** 2
    roundings = 4.0 + 2.0 * xp.abs(gate)  # exp amplifies the rounding of its argument
    return stored(gate * sigmoid * up, variance, dtype, roundings, up)


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
    # The two terms of a rotation may cancel; their roundings remain, and those of storing them.
    of_terms = turned(b.value**2, cosine**2, (sine**2, sine**2))
    # An angle in fp32 has a relative error of some roundings, and its sine and cosine change by the absolute error.
    of_angle = (FP32_ROUNDOFF * angles)[:, None]
    swapped = turned(b.value**2, (sine * of_angle) ** 2, ((cosine * of_angle) ** 2, (cosine * of_angle) ** 2))
    own = variance + (8.0 * FP32_ROUNDOFF) ** 2 * of_terms + 4.0 * swapped
    result = stored(value, own, dtype)
    copied = heads * head_dim
    result.variance[:, copied:] = b.variance[:, copied:]
    result.storing[:, copied:] = 0.0
    return result


def scores(xp: ModuleType, q: Graded, keys: Graded, dtype: Dtype) -> Graded:
    """Return scores [heads, columns, positions]: q @ keys.T / sqrt(dim) for each head.

    q: [columns, heads, dim]. keys: [positions, kv heads, dim].
    """
    dim = q.value.shape[2]

    def products(left: Array, right: Array) -> Array:
        return _by_head(xp, left, right.transpose(1, 2, 0))

    value = products(q.value, keys.value) / math.sqrt(dim)
    variance = products(q.value**2, keys.variance + of_sum(dim, dtype) * keys.value**2) / dim
    of_mean = xp.where(xp.isfinite(keys.value), keys.value, 0.0).mean(axis=0, keepdims=True)
    differing = variance + products(q.variance, (keys.value - of_mean) ** 2) / dim
    variance += products(q.variance, keys.value**2) / dim
    result = stored(value, variance, dtype)
    return Graded(value, result.variance, differing + (result.variance - variance), result.storing)


def softmax(xp: ModuleType, given: Graded, seen: Array, dtype: Dtype) -> Graded:
    """Return the softmax over the positions that each column attends to, and 0 elsewhere.

    given: scores [heads, columns, positions]. seen: bool [columns, positions].
    """
    value = xp.where(seen, given.value, -xp.inf)
    below = value - value.max(axis=2, keepdims=True)
    powers = xp.exp(below)
    value = powers / powers.sum(axis=2, keepdims=True)
    own = xp.where(seen, given.variance if given.differing is None else given.differing, 0.0)
    variance = value**2 * (own + (value**2 * own).sum(axis=2, keepdims=True))
    roundings = 8.0 + 2.0 * xp.where(seen, -below, 0.0) + math.sqrt(value.shape[2])
    result = stored(value, variance, dtype, roundings)
    return Graded(value, result.variance, variance, result.storing)


def weighed(xp: ModuleType, given: Graded, values: Graded, seen: Array, dtype: Dtype, requests: int = 1) -> Graded:
    """Return probabilities @ values for each head, [columns, heads * dim].

    given: probabilities [heads, columns, positions]. values: [positions, kv heads, dim]. seen: bool [columns,
    positions], the positions that a column attends to. requests: number of requests whose heads are side by side.
    The result of a request is NaN in exactly those columns that attend to a position whose values are not all finite.
    """
    count, kv_heads = given.value.shape[2], values.value.shape[1]
    broken = ~xp.isfinite(values.value).reshape(count, requests, -1).all(axis=2)
    whole = ~xp.repeat(broken, kv_heads // requests, axis=1)[:, :, None]
    values = Graded(xp.where(whole, values.value, 0.0), xp.where(whole, values.variance, 0.0))

    def products(left: Array, right: Array) -> Array:
        by_head = _by_head(xp, left.transpose(1, 0, 2), right.transpose(1, 0, 2))
        return by_head.transpose(1, 0, 2).reshape(left.shape[1], -1)

    value = products(given.value, values.value)
    variance = products(given.variance, values.value**2)
    if given.differing is not None:  # these errors sum to 0 over a row, so only differences between the values count
        sums = xp.repeat(given.differing.sum(axis=2).T, values.value.shape[2], axis=1)
        variance -= 2.0 * value * products(given.differing, values.value) - value**2 * sums
        variance = xp.maximum(variance, 0.0)
    variance += products(given.value**2, values.variance + of_sum(count, dtype) * values.value**2)
    lost = (seen[:, :, None] & broken).any(axis=1)  # [columns, requests]
    return stored(xp.where(xp.repeat(lost, value.shape[1] // requests, axis=1), xp.nan, value), variance, dtype)


def _by_head(xp: ModuleType, left: Array, right: Array) -> Array:
    """Return left @ right for each head, [heads, columns, y]. left: [columns, heads, x]. right: [kv heads, x, y]."""
    columns, heads, inner = left.shape
    group = heads // len(right)
    stacked = left.transpose(1, 0, 2).reshape(len(right), group * columns, inner)
    return xp.matmul(stacked, right).reshape(heads, columns, -1)
