"""Tables of pointers for one launch: filled on the host, uploaded on the work's stream, read by the next launch.

The host fills stages in pinned memory, one after the other. The device has one table, since a stream keeps its order.
"""

from __future__ import annotations

import ctypes

import cupy
import numpy as np

from launchopt.devices.base import CudaStream
from launchopt.devices.cublaslt.pointer_loops import UploadWord
from launchopt.types import Table

TURNS, TURNS_AN_EVENT = 64, 16  # uploads in flight; the host waits for the oldest when the stages wrap around


def upload_address() -> int:
    """Return the address of `cuMemcpyHtoDAsync` in the driver."""
    address = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuMemcpyHtoDAsync_v2, ctypes.c_void_p).value
    assert address is not None
    return address


class Pointers:
    """Uploads up to `most` 8-byte words at a time on `stream`, to the device address `device`.

    An upload: `stage`, fill, copy in compiled code by `words`, `uploaded`; `upload` does the last two steps.
    """

    def __init__(self, stream: CudaStream, most: int) -> None:
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
        """Return memory to fill for the next upload, int64 [most]."""
        turn = self._turn % TURNS
        if turn % TURNS_AN_EVENT == 0 and self._turn >= TURNS:
            self._events[turn // TURNS_AN_EVENT].synchronize()
        self.words[UploadWord.FROM] = self._first + 8 * turn * self._most
        return self._staged[turn * self._most : (turn + 1) * self._most]

    def uploaded(self) -> None:
        """Note that the stage was uploaded, so that it is not filled again too early."""
        turn = self._turn % TURNS
        self._turn += 1
        if self._turn % TURNS_AN_EVENT == 0:
            self._events[turn // TURNS_AN_EVENT].record(self._stream)

    def upload(self, words: int) -> None:
        """Upload the first `words` words of the stage."""
        to_device = cupy.cuda.runtime.memcpyHostToDevice
        source = int(self.words[UploadWord.FROM])
        cupy.cuda.runtime.memcpyAsync(self.device, source, 8 * words, to_device, self._stream.ptr)
        self.uploaded()
