"""Capture steps by torch.cuda.CUDAGraph, and replay them.

All graphs share one memory pool, since a graph needs its temporary tensors only during its own replay. The graph of a
step has fixed addresses. Before a capture, the operators of a step must run once. Likely steps are captured before any
run. Other steps are captured once the warm-up run has launched them; a step that comes only later is captured when it
is submitted for the second time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

import torch

from launchopt.batching.batch import SEVERAL, StepBatch
from launchopt.devices.base import Device
from launchopt.devices.prepared import Counters
from launchopt.devices.pytorch.calls import Step
from launchopt.devices.pytorch.steps import STRATEGY, Steps, example, examples, launch
from launchopt.devices.pytorch.views import TorchArenas
from launchopt.devices.steps.likely import likely_steps, most_kept


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

    def __init__(
        self,
        arenas: TorchArenas,
        device: Device,
        most: int,
        bound: int,
        unwritten: frozenset[str],
        is_apart: bool = False,
    ) -> None:
        super().__init__(arenas, device, unwritten, is_apart)
        self.counters = Counters(graph_replays=0)
        self._bound, self._graphs = most_kept(self.stream, bound), Graphs(self.counters)
        self._kept: OrderedDict[Step, torch.cuda.CUDAGraph] = OrderedDict()
        self._captures_at_once = False
        self.prepare_likely(most)
        self.start()
        self._record_likely(most)

    def prepare_likely(self, most: int) -> None:
        """Run likely steps once."""
        for batch in examples(self.stream, most):
            self.start()
            for _, step in self.of(batch):
                self.run(step)

    def run(self, step: Step) -> None:
        """Make all calls of a step."""
        step.run()

    def launch(self, part: StepBatch, step: Step, flush_ns: int) -> None:
        """Launch a step that has no graph."""
        launch(self._device, part, step, flush_ns)

    def _record_likely(self, most: int) -> None:
        """Capture the likely steps, as many as are kept."""
        stream = self.stream
        if stream.decode_kind < 0:
            return
        for requests, replica in likely_steps(stream, most, self._bound):
            for _, step in self.of(example(stream, stream.decode_kind, range(requests), replica)):
                self._record(step)

    def _record(self, step: Step) -> torch.cuda.CUDAGraph:
        graph = self._kept[step] = self._graphs.make(lambda: self.run(step))
        if len(self._kept) > self._bound:
            self._kept.popitem(last=False)
        return graph

    def start(self, is_warm_up: bool = False) -> None:
        """Begin a run. A warm-up run captures each step after its first launch."""
        super().start()
        self._captures_at_once = is_warm_up

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """Replay one graph per part of the batch. A step without a graph that never ran is launched without one."""
        device = self._device
        for part, step in self.of(batch):
            graph = self._kept.get(step)
            if graph is not None:
                self._kept.move_to_end(step)
            elif step.was_run:
                graph = self._record(step)
            else:
                self.launch(part, step, flush_ns)
                if self._captures_at_once:
                    self._record(step)
                continue
            start_ns = device.enter(SEVERAL, part.size)
            graph.replay()
            device.leave(part, slice(0, len(part.words)), STRATEGY, flush_ns, start_ns)
            self.counters.replayed()

    def close(self) -> None:
        """Drop the graphs."""
        self._kept.clear()
