"""CUDA graphs that repeat a step: capture a step once, and let one launch execute it many times.

Two kinds. A graph with a conditional WHILE node repeats the node's body until a kernel of the body sets the node's
value to 0 (CUDA 12.4 or newer). A graph that may be launched by the GPU repeats itself: its last kernel launches it
again, and that launch begins when the present one has ended.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from cuda.bindings import runtime as cudart

from launchopt.cupy_types import CudaStream
from launchopt.devices.cuda.graph_cache import RELAXED, Executable, Graph, checked
from launchopt.devices.prepared import Counters

Record = Callable[[int], None]  # submits the launches of a step; argument: the handle of the conditional node, or 0


class LoopGraphs:
    """At most `bound` graphs, captured on `stream`. The ns of each call are added to `counters`.

    is_while: the graphs have a conditional node; else they launch themselves.
    """

    def __init__(self, stream: CudaStream, bound: int, counters: Counters, is_while: bool) -> None:
        self._stream, self._bound, self._counters = cudart.cudaStream_t(stream.ptr), bound, counters
        self._is_while = is_while
        self._kept: OrderedDict[Hashable, Executable] = OrderedDict()
        for name in ("capture", "instantiate", "upload"):
            counters.spend(name, 0)

    def get(self, key: Hashable) -> Executable | None:
        """Return the executable graph of this key, or None."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    @property
    def is_full(self) -> bool:
        """Whether the next graph takes the place of another one."""
        return len(self._kept) >= self._bound

    def make(self, key: Hashable, record: Record) -> Executable:
        """Capture the launches that `record` submits to the stream; keep and return the executable graph."""
        if self.is_full:
            checked(cudart.cudaStreamSynchronize(self._stream))  # the oldest graph may still run
            _, oldest = self._kept.popitem(last=False)
            checked(cudart.cudaGraphExecDestroy(oldest))
        start_ns = time.monotonic_ns()
        graph = self._with_while(record) if self._is_while else self._captured(record, None)
        self._spend("capture", start_ns)
        start_ns = time.monotonic_ns()
        flags = 0 if self._is_while else int(cudart.cudaGraphInstantiateFlags.cudaGraphInstantiateFlagDeviceLaunch)
        made: Executable = checked(cudart.cudaGraphInstantiate(graph, flags))
        self._spend("instantiate", start_ns)
        start_ns = time.monotonic_ns()
        checked(cudart.cudaGraphUpload(made, self._stream))
        self._spend("upload", start_ns)
        checked(cudart.cudaGraphDestroy(graph))
        self._kept[key] = made
        return made

    def _with_while(self, record: Record) -> Graph:
        """Return a graph that is one conditional node, whose body is what `record` submits."""
        graph = checked(cudart.cudaGraphCreate(0))
        resets = cudart.cudaGraphConditionalHandleFlags.cudaGraphCondAssignDefault  # to 1, at each launch of the graph
        handle = checked(cudart.cudaGraphConditionalHandleCreate(graph, 1, int(resets)))
        node = cudart.cudaGraphNodeParams()
        node.type = cudart.cudaGraphNodeType.cudaGraphNodeTypeConditional
        node.conditional.handle, node.conditional.size = handle, 1
        node.conditional.type = cudart.cudaGraphConditionalNodeType.cudaGraphCondTypeWhile
        checked(add_node(graph, node))
        self._captured(lambda _: record(int(handle)), node.conditional.phGraph_out[0])
        return graph

    def _captured(self, record: Record, into: Graph | None) -> Graph:
        """Return the graph of the launches that `record` submits. into: the graph that they are added to, if any."""
        if into is None:
            checked(cudart.cudaStreamBeginCapture(self._stream, RELAXED))
        else:
            checked(cudart.cudaStreamBeginCaptureToGraph(self._stream, into, None, None, 0, RELAXED))
        try:
            record(0)
        finally:
            graph = checked(cudart.cudaStreamEndCapture(self._stream))
        return graph

    def _spend(self, name: str, start_ns: int) -> None:
        self._counters.spend(name, time.monotonic_ns() - start_ns)

    def launch(self, graph: Executable) -> None:
        """Submit an executable graph."""
        checked(cudart.cudaGraphLaunch(graph, self._stream))

    def close(self) -> None:
        """Destroy all graphs."""
        for graph in self._kept.values():
            checked(cudart.cudaGraphExecDestroy(graph))
        self._kept.clear()


def add_node(graph: Graph, node: object) -> tuple[object, ...]:
    """Add a node to a graph. CUDA 12 has two functions; the one whose arguments are those of CUDA 13 ends with _v2."""
    add = getattr(cudart, "cudaGraphAddNode_v2", None) or cudart.cudaGraphAddNode
    result: tuple[object, ...] = add(graph, None, None, 0, node)
    return result
