"""Types that many modules use: arrays of int64 and uint64, arrays of NumPy or CuPy, and integers of compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any  # an array of NumPy or CuPy; CuPy has no type annotations
Int = Any  # an integer inside compiled code: Numba decides its width
Table = NDArray[np.int64]  # a table, one row of a table, or a list of integers; times are CLOCK_MONOTONIC ns
Words = NDArray[np.uint64]  # command records [count, WORDS] (launchopt/command.py), or other 8-byte words
ShapeIndices = NDArray[np.int32]  # [count]: index of the shape of each command
