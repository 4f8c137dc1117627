"""Percentiles of any number of times in a fixed 129 kB: counts in buckets whose width grows with the value.

In: arrays of integers, or rows of histograms.parquet. Out: percentiles, and such rows again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

OCTAVES = 63  # of a positive int64
BUCKETS_PER_OCTAVE = 256  # of equal width, as in an HDR histogram
_BUCKETS = 1 + OCTAVES * BUCKETS_PER_OCTAVE
RELATIVE_ERROR = 0.003  # stated; half a bucket at the foot of an octave is 1/512, below 0.2%


class LogHistogram:
    """Counts of integers, ns here. Below 512 every integer has a bucket of its own; what is not positive counts as 0.

    A percentile is within RELATIVE_ERROR of the one that NumPy computes from all values. Doubles choose the bucket:
    above 2**53 (104 days in ns) a value may be counted one bucket too high.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self._max: int | None = None

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, int]]) -> LogHistogram:
        """A histogram of what `rows` gave, of several histograms too. Its max is the high of the last bucket."""
        histogram = cls()
        lows, highs, counts = np.array(list(rows), np.int64).reshape(-1, 3).T
        np.add.at(histogram._counts, _buckets(lows), counts)
        histogram._max = int(highs.max()) if len(highs) else None
        return histogram

    @property
    def count(self) -> int:
        """Values so far."""
        return int(self._counts.sum())

    @property
    def max(self) -> int | None:
        """The largest value, exact; None without values."""
        return self._max

    def rows(self) -> list[tuple[int, int, int]]:
        """(smallest, largest integer, count) of each bucket that is not empty, in order."""
        return [(*_ends(int(bucket)), int(self._counts[bucket])) for bucket in np.flatnonzero(self._counts)]

    def add(self, values_ns: NDArray[np.int64]) -> None:
        """Count each of `values_ns`."""
        if not len(values_ns):
            return
        self._counts += np.bincount(_buckets(values_ns), minlength=_BUCKETS)
        self._max = max(self._max or 0, int(values_ns.max()))

    def merge(self, other: LogHistogram) -> None:
        """Count what `other` has counted as well."""
        self._counts += other._counts
        if other._max is not None:
            self._max = max(self._max or 0, other._max)

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


def _buckets(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bucket of each value."""
    # A value is (1 + share) * 2**octave; doubles hold it to 2**-53 of itself, far less than a bucket.
    mantissa, exponent = np.frexp(np.maximum(values, 0).astype(np.float64))
    share = ((2 * mantissa - 1) * BUCKETS_PER_OCTAVE).astype(np.int64)
    buckets = 1 + (exponent.astype(np.int64) - 1) * BUCKETS_PER_OCTAVE + share
    buckets[values <= 0] = 0
    # The largest int64s round up to 2**63, an octave too far.
    np.minimum(buckets, _BUCKETS - 1, out=buckets)
    return buckets


def _ends(bucket: int) -> tuple[int, int]:
    """The smallest and the largest integer that fall into a bucket that holds any."""
    if bucket == 0:
        return 0, 0
    octave, share = divmod(bucket - 1, BUCKETS_PER_OCTAVE)
    # A foot is (BUCKETS_PER_OCTAVE + share) * 2**octave / BUCKETS_PER_OCTAVE, rounded up: exact in integers.
    foot, next_foot = (-(-((BUCKETS_PER_OCTAVE + at) << octave) // BUCKETS_PER_OCTAVE) for at in (share, share + 1))
    return foot, next_foot - 1


def _value(bucket: int) -> float:
    """The middle of the integers that fall into a bucket."""
    if bucket == 0:
        return 0.0
    octave, share = divmod(bucket - 1, BUCKETS_PER_OCTAVE)
    foot, width = 2.0**octave * (1 + share / BUCKETS_PER_OCTAVE), 2.0**octave / BUCKETS_PER_OCTAVE
    return foot + max(0.0, width - 1) / 2
