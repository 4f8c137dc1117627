"""CUDA graphs of batches and of whole steps.

A batch's graph is one pointer-array GEMM of a fixed size, which reads its pointers from a table: between replays the
table is filled and uploaded. Sizes are powers of two and the limit; what a batch lacks is made up with its first
command, written to scratch. A step's graph is all its launches; it is captured for a set of requests and a copy of the
weights, and its addresses are updated when another set takes its place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import cupy
import numpy as np

from launchopt.batching.batcher import Batch
from launchopt.batching.step_batcher import StepBatch
from launchopt.command import W_MN, ShapeKey
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.pointer_loops import fill_pointers, pad_pointers, padded_sizes
from launchopt.devices.cublaslt.pointers import Pointers
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cublaslt.tuning import fastest_by_pointers
from launchopt.devices.runs import HIGH
from launchopt.devices.steps.coalesced import CoalescedSteps
from launchopt.devices.steps.graph_cache import Graphs
from launchopt.devices.steps.likely import most_kept
from launchopt.modes.base import Mode
from launchopt.recording.recorder import Strategy

UPLOAD_CALLS = 1


class BatchGraphs:
    """A graph for each shape and size of batch. `device`: a CudaDevice."""

    def __init__(self, device: Any, limits: Mapping[ShapeKey, int], mode: Mode) -> None:
        self._device, self._mode, self._tables = device, mode, device.base.fork()
        self._sizes = [np.array(padded_sizes(limit)) for limit in limits.values()]
        self._pointers = Pointers(device.stream, 3 * max(limits.values()))
        widest = max(shape.n * row for shape in limits for row in device.row_elements(shape)[2:])
        self._scratch = cupy.empty(widest * device.work.dtype.itemsize, np.uint8)
        graphs = sum(map(len, self._sizes))
        self._graphs = Graphs(device.stream, graphs, mode.costs_ns)
        for index, shape in enumerate(limits):
            self._tables.add(index, self._sizes[index].tolist(), partial(self._plan, index, shape))
        for key in ((index, size) for index, sizes in enumerate(self._sizes) for size in sizes.tolist()):
            self._graphs.make(key, key, partial(self._record, *key))
        self.load()

    def load(self) -> None:
        """Replay each once. What other modes loaded since may have cost the graphs their place on the GPU."""
        for index, sizes in enumerate(self._sizes):
            for size in sizes.tolist():
                self._load(index, size)

    def _load(self, index: int, size: int) -> None:
        """Replay one, outputs to scratch: a kernel is loaded when it first runs, and so is the loop that pads."""
        staged, row, scratch = self._pointers.stage(), self._tables.shapes[index], self._scratch.data.ptr
        staged[:3] = row[lt.BASE_A], row[lt.BASE_B], scratch
        pad_pointers(staged, 1, size, scratch)
        self._pointers.upload(3 * size)
        self._graphs.replay(self._graphs.get((index, size)))
        self._device.synchronize()

    def _plan(self, index: int, shape: ShapeKey, size: int) -> Row:
        if size == self._sizes[index][-1]:
            return fastest_by_pointers(self._device, index, shape, size)
        made: Row = self._device.lt.make(shape, size, None, self._device.row_elements(shape))
        return made

    def _record(self, index: int, size: int) -> None:
        table, row = self._pointers.device, self._tables.shapes[index]
        plan, context = self._tables.plans[row[lt.PLAN0] + size], self._tables.contexts[0]
        self._device.check(lt.launch(context, plan, table, table + 8 * size, table + 16 * size, 0))

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Fill and upload the pointers, replay."""
        device, mode, index, count = self._device, self._mode, batch.shape_index, len(batch)
        sizes = self._sizes[index]
        size = int(sizes[np.searchsorted(sizes, count)])
        staged = self._pointers.stage()
        start_ns = device.enter(index, count)
        fill_pointers(batch.words, self._tables.shapes[index], count, staged)
        if size > count:
            pad_pointers(staged, count, size, self._scratch.data.ptr)
            mode.padded_commands += size - count
        self._pointers.upload(3 * size)
        mode.costs_ns["update"] = mode.costs_ns.get("update", 0) + time.monotonic_ns() - start_ns
        self._graphs.replay(self._graphs.get((index, size)))
        device.leave(batch, slice(0, count), Strategy.graph, flush_ns, start_ns, UPLOAD_CALLS, 24 * size)
        mode.graph_replays = (mode.graph_replays or 0) + 1

    def close(self) -> None:
        """Destroy the graphs."""
        self._graphs.close()


class StepGraphs:
    """Graphs of whole steps. `device`: a CudaDevice. `bound`: most at a time, if no more copies of weights."""

    def __init__(self, device: Any, limits: Mapping[ShapeKey, int], mode: Mode, bound: int) -> None:
        self._device, self._mode = device, mode
        self._launched = CoalescedSteps(device, limits)
        self._steps = self._launched.steps
        self._bound = most_kept(self._steps.stream, bound)
        self._graphs = Graphs(device.stream, self._bound, mode.costs_ns)

    def load(self) -> None:
        """Nothing: replays would write where a run's outputs are to be looked for."""

    def capture_likely(self) -> None:
        """Ahead of time, as many as are kept."""
        for batch in self._steps.likely(self._bound):
            self._graph(batch)

    def _graph(self, batch: StepBatch) -> Any:
        key = self._steps.key_of(batch)
        found = self._graphs.get(key)
        if found is None:
            family = batch.rows, batch.size, int(batch.words[0, W_MN])
            found = self._graphs.make(key, family, lambda: self._steps.record(batch))
        return found

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """One replay for all requests. Steps that come once are launched as they are.

        Such are prompts, and first tokens, whose inputs lie anywhere in the table.
        """
        graph = self._graphs.get(self._steps.key_of(batch))
        columns = int(batch.words[0, W_MN] >> HIGH)
        if graph is None and (columns > 1 or self._steps.runs(batch, 1) > 1):
            self._launched.submit(batch, flush_ns)
        else:
            self._replay(graph or self._graph(batch), batch, flush_ns)

    def _replay(self, graph: Any, batch: StepBatch, flush_ns: int) -> None:
        start_ns = self._device.enter(-1, batch.size)
        self._graphs.replay(graph)
        self._device.leave(batch, slice(0, len(batch.words)), Strategy.graph, flush_ns, start_ns)
        self._mode.graph_replays = (self._mode.graph_replays or 0) + 1

    def close(self) -> None:
        """Destroy the graphs."""
        self._graphs.close()
