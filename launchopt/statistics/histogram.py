"""Percentiles of any number of times, from counts in 129 kB of buckets that widen with the value.

Input: arrays of int64, or rows of histograms.parquet. Output: percentiles, and rows for such a file.
The buckets are those of HdrHistogram (Tene, 2012): equally wide within each power of two.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

OCTAVES = 63  # powers of two of a positive int64
BUCKETS_PER_OCTAVE = 256  # all of equal width
_BUCKETS = 1 + OCTAVES * BUCKETS_PER_OCTAVE
RELATIVE_ERROR = 0.003  # guaranteed; the actual error is half a bucket, at most 1/512 of the value (below 0.2%)


class LogHistogram:
    """Counts of int64 values (ns in this project). Each value below 512 has its own bucket; values below 1 count as 0.

    A percentile differs from the exact one by at most RELATIVE_ERROR. The bucket is computed in float64. A value above
    2**53 (104 days in ns) may therefore be counted one bucket too high.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self._max: int | None = None

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, int]]) -> LogHistogram:
        """Return the histogram of (low, high, count) rows, also of several histograms. Its max is the largest high."""
        histogram = cls()
        lows, highs, counts = np.array(list(rows), np.int64).reshape(-1, 3).T
        np.add.at(histogram._counts, _buckets(lows), counts)
        histogram._max = int(highs.max()) if len(highs) else None
        return histogram

    @property
    def count(self) -> int:
        """Return the number of values counted."""
        return int(self._counts.sum())

    @property
    def max(self) -> int | None:
        """Return the exact largest value; None if there are no values."""
        return self._max

    def rows(self) -> list[tuple[int, int, int]]:
        """Return (smallest integer, largest integer, count) of each bucket that is not empty, in ascending order."""
        return [(*_ends(int(bucket)), int(self._counts[bucket])) for bucket in np.flatnonzero(self._counts)]

    def add(self, values_ns: NDArray[np.int64]) -> None:
        """Count each of `values_ns`, a one-dimensional array."""
        if not len(values_ns):
            return
        self._counts += np.bincount(_buckets(values_ns), minlength=_BUCKETS)
        self._max = max(self._max or 0, int(values_ns.max()))

    def merge(self, other: LogHistogram) -> None:
        """Add the counts of `other`."""
        self._counts += other._counts
        if other._max is not None:
            self._max = max(self._max or 0, other._max)

    def percentile(self, percent: float) -> float | None:
        """Return the value that `percent` (0 to 100) percent of the values are below; None if there are no values.

        It interpolates linearly between two values, as numpy.percentile does.
        """
        ends = np.cumsum(self._counts)
        if not ends[-1]:
            return None
        rank = (int(ends[-1]) - 1) * percent / 100
        low = int(rank)
        high = min(low + 1, int(ends[-1]) - 1)
        below, above = (_value(int(np.searchsorted(ends, at, "right"))) for at in (low, high))
        return below + (rank - low) * (above - below)


def _buckets(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket number of each value."""
    # A value is (1 + share) * 2**octave. float64 rounds it by 2**-53 of itself at most, far less than a bucket.
    mantissa, exponent = np.frexp(np.maximum(values, 0).astype(np.float64))
    share = ((2 * mantissa - 1) * BUCKETS_PER_OCTAVE).astype(np.int64)
    buckets = 1 + (exponent.astype(np.int64) - 1) * BUCKETS_PER_OCTAVE + share
    buckets[values <= 0] = 0
    # float64 rounds the largest int64s up to 2**63, which would be one octave too far.
    np.minimum(buckets, _BUCKETS - 1, out=buckets)
    return buckets


def _ends(bucket: int) -> tuple[int, int]:
    """Return the smallest and the largest integer of a bucket that holds at least one integer."""
    if bucket == 0:
        return 0, 0
    octave, share = divmod(bucket - 1, BUCKETS_PER_OCTAVE)
    # The lower bound is (BUCKETS_PER_OCTAVE + share) * 2**octave / BUCKETS_PER_OCTAVE, rounded up in exact integers.
    foot, next_foot = (-(-((BUCKETS_PER_OCTAVE + at) << octave) // BUCKETS_PER_OCTAVE) for at in (share, share + 1))
    return foot, next_foot - 1


def _value(bucket: int) -> float:
    """Return the middle of the integers of a bucket."""
    if bucket == 0:
        return 0.0
    octave, share = divmod(bucket - 1, BUCKETS_PER_OCTAVE)
    foot, width = 2.0**octave * (1 + share / BUCKETS_PER_OCTAVE), 2.0**octave / BUCKETS_PER_OCTAVE
    return foot + max(0.0, width - 1) / 2
