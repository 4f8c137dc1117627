"""Percentiles of any number of times in a fixed 129 kB: counts in buckets whose width grows with the value."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

OCTAVES = 63  # of a positive int64
BUCKETS_PER_OCTAVE = 256  # of equal width, as in an HDR histogram
RELATIVE_ERROR = 0.003  # stated; half a bucket at the foot of an octave is 1/512, below 0.2%


class LogHistogram:
    """Counts of integers, ns here. Below 512 every integer has a bucket of its own; what is not positive counts as 0.

    A percentile is within RELATIVE_ERROR of the one that NumPy computes from all values.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(1 + OCTAVES * BUCKETS_PER_OCTAVE, np.int64)

    @property
    def count(self) -> int:
        """Values so far."""
        return int(self._counts.sum())

    def add(self, values_ns: NDArray[np.int64]) -> None:
        """Count each of `values_ns`."""
        # A value is (1 + share) * 2**octave; doubles hold it to 2**-53 of itself, far less than a bucket.
        mantissa, exponent = np.frexp(np.maximum(values_ns, 0).astype(np.float64))
        share = ((2 * mantissa - 1) * BUCKETS_PER_OCTAVE).astype(np.int64)
        buckets = 1 + (exponent.astype(np.int64) - 1) * BUCKETS_PER_OCTAVE + share
        buckets[values_ns <= 0] = 0
        # The largest int64s round up to 2**63, an octave too far.
        np.minimum(buckets, len(self._counts) - 1, out=buckets)
        self._counts += np.bincount(buckets, minlength=len(self._counts))

    def merge(self, other: LogHistogram) -> None:
        """Count what `other` has counted as well."""
        self._counts += other._counts

    def percentile(self, percent: float) -> float | None:
        """The value below which `percent` of the values lie, interpolated as NumPy does; None without values."""
        ends = np.cumsum(self._counts)
        if not ends[-1]:
            return None
        rank = (int(ends[-1]) - 1) * percent / 100
        low = int(rank)
        high = min(low + 1, int(ends[-1]) - 1)
        below, above = (_value(int(np.searchsorted(ends, at, "right"))) for at in (low, high))
        return below + (rank - low) * (above - below)


def _value(bucket: int) -> float:
    """The middle of the integers that fall into a bucket."""
    if bucket == 0:
        return 0.0
    octave, share = divmod(bucket - 1, BUCKETS_PER_OCTAVE)
    foot, width = 2.0**octave * (1 + share / BUCKETS_PER_OCTAVE), 2.0**octave / BUCKETS_PER_OCTAVE
    return foot + max(0.0, width - 1) / 2
