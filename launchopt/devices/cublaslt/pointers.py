"""Tables of pointers: filled on the host, uploaded on the main CUDA stream, and read by the next launch.

The host fills several buffers in pinned memory in turn. The device has one table, since a CUDA stream runs work in
order.
"""

from __future__ import annotations

import ctypes

import cupy
import numpy as np

from launchopt.cupy_types import CudaStream
from launchopt.devices.cublaslt.pointer_loops import UploadWord
from launchopt.types import Table

# Pinned buffers, used in turn, and uploads per event. The host waits for an event before it reuses its buffers.
TURNS, TURNS_AN_EVENT = 64, 16


def upload_address() -> int:
    """Return the address of `cuMemcpyHtoDAsync` in the driver."""
    address = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuMemcpyHtoDAsync_v2, ctypes.c_void_p).value
    assert address is not None
    return address


class Pointers:
    """Uploads up to `most` 8-byte words at a time on `stream`, to the device address `device`.

    To upload: call `stage` and fill the memory that it returns. Then call `upload`, or let compiled code copy with the
    addresses in `words` (`pointer_loops.upload_words`) and call `uploaded`.
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
        """Return pinned memory to fill for the next upload, int64 [most]."""
        turn = self._turn % TURNS
        if turn % TURNS_AN_EVENT == 0 and self._turn >= TURNS:
            self._events[turn // TURNS_AN_EVENT].synchronize()
        self.words[UploadWord.FROM] = self._first + 8 * turn * self._most
        return self._staged[turn * self._most : (turn + 1) * self._most]

    def uploaded(self) -> None:
        """Record that compiled code has submitted the upload, so that `stage` waits before it reuses the memory."""
        turn = self._turn % TURNS
        self._turn += 1
        if self._turn % TURNS_AN_EVENT == 0:
            self._events[turn // TURNS_AN_EVENT].record(self._stream)

    def upload(self, words: int) -> None:
        """Upload the first `words` 8-byte words of the memory that `stage` returned."""
        to_device = cupy.cuda.runtime.memcpyHostToDevice
        source = int(self.words[UploadWord.FROM])
        cupy.cuda.runtime.memcpyAsync(self.device, source, 8 * words, to_device, self._stream.ptr)
        self.uploaded()
