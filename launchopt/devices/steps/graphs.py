"""CUDA graphs of batches and of whole steps.

The graph of a batch is one pointer-array GEMM of a fixed size: a power of two, or the largest batch. It reads pointers
from a table that is filled and uploaded between replays. A smaller batch is padded with copies of its first command,
whose outputs go to scratch memory.

The graph of a step holds all launches of the step. It is captured for one set of requests and one copy of the weights.
If another set replaces it, the addresses in the graph are updated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import cupy
import numpy as np

from launchopt.batching.batch import SEVERAL, Batch, StepBatch
from launchopt.command import RecordWord, ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import ShapeColumn
from launchopt.devices.cublaslt.pointer_loops import fill_pointers, pad_pointers
from launchopt.devices.cublaslt.pointers import Pointers
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cublaslt.tuning import by_pointers
from launchopt.devices.cuda.graph_cache import Executable, Graphs
from launchopt.devices.prepared import Counters
from launchopt.devices.steps.coalesced import COALESCED, CoalescedSteps
from launchopt.devices.steps.fusions.makers import NO_MAKERS, Makers
from launchopt.devices.steps.likely import most_kept, padded_sizes
from launchopt.recording.launch_rows import Strategy
from launchopt.records import columns_of
from launchopt.stack import Stack

UPLOAD_CALLS = 1  # calls besides the replay


class BatchGraphs:
    """One graph for each shape and padded size of a batch."""

    def __init__(self, device: GpuDevice, limits: Mapping[ShapeKey, int]) -> None:
        self._device, self._tables = device, device.base.fork()
        self.counters = Counters(graph_replays=0)
        self._sizes = [np.array(padded_sizes(limit)) for limit in limits.values()]
        self._pointers = Pointers(device.stream, 3 * max(limits.values()))
        widest = max(shape.n * row for shape in limits for row in device.row_elements(shape)[2:])
        self._scratch = cupy.empty(widest * device.work.dtype.itemsize, np.uint8)
        graphs = sum(map(len, self._sizes))
        self._graphs = Graphs(device.stream, graphs, self.counters)
        for index, sizes in enumerate(self._sizes):
            self._tables.add(index, sizes.tolist(), partial(self._plan, index))
        for key in ((index, size) for index, sizes in enumerate(self._sizes) for size in sizes.tolist()):
            self._graphs.make(key, key, partial(self._record, *key))
        self.load()

    def load(self) -> None:
        """Replay every graph once, since loading the kernels of other modes may have evicted it from the GPU."""
        for index, sizes in enumerate(self._sizes):
            for size in sizes.tolist():
                self._load(index, size)

    def _load(self, index: int, size: int) -> None:
        """Replay one graph with outputs to scratch memory. This also loads its kernel, and the loop that pads."""
        staged, row, scratch = self._pointers.stage(), self._tables.shapes[index], self._scratch.data.ptr
        staged[:3] = row[ShapeColumn.BASE_A], row[ShapeColumn.BASE_B], scratch
        pad_pointers(staged, 1, size, scratch)
        self._pointers.upload(3 * size)
        self._replay(index, size)
        self._device.synchronize()

    def _replay(self, index: int, size: int) -> None:
        graph = self._graphs.get((index, size))
        assert graph is not None
        self._graphs.replay(graph)

    def _plan(self, index: int, size: int) -> Row:
        return by_pointers(self._device, index, size, int(self._sizes[index][-1]))

    def _record(self, index: int, size: int) -> None:
        table, row = self._pointers.device, self._tables.shapes[index]
        plan, context = self._tables.plans[row[ShapeColumn.PLAN0] + size], self._tables.contexts[0]
        self._device.check(lt.launch(context, plan, table, table + 8 * size, table + 16 * size, 0))

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Fill and upload the table of pointers, then replay the graph of the padded size."""
        device, counters, index, count = self._device, self.counters, batch.shape_index, len(batch)
        sizes = self._sizes[index]
        size = int(sizes[np.searchsorted(sizes, count)])
        staged = self._pointers.stage()
        start_ns = device.enter(index, count)
        fill_pointers(batch.words, self._tables.shapes[index], count, staged)
        if size > count:
            pad_pointers(staged, count, size, self._scratch.data.ptr)
        self._pointers.upload(3 * size)
        counters.spend("update", time.monotonic_ns() - start_ns)
        self._replay(index, size)
        device.leave(batch, slice(0, count), Strategy.graph, flush_ns, start_ns, UPLOAD_CALLS, 24 * size)
        counters.replayed(padded=size - count)

    def close(self) -> None:
        """Destroy the graphs."""
        self._graphs.close()


class StepGraphs:
    """Graphs of whole steps. It keeps `bound` graphs, or one per copy of the weights if the run uses more copies."""

    def __init__(
        self,
        device: GpuDevice,
        limits: Mapping[ShapeKey, int],
        bound: int,
        stack: Stack = COALESCED,
        others: Makers = NO_MAKERS,
    ) -> None:
        self._device, self.counters = device, Counters(graph_replays=0)
        self._launched = CoalescedSteps(device, limits, stack, others, self.counters)
        self._steps, self.left_out = self._launched.steps, self._launched.left_out
        self._bound = most_kept(self._steps.stream, bound)
        self._graphs = Graphs(
            device.stream, self._bound, self.counters, device.split is None or device.split.updates_graphs
        )

    def capture_likely(self) -> None:
        """Capture as many likely steps as are kept."""
        for batch in self._steps.likely(self._bound):
            self._graph(batch)

    def _graph(self, batch: StepBatch) -> Executable:
        key = self._steps.key_of(batch)
        found = self._graphs.get(key)
        if found is None:
            family = batch.rows, batch.size, int(batch.words[0, RecordWord.MN])
            found = self._graphs.make(key, family, lambda: self._steps.record(batch))
        return found

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """Replay one graph for all requests of the batch, or launch a step that occurs only once without a graph.

        Such steps are prompts, and first tokens, whose inputs are scattered over the embedding table.
        """
        graph = self._graphs.get(self._steps.key_of(batch))
        columns = int(columns_of(batch.words, 0))
        if graph is None and (columns > 1 or self._steps.runs(batch, 1) > 1):
            self._launched.submit(batch, flush_ns)
        else:
            self._replay(graph or self._graph(batch), batch, flush_ns)

    def _replay(self, graph: Executable, batch: StepBatch, flush_ns: int) -> None:
        start_ns = self._device.enter(SEVERAL, batch.size)
        self._graphs.replay(graph)
        self._device.leave(batch, slice(0, len(batch.words)), Strategy.graph, flush_ns, start_ns)
        self.counters.replayed()

    def close(self) -> None:
        """Destroy the graphs."""
        self._graphs.close()
