"""Bring the clocks of several GPUs together by the collectives that they share.

In: begins and ends of collectives, each on the clock of its own GPU. Out: `Clocks`.

No GPU ends a collective before all have begun it. So each pair of GPUs has a largest difference of its offsets. Bounds
of two pairs that share a GPU bound a third pair: the closure of all bounds (Floyd and Warshall) has the tightest ones.
If they contradict each other, no offsets exist. Otherwise the middle is taken: the mean of the extreme solutions, two
for each GPU. It meets every bound, since all solutions form a convex set, and is the same for any order of the GPUs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]  # [GPUs, collectives]
# Times further from the first collective, 13 days, are taken as that far, so that sums fit into int64.
_FAR_NS = 2**50


class Clocks(NamedTuple):
    """What to add to the times of each GPU, ns. error_ns: most that the offset between two GPUs can be off."""

    offsets_ns: NDArray[np.int64]  # that of the first GPU is 0
    error_ns: int


def recorded_or_set(starts_ns: Times, ends_ns: Times, rounded_ns: int) -> Clocks | None:
    """Return offsets of 0 if they meet the bounds of all pairs, else the middle; None if no offsets do.

    rounded_ns: most that rounding can make a begin later than an end.
    """
    largest = _closed(_largest_ns(starts_ns, ends_ns) + rounded_ns)
    if largest is None:
        return None
    first_ns = starts_ns[:, 0]
    left = _left_ns(np.clip(first_ns - first_ns[0], -_FAR_NS, _FAR_NS), largest)
    if left.min() >= 0:
        return Clocks(np.zeros(len(first_ns), np.int64), int(left.max()))
    return _middle(first_ns, largest)


def set_clocks(starts_ns: Times, ends_ns: Times) -> Clocks:
    """Return the middle of the bounds. If they contradict each other, they are widened by the least that mends it.

    The error includes that amount.
    """
    bounds = _largest_ns(starts_ns, ends_ns)
    low, high = 0, max(0, -int(bounds.min()))  # with `high` all may have begun the first one together
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _closed(bounds + middle) is None else (low, middle)
    largest = _closed(bounds + high)
    assert largest is not None
    found = _middle(starts_ns[:, 0], largest)
    return found._replace(error_ns=found.error_ns + high)


def _largest_ns(starts_ns: Times, ends_ns: Times) -> Times:
    """Return the largest offset of each GPU (row) less that of each other one (column).

    Times count from the begin of the first collective on the GPU, so that those of two clocks are of one size.
    """
    first_ns = starts_ns[:, :1]
    starts, ends = (np.clip(times - first_ns, -_FAR_NS, _FAR_NS) for times in (starts_ns, ends_ns))
    largest = np.stack([(ends - own).min(axis=1) for own in starts])
    np.fill_diagonal(largest, 0)
    return largest


def _closed(bounds: Times) -> Times | None:
    """Return the tightest bounds that follow from `bounds`; None if they contradict each other."""
    largest = bounds.copy()
    np.fill_diagonal(largest, 0)
    if (largest + largest.T).min() < 0:
        return None
    for by in range(len(largest)):
        largest = np.minimum(largest, largest[:, by, None] + largest[by])
        if largest.diagonal().min() < 0:
            return None
    return largest


def _middle(first_ns: NDArray[np.int64], largest: Times) -> Clocks:
    # Rounding down keeps every bound, since bounds are whole numbers.
    middle = (largest - largest.T).sum(axis=1) // (2 * len(largest))
    offsets = middle - first_ns
    return Clocks(offsets - offsets[0], int(_left_ns(middle, largest).max()))


def _left_ns(offsets: NDArray[np.int64], largest: Times) -> Times:
    """Return how much the offset of each GPU (row) less that of each other one (column) could grow."""
    left: Times = largest - (offsets[:, None] - offsets)
    return left
