"""Several CUDA streams whose kernels may run at the same time. Each has a workspace; events order work across streams.

A run begins and ends on the main stream. Between these, all commands of a request are on one stream, which keeps their
order. Results are fed back on the main stream. By events, it first waits for the other streams; then they wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable

import cupy
import numpy as np

from launchopt.cupy_types import CudaStream
from launchopt.devices.cublaslt.launch_tables import ContextWord
from launchopt.types import Table, Words

NOT_READY = 600  # cudaError_t of a stream that still has work: not an error


def check_context(stream: CudaStream) -> None:
    """Raise CUDA's error if the context of a stream is lost. Do not wait for submitted work."""
    try:
        # This also clears CUDA's last error. PyTorch would take a "not ready" left there for a failure.
        cupy.cuda.runtime.check_status(cupy.cuda.runtime.streamQuery(stream.ptr))
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if error.status != NOT_READY:
            raise


class Streams:
    """`count` CUDA streams, a power of two; the first is `main`.

    Each has a copy of `context`, [1, ContextWord], with its own stream and workspace.
    """

    def __init__(self, main: CudaStream, count: int, context: Table, workspace_bytes: int) -> None:
        self.all: list[CudaStream] = [main, *(cupy.cuda.Stream(non_blocking=True) for _ in range(count - 1))]
        self._workspaces = [cupy.empty(workspace_bytes, np.uint8) for _ in range(count - 1)]
        self.contexts = np.tile(context, (count, 1))
        for row, stream, workspace in zip(self.contexts[1:], self.all[1:], self._workspaces, strict=True):
            row[ContextWord.STREAM], row[ContextWord.WORKSPACE] = stream.ptr, workspace.data.ptr
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in self.all]

    def of(self, request: int) -> CudaStream:
        """Return the stream of a request's commands."""
        return self.all[request & (len(self.all) - 1)]

    def fork(self, numbers: Iterable[int] | None = None) -> None:
        """Let work submitted from now on to the streams `numbers` (None: all) wait for the work on the main stream."""
        self._events[0].record(self.all[0])
        for i in range(1, len(self.all)) if numbers is None else numbers:
            self.all[i].wait_event(self._events[0])

    def join(self, numbers: Iterable[int] | None = None) -> None:
        """Let work submitted from now on to the main stream wait for the work on the streams `numbers` (None: all)."""
        for i in range(1, len(self.all)) if numbers is None else numbers:
            self._events[i].record(self.all[i])
            self.all[0].wait_event(self._events[i])

    def numbers(self, requests: Words) -> list[int]:
        """Return the numbers of the streams that these requests' commands are on, without the main stream."""
        return [i for i in np.unique(requests & np.uint64(len(self.all) - 1)).tolist() if i]
