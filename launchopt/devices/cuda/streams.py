"""Several CUDA streams that work side by side, each with a workspace of its own, kept in order by events.

A run begins and ends on the first, the main stream; in between commands of a request stay on one stream, so that their
order holds, and what is fed back from them runs on the main stream, between events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.devices.cublaslt import launch as lt


class Streams:
    """`count` (a power of two) streams, `main` among them; contexts like `context`, each with `workspace_bytes`."""

    def __init__(self, main: Any, count: int, context: NDArray[np.int64], workspace_bytes: int) -> None:
        self.all = [main, *(cupy.cuda.Stream(non_blocking=True) for _ in range(count - 1))]
        self._workspaces = [cupy.empty(workspace_bytes, np.uint8) for _ in range(count - 1)]
        self.contexts = np.tile(context, (count, 1))
        for row, stream, workspace in zip(self.contexts[1:], self.all[1:], self._workspaces, strict=True):
            row[lt.STREAM], row[lt.WORKSPACE] = stream.ptr, workspace.data.ptr
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in self.all]

    def of(self, request: int) -> Any:
        """The stream of a request's commands."""
        return self.all[request & (len(self.all) - 1)]

    def fork(self, numbers: Iterable[int] | None = None) -> None:
        """What is submitted to the others from now on comes after what is on the main stream."""
        self._events[0].record(self.all[0])
        for i in range(1, len(self.all)) if numbers is None else numbers:
            self.all[i].wait_event(self._events[0])

    def join(self, numbers: Iterable[int] | None = None) -> None:
        """What is submitted to the main stream from now on comes after what is on the others."""
        for i in range(1, len(self.all)) if numbers is None else numbers:
            self._events[i].record(self.all[i])
            self.all[0].wait_event(self._events[i])

    def numbers(self, requests: NDArray[np.uint64]) -> list[int]:
        """Which of the others these requests' commands are on."""
        return [i for i in np.unique(requests & np.uint64(len(self.all) - 1)).tolist() if i]
