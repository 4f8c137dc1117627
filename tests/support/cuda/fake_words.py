"""A stand-in for `devices.polled_words.PolledWords`: words in NumPy's memory, near wherever they may be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NOT_NEAR = "mode.bar1=false"


class FakeWords:
    """`count` words of a dtype, all 0."""

    def __init__(self, count: int, dtype: Any, near: bool = True) -> None:
        self.array: NDArray[Any] = np.ones(count, dtype)
        self.address = int(self.array.ctypes.data)
        self.is_near, self.why_not = near, "" if near else NOT_NEAR
        self.clear()

    def clear(self) -> None:
        self.array.fill(0)

    @property
    def where(self) -> str:
        return "GPU memory, by BAR1" if self.is_near else f"host memory: {self.why_not}"
