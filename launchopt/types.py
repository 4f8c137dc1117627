"""Types that modules share: arrays of int64 and uint64, arrays of NumPy or CuPy, and integers of compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any  # an array of NumPy or of CuPy, which has no types
Int = Any  # an integer inside compiled code: Numba decides its width
Table = NDArray[np.int64]  # rows and columns, or a row, or a list of integers; times are CLOCK_MONOTONIC ns
Words = NDArray[np.uint64]  # command records [count, WORDS] (launchopt/command.py), or other words that are shared
ShapeIndices = NDArray[np.int32]  # [count]: for each command the index of its shape
