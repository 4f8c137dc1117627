"""Sorting in place, for compiled loops: of the few numbers that most often come in order already."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.native import compiled
from launchopt.types import Int


@compiled
def sort(values: NDArray[np.int64], count: Int) -> None:
    """The first `count`, ascending: Shell's."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value, j = values[i], i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3
