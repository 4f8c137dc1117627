"""Sums of outputs of earlier ops in float64, with bounds as in `verify.ops`: over GPUs that split a model, or experts.

Our all-reduce adds the parts of n GPUs in fp32, and rounds their sum to the dtype once. NCCL rounds after each of its
n - 1 additions (`rounds_sums`). The last of these roundings is that of the result; the other n - 2 are roundings of
partial sums. Which parts a partial sum has depends on the algorithm that NCCL chooses. So each rounding counts with the
largest absolute value that the sum of any of the parts can have: that of all positive parts, or of all negative ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from launchopt.command import Dtype
from launchopt.types import Array
from launchopt.verify.ops import FP32_ROUNDOFF, UNDERFLOW, Graded, gemm, of_sum, stored


def gemm_in_parts(xp: ModuleType, b: Graded, weight: Array, dtype: Dtype, parts: int, rounds_sums: bool) -> Graded:
    """C = B[:, :k] @ A.T, where each of `parts` GPUs stores the sum over a range of the k features."""
    k = weight.shape[1]
    cuts = [slice(i * k // parts, (i + 1) * k // parts) for i in range(parts)]
    variance = xp.broadcast_to(b.variance, b.value.shape)
    products = [gemm(Graded(b.value[:, cut], variance[:, cut]), weight[:, cut], dtype) for cut in cuts]
    return reduced(xp, products, dtype, rounds_sums)


def reduced(xp: ModuleType, parts: Sequence[Graded], dtype: Dtype, rounds_sums: bool) -> Graded:
    """C = the sum of some B, in fp32. rounds_sums: a device may add in any order, and round each sum to `dtype`."""
    value, variance = parts[0].value, parts[0].variance
    above, below = xp.maximum(value, 0.0), xp.minimum(value, 0.0)
    for part in parts[1:]:
        value, variance = value + part.value, variance + part.variance + (FP32_ROUNDOFF * part.value) ** 2
        above, below = above + xp.maximum(part.value, 0.0), below + xp.minimum(part.value, 0.0)
    if rounds_sums:
        rounding = dtype.unit_roundoff * xp.maximum(above, -below) + UNDERFLOW[dtype]
        variance = variance + max(0, len(parts) - 2) * rounding**2
    return stored(value, variance, dtype, float(len(parts)))


def weighted_sum(b: Graded, weights: Array, dtype: Dtype) -> Graded:
    """C = for each column the sum of its rows in B, with weights, in fp32. B: [columns, rows, features]."""
    terms, count = weights * b.value, b.value.shape[1]
    own = of_sum(count, Dtype.fp32) + FP32_ROUNDOFF**2  # of the sum, and of each product
    variance = (weights**2 * b.variance + own * terms**2).sum(axis=1)
    return stored(terms.sum(axis=1), variance, dtype)
