"""A stand-in for the part of CUDA's runtime that `steps.graph_cache` calls. It counts graphs that are alive."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from support.cuda.fake_copy import STREAM

OK, REFUSED = 0, 910


class FakeRuntime:
    """A graph is a list of recorded calls; an executable graph is a dict that holds such a list.

    `execute` runs a call of a replay; `updates`: whether an executable graph can be updated.
    """

    cudaError_t = SimpleNamespace(cudaSuccess=OK)  # noqa: N815

    def __init__(
        self, updates: bool = True, fail: str = "", execute: Callable[[Any], None] = lambda call: None
    ) -> None:
        self._updates, self._fail, self._execute = updates, fail, execute
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
        self.executables.append({"calls": list(graph)})
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
        for call in executable["calls"]:
            self._execute(call)
        return (OK,)
