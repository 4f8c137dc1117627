"""A stand-in for the part of CUDA's runtime that captures of graphs call. It counts graphs that are alive."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from support.cuda.fake_copy import STREAM

OK, REFUSED = 0, 910
HANDLE = 77  # of a conditional node


class FakeLoop(list[Any]):
    """A graph that is one conditional node: the recorded calls are those of the node's body."""


class FakeRuntime:
    """A graph is a list of recorded calls; an executable graph is a dict that holds such a list.

    `execute` runs a call of a replay; `updates`: whether an executable graph can be updated. A graph with a conditional
    node, or one that may launch itself, is executed again while `goes_on` returns true.
    """

    cudaError_t = SimpleNamespace(cudaSuccess=OK)  # noqa: N815

    def __init__(
        self,
        updates: bool = True,
        fail: str = "",
        execute: Callable[[Any], None] = lambda call: None,
        goes_on: Callable[[], bool] = lambda: False,
    ) -> None:
        self._updates, self._fail, self._execute, self._goes_on = updates, fail, execute, goes_on
        self.recording: list[Any] | None = None
        self.graphs: list[list[Any]] = []
        self.executables: list[dict[str, Any]] = []
        self.updated = 0
        self.replayed: list[Any] = []

    def cudaStream_t(self, pointer: int) -> int:  # noqa: N802
        return pointer

    def cudaGetErrorString(self, status: int) -> tuple[int, bytes]:  # noqa: N802
        return OK, f"error {status}".encode()

    def cudaStreamBeginCapture(self, stream: int, mode: Any) -> tuple[int]:  # noqa: N802
        assert (stream, self.recording) == (STREAM, None)
        self.recording = []
        return (OK,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[int, Any]:  # noqa: N802
        assert self.recording is not None
        graph, self.recording = self.recording, None
        self.graphs.append(graph)
        return (REFUSED if self._fail == "capture" else OK), graph

    def cudaGraphInstantiate(self, graph: list[Any], flags: int) -> tuple[int, Any]:  # noqa: N802
        self.executables.append({"calls": list(graph), "repeats": bool(flags) or isinstance(graph, FakeLoop)})
        return OK, self.executables[-1]

    def cudaGraphUpload(self, executable: Any, stream: int) -> tuple[int]:  # noqa: N802
        assert any(each is executable for each in self.executables)
        return (OK,)

    def cudaGraphExecUpdate(self, executable: dict[str, Any], graph: list[Any]) -> tuple[int, None]:  # noqa: N802
        if not self._updates:
            return REFUSED, None
        self.updated += 1
        executable["calls"] = list(graph)
        return OK, None

    def cudaGraphDestroy(self, graph: list[Any]) -> tuple[int]:  # noqa: N802
        self.graphs = [each for each in self.graphs if each is not graph]
        return (OK,)

    def cudaGraphExecDestroy(self, executable: Any) -> tuple[int]:  # noqa: N802
        before = len(self.executables)
        self.executables = [each for each in self.executables if each is not executable]
        assert len(self.executables) == before - 1, "destroyed twice"
        return (OK,)

    def cudaGraphLaunch(self, executable: Any, stream: int) -> tuple[int]:  # noqa: N802
        assert stream == STREAM
        assert any(each is executable for each in self.executables), "it is gone"
        self.replayed += executable["calls"]
        while True:
            for call in executable["calls"]:
                self._execute(call)
            if not (executable["repeats"] and self._goes_on()):
                return (OK,)

    # Loops

    cudaGraphConditionalHandleFlags = SimpleNamespace(cudaGraphCondAssignDefault=1)  # noqa: N815
    cudaGraphNodeType = SimpleNamespace(cudaGraphNodeTypeConditional=13)  # noqa: N815
    cudaGraphConditionalNodeType = SimpleNamespace(cudaGraphCondTypeWhile=1)  # noqa: N815
    cudaGraphInstantiateFlags = SimpleNamespace(cudaGraphInstantiateFlagDeviceLaunch=4)  # noqa: N815

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:  # noqa: N802
        return (OK,)

    def cudaGraphCreate(self, flags: int) -> tuple[int, Any]:  # noqa: N802
        self.graphs.append(FakeLoop())
        return OK, self.graphs[-1]

    def cudaGraphConditionalHandleCreate(self, graph: Any, default: int, flags: int) -> tuple[int, int]:  # noqa: N802
        assert isinstance(graph, FakeLoop)
        assert (default, flags) == (1, 1), "each launch begins with 1"
        return OK, HANDLE

    def cudaGraphNodeParams(self) -> Any:  # noqa: N802
        return SimpleNamespace(conditional=SimpleNamespace())

    def cudaGraphAddNode(self, graph: Any, before: None, edges: None, count: int, node: Any) -> tuple[int, Any]:  # noqa: N802
        assert (node.type, node.conditional.type, node.conditional.size, node.conditional.handle) == (13, 1, 1, HANDLE)
        node.conditional.phGraph_out = [graph]
        return OK, node

    def cudaStreamBeginCaptureToGraph(  # noqa: N802
        self, stream: int, graph: Any, before: None, edges: None, count: int, mode: Any
    ) -> tuple[int]:
        assert (stream, self.recording) == (STREAM, None)
        self.graphs = [each for each in self.graphs if each is not graph]  # the end of the capture lists it again
        self.recording = graph
        return (OK,)
