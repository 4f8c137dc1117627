"""Capture steps and batches by torch.cuda.CUDAGraph, and replay them.

All graphs share one memory pool, since a graph needs its temporary tensors only during its own replay. The graph of a
step has fixed addresses. A step is captured when it is submitted for the second time, since its operators must run once
before a capture. The graph of a batch has a fixed size. It finds its operands through index tensors, which are filled
between replays.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

import torch

from launchopt.batching.batch import SEVERAL, Batch, StepBatch
from launchopt.command import ShapeKey
from launchopt.devices.base import Counters, Device
from launchopt.devices.pytorch.batches import INDEX_BYTES_A_COMMAND, Indices
from launchopt.devices.pytorch.commands import stacks
from launchopt.devices.pytorch.step import Step
from launchopt.devices.pytorch.steps import STRATEGY, Steps, example, examples, launch
from launchopt.devices.pytorch.views import Tensor, TorchArenas
from launchopt.devices.steps.likely import likely_steps, most_kept, padded_sizes


class Graphs:
    """Makes graphs. It adds the ns of the capture, and of the instantiation if PyTorch separates it, to `counters`."""

    def __init__(self, counters: Counters) -> None:
        self._counters, self._pool = counters, torch.cuda.graph_pool_handle()

    def make(self, record: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Return a graph of the operators that `record` calls. Each operator must have run before."""
        start_ns = time.monotonic_ns()
        try:
            graph, is_kept = torch.cuda.CUDAGraph(keep_graph=True), True
        except TypeError:  # before PyTorch 2.8
            graph, is_kept = torch.cuda.CUDAGraph(), False
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            record()
        finally:
            graph.capture_end()
        self._counters.spend("capture", time.monotonic_ns() - start_ns)
        if is_kept:
            start_ns = time.monotonic_ns()
            graph.instantiate()
            self._counters.spend("instantiate", time.monotonic_ns() - start_ns)
        return graph


class GraphSteps(Steps):
    """Steps of the workload stream that a device has open, replayed as graphs.

    A bounded number of graphs is kept; the least recently replayed one is dropped. bound: that number. If the run uses
    more copies of the weights than `bound`, one graph per copy is kept.
    """

    def __init__(self, arenas: TorchArenas, device: Device, most: int, bound: int) -> None:
        super().__init__(arenas, device)
        self.counters = Counters(graph_replays=0)
        self._bound, self._graphs = most_kept(self.stream, bound), Graphs(self.counters)
        self._kept: OrderedDict[Step, torch.cuda.CUDAGraph] = OrderedDict()
        for batch in examples(self.stream, most):
            self.start()
            for _, step in self.of(batch):
                step.run()
        self.start()
        self._record_likely(most)

    def _record_likely(self, most: int) -> None:
        """Capture the likely steps, as many as are kept."""
        stream = self.stream
        if stream.decode_kind < 0:
            return
        for requests, replica in likely_steps(stream, most, self._bound):
            for _, step in self.of(example(stream, stream.decode_kind, range(requests), replica)):
                self._record(step)

    def _record(self, step: Step) -> torch.cuda.CUDAGraph:
        graph = self._kept[step] = self._graphs.make(step.run)
        if len(self._kept) > self._bound:
            self._kept.popitem(last=False)
        return graph

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """Replay one graph per part of the batch. A step without a graph that never ran is launched by operators."""
        device = self._device
        for part, step in self.of(batch):
            graph = self._kept.get(step)
            if graph is not None:
                self._kept.move_to_end(step)
            elif step.was_run:
                graph = self._record(step)
            else:
                launch(device, part, step, flush_ns)
                continue
            start_ns = device.enter(SEVERAL, part.size)
            graph.replay()
            device.leave(part, slice(0, len(part.words)), STRATEGY, flush_ns, start_ns)
            self.counters.replayed()

    def close(self) -> None:
        """Drop the graphs."""
        self._kept.clear()


class _Sized:
    """The operators for batches of one shape and size: gather, multiply and scatter."""

    def __init__(self, of_shape: tuple[Tensor, Tensor, Tensor], buffers: list[Tensor], at: Tensor, size: int) -> None:
        self.size, self._at, self._operands = size, at[:, :size], of_shape
        self._buffers = [
            buffer[: size * stack[0].numel()].view(size, *stack.shape[1:])
            for buffer, stack in zip(buffers, of_shape, strict=True)
        ]
        # Bytes gathered and scattered per command.
        self.copied_bytes = sum(buffer[0].nbytes for buffer in self._buffers)

    def multiply(self) -> None:
        """Gather the operands that the index tensors name, and multiply them into scratch memory."""
        weights, inputs, products = self._buffers
        for i, buffer in enumerate((weights, inputs)):
            torch.index_select(self._operands[i], 0, self._at[i], out=buffer)
        torch.bmm(inputs, weights.transpose(1, 2), out=products)

    def scatter(self, count: int) -> None:
        """Copy the first `count` products to their outputs."""
        self._operands[2].index_copy_(0, self._at[2, :count], self._buffers[2][:count])

    def all(self) -> None:
        """Multiply, and copy all products to their outputs."""
        self.multiply()
        self.scatter(self.size)


class GraphBatches:
    """Two graphs per shape and size of a batch: one scatters all outputs, the other, for padded batches, none."""

    def __init__(self, arenas: TorchArenas, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        self._device, self.counters = device, Counters(graph_replays=0)
        graphs = Graphs(self.counters)
        self._indices = Indices(arenas, max(limits.values()))
        self._limits = list(limits.values())
        operands = [stacks(arenas, shape) for shape in limits]
        most = [
            max(limit * of_shape[i][0].numel() for limit, of_shape in zip(self._limits, operands, strict=True))
            for i in range(3)
        ]
        buffers = [torch.empty(elements, dtype=arenas.dtype, device=arenas.device) for elements in most]
        self._sized: dict[tuple[int, int], _Sized] = {}
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph]] = {}
        for index, limit in enumerate(self._limits):
            for size in padded_sizes(limit):
                sized = self._sized[index, size] = _Sized(operands[index], buffers, self._indices.device, size)
                sized.all()  # run the operators once before they are captured; all indices are 0
                self._graphs[index, size] = graphs.make(sized.all), graphs.make(sized.multiply)

    def start(self) -> None:
        """Do nothing: a run changes no state."""

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Upload the slots and replay a graph; scatter the outputs of a padded batch by a separate operator."""
        device, counters, index, count = self._device, self.counters, batch.shape_index, len(batch)
        size = min(self._limits[index], 1 << (count - 1).bit_length())
        sized, (whole, filled) = self._sized[index, size], self._graphs[index, size]
        start_ns = device.enter(index, count)
        self._indices.upload(batch, size)
        counters.spend("update", time.monotonic_ns() - start_ns)
        if size == count:
            whole.replay()
        else:
            filled.replay()
            sized.scatter(count)
        copied = INDEX_BYTES_A_COMMAND * count + size * sized.copied_bytes
        device.leave(batch, slice(0, count), STRATEGY, flush_ns, start_ns, 1 + (size > count), copied)
        counters.replayed(padded=size - count)

    def close(self) -> None:
        """Drop the graphs and their memory."""
        self._graphs.clear()
        self._sized.clear()
        self._indices.close()
