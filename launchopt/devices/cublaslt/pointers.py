"""Tables of pointers for one launch: filled on the host, uploaded on the work's stream, read by the next launch.

Staging lies in pinned memory, in turns; the device's table is one, since what is on a stream happens in order.
"""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
import numpy as np

from launchopt.devices.cublaslt.pointer_loops import UPLOAD_FROM
from launchopt.types import Table

TURNS, TURNS_AN_EVENT = 64, 16  # uploads in flight; the host waits for the oldest when it wraps around


def upload_address() -> int:
    """Address of `cuMemcpyHtoDAsync` in the driver."""
    address = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuMemcpyHtoDAsync_v2, ctypes.c_void_p).value
    assert address is not None
    return address


class Pointers:
    """Uploads up to `most` 8-byte words at a time on `stream`; `device` is the address of what was uploaded last.

    Each upload: `stage`, fill, copy by `words` in compiled code, then `uploaded`; or `upload` for the last two.
    """

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self._most = stream, most
        pinned = cupy.cuda.alloc_pinned_memory(8 * TURNS * most)
        self._staged: Table = np.frombuffer(pinned, np.int64, TURNS * most)
        self._first = self._staged.ctypes.data
        self._table = cupy.empty(most, np.int64)
        self.device = int(self._table.data.ptr)
        self.words: Table = np.array([upload_address(), self.device, 0], np.int64)
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(TURNS // TURNS_AN_EVENT)]
        self._turn = 0

    def stage(self) -> Table:
        """int64 [most] to be filled for the next upload."""
        turn = self._turn % TURNS
        if turn % TURNS_AN_EVENT == 0 and self._turn >= TURNS:
            self._events[turn // TURNS_AN_EVENT].synchronize()
        self.words[UPLOAD_FROM] = self._first + 8 * turn * self._most
        return self._staged[turn * self._most : (turn + 1) * self._most]

    def uploaded(self) -> None:
        """What was staged is on its way."""
        turn = self._turn % TURNS
        self._turn += 1
        if self._turn % TURNS_AN_EVENT == 0:
            self._events[turn // TURNS_AN_EVENT].record(self._stream)

    def upload(self, words: int) -> None:
        """Copy the first `words` words that were staged."""
        to_device = cupy.cuda.runtime.memcpyHostToDevice
        source = int(self.words[UPLOAD_FROM])
        cupy.cuda.runtime.memcpyAsync(self.device, source, 8 * words, to_device, self._stream.ptr)
        self.uploaded()
