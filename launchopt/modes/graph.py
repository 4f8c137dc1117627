"""graph: one CUDA graph replay a batch of bucketed size, or a whole step of all requests in step.

Independent commands: a graph holds one pointer-array GEMM of a fixed size (powers of two, and the limit); the pointers
are uploaded between replays, and what a batch lacks is computed for nothing (padded_commands). Steps: a graph holds
every launch of a step, those of requests that share a weight as one wider GEMM. It is captured for a set of requests
and a copy of the weights; at most mode.cached=64 are kept, or one a copy of the weights (a small model has many), and
beyond that one is updated to new addresses. Requests that do not lie evenly spaced (their first tokens) are launched as
in mode=coalesced. On the CPU device a graph is a recorded list of calls, and mode.cached are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from launchopt.batching.batcher import Batch, Batcher
from launchopt.command import COMMAND_DTYPE, W_MN, W_SLOT_A_B, W_SLOT_C_REQUEST, Records, ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.base import Mode, Takes
from launchopt.modes.options import KeepsGraphs
from launchopt.recording.recorder import Strategy
from launchopt.workloads.chain import ChainStream, Stream


@dataclass(slots=True)
class Options(KeepsGraphs):
    """Options of mode=graph."""


class Graph(Mode):
    """One replay a batch, or a step."""

    name = "graph"
    summary = "one CUDA graph replay a batch, or a whole step of all requests in step"
    own_strategy = "graph"
    options: Options = Options()

    @classmethod
    def takes_of(cls, stream: Stream) -> Takes:
        """Whole steps, where there are any."""
        return Takes.steps if isinstance(stream, ChainStream) else Takes.batches

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Capture what is likely to be asked for."""
        self._device, self.graph_replays = device, 0
        cached = self.options.cached
        gpu: Any = device
        if device.info.kind == "cpu":
            self._graphs: Any = _Recorded(gpu, list(limits), cached, self)
            return
        from launchopt.devices.steps.graphs import BatchGraphs, StepGraphs

        if isinstance(gpu.work, ChainStream):
            self._graphs = steps = StepGraphs(gpu, limits, self, cached)
            gpu.warm_up()  # a kernel that is not loaded cannot be captured
            steps.capture_likely()
        else:
            self._graphs = BatchGraphs(gpu, limits, self)

    def start(self) -> None:
        """A run is about to begin."""
        super().start()
        self._graphs.load()

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Replay."""
        self._graphs.submit(batch, flush_ns)

    def close(self) -> None:
        """Destroy the graphs."""
        self._graphs.close()


class _Recorded:
    """Lists of calls on the CPU device, at most `bound`, by the shapes and slots of their commands."""

    def __init__(self, cpu: Any, shapes: list[ShapeKey], bound: int, mode: Graph) -> None:
        self._cpu, self._bound, self._mode = cpu, bound, mode
        self._batcher = Batcher(shapes, [1] * len(shapes), 0)
        self._kept: OrderedDict[tuple[int, bytes], list[Any]] = OrderedDict()

    def _record(self, words: Any) -> list[Any]:
        records: Records = words.reshape(-1).view(COMMAND_DTYPE)
        shape_of = self._batcher.classify(records, np.zeros(len(records), np.int32)).tolist()
        calls = []
        for i, index in enumerate(shape_of):
            views = zip(self._cpu.compute.views[index], "abc", strict=True)
            slots = ((view, int(records[f"slot_{role}"][i])) for view, role in views)
            calls.append((index, *(view[slot : slot + 1] for view, slot in slots)))
        return calls

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Look the list up, or record it; run it in one launch."""
        key = batch.shape_index, batch.words[:, (W_MN, W_SLOT_A_B, W_SLOT_C_REQUEST)].tobytes()
        calls = self._kept.pop(key, None) or self._record(batch.words)
        self._kept[key] = calls
        if len(self._kept) > self._bound:
            self._kept.popitem(last=False)
        start_ns = self._cpu.enter(batch.shape_index, len(batch.words))
        for i, (index, a, b, c) in enumerate(calls):
            self._cpu.compute.run(index, a, b, c, batch.words[i : i + 1])
        self._cpu.leave(batch, slice(0, len(batch.words)), Strategy.graph, flush_ns, start_ns)
        self._mode.graph_replays = (self._mode.graph_replays or 0) + 1

    def load(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Forget all."""
        self._kept.clear()
