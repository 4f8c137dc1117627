"""A fake of the driver's cuMemcpyHtoDAsync. It copies within the host, immediately, and counts its calls."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

COPY = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 4)
STREAM = 0x5EA1


class FakeCopy:
    """Copies to a table of `most` words in host memory. Every call returns `status`."""

    def __init__(self, most: int, status: int = 0) -> None:
        self.table, self.staged = np.full(most, -1, np.int64), np.full(most, -2, np.int64)
        self.copies: list[tuple[int, int]] = []  # bytes, stream
        self._status, self._function = status, COPY(self._copy)

    @property
    def upload(self) -> NDArray[np.int64]:
        """Return the words of an upload: the function, the table, the staged words."""
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        return np.array([address, self.table.ctypes.data, self.staged.ctypes.data], np.int64)

    def _copy(self, to: int, source: int, size: int, stream: int) -> int:
        self.copies.append((size, stream))
        if self._status == 0:
            ctypes.memmove(to, source, size)
        return self._status
