"""A cache of CUDA graphs: capture them from a CUDA stream, instantiate them, replay them, and keep a bounded number.

A graph has a key and a family. Graphs with the same key have the same addresses; graphs of the same family have the
same nodes. If the cache is full, the least recently used graph of the family is updated to the new graph's addresses.
If the cache holds no graph of the family, the least recently used graph of all is dropped.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, SupportsInt

from cuda.bindings import runtime as cudart

from launchopt.cupy_types import CudaStream
from launchopt.devices.prepared import Counters
from launchopt.errors import RunError

Graph = object  # cudaGraph_t
Executable = SupportsInt  # cudaGraphExec_t
RELAXED = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed


def checked(result: tuple[object, ...]) -> Any:
    """Return the values in the result of a CUDA runtime call, without its status. RunError: the call failed."""
    status, *values = result
    if status != cudart.cudaError_t.cudaSuccess:
        raise RunError(f"CUDA graph: {cudart.cudaGetErrorString(status)[1].decode()}")
    return values[0] if len(values) == 1 else tuple(values)


class Graphs:
    """At most `bound` graphs, captured on `stream`. The ns of each call are added to `counters`.

    updates: whether a graph may be updated to other addresses. A graph with launches of NCCL may not: what NCCL keeps
    for a captured launch lives as long as the graph of its capture, or one instantiated from it.
    """

    def __init__(self, stream: CudaStream, bound: int, counters: Counters, updates: bool = True) -> None:
        self._stream, self._bound, self._counters = cudart.cudaStream_t(stream.ptr), bound, counters
        self._updates = updates
        self._kept: OrderedDict[Hashable, tuple[Hashable, Executable]] = OrderedDict()
        for name in ("capture", "instantiate", "upload"):
            counters.spend(name, 0)

    def get(self, key: Hashable) -> Executable | None:
        """Return the executable graph of this key, or None."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[1]

    def make(self, key: Hashable, family: Hashable, record: Callable[[], None]) -> Executable:
        """Capture the launches that `record` submits to the stream; keep and return the executable graph."""
        start_ns = time.monotonic_ns()
        checked(cudart.cudaStreamBeginCapture(self._stream, RELAXED))
        try:
            record()
        finally:
            graph = checked(cudart.cudaStreamEndCapture(self._stream))
        self._spend("capture", start_ns)
        replayed = self._updated(family, graph) if len(self._kept) >= self._bound else None
        if replayed is None:
            replayed = self._instantiated(graph)
        checked(cudart.cudaGraphDestroy(graph))
        self._kept[key] = (family, replayed)
        return replayed

    def _instantiated(self, graph: Graph) -> Executable:
        start_ns = time.monotonic_ns()
        made: Executable = checked(cudart.cudaGraphInstantiate(graph, 0))
        self._spend("instantiate", start_ns)
        start_ns = time.monotonic_ns()
        checked(cudart.cudaGraphUpload(made, self._stream))
        self._spend("upload", start_ns)
        return made

    def _updated(self, family: Hashable, graph: Graph) -> Executable | None:
        """Update an older graph of this family to the addresses of `graph`, and return it.

        Return None if the cache has none, or if CUDA refuses. The cache then has space for another graph.
        """
        oldest = next((key for key, (own, _) in self._kept.items() if own == family and self._updates), None)
        if oldest is None:
            _, (_, dropped) = self._kept.popitem(last=False)
            checked(cudart.cudaGraphExecDestroy(dropped))
            return None
        _, kept = self._kept.pop(oldest)
        start_ns = time.monotonic_ns()
        status, _ = cudart.cudaGraphExecUpdate(kept, graph)
        self._spend("update", start_ns)
        if status == cudart.cudaError_t.cudaSuccess:
            return kept
        checked(cudart.cudaGraphExecDestroy(kept))
        return None

    def _spend(self, name: str, start_ns: int) -> None:
        self._counters.spend(name, time.monotonic_ns() - start_ns)

    def replay(self, graph: Executable) -> None:
        """Submit an executable graph."""
        checked(cudart.cudaGraphLaunch(graph, self._stream))

    def close(self) -> None:
        """Destroy all graphs."""
        for _, graph in self._kept.values():
            checked(cudart.cudaGraphExecDestroy(graph))
        self._kept.clear()
