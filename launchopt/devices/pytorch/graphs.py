"""Capture steps by torch.cuda.CUDAGraph, and replay them.

All graphs share one memory pool, since a graph needs its temporary tensors only during its own replay. The graph of a
step has fixed addresses. Before a capture, the operators of a step must run once. Likely steps are captured before any
run. Other steps are captured once the warm-up run has launched them; a step that comes only later is captured when it
is submitted for the second time. Of many prompts without attention, those of one length share a graph, which has memory
of its own (`prompts.py`). Operators around its replay copy input and outputs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import torch

from launchopt.batching.batch import SEVERAL, StepBatch
from launchopt.command import Records
from launchopt.devices.base import Device
from launchopt.devices.prepared import Counters
from launchopt.devices.pytorch.calls import Shared, Step, shared
from launchopt.devices.pytorch.prompts import are_shared
from launchopt.devices.pytorch.step import Kind, Maker
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

    A bounded number of graphs is kept; the least recently replayed one is dropped, unless all steps are prompts: each
    comes once a run, and would be dropped before it comes again. bound: that number. If the run uses more copies of
    the weights than `bound`, one graph per copy is kept.
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
        self._is_shared, self._replaces = are_shared(self.stream, bound), self.stream.decode_kind >= 0
        self._private: dict[tuple[int, int, int], Step] = {}  # by rows, columns and copy of the weights
        self._captures_at_once = False
        self.prepare_likely(most)
        self.start()
        self._record_likely(most)

    def prepare_likely(self, most: int) -> None:
        """Run likely steps once."""
        for batch in examples(self.stream, most):
            self.start()
            for _, step in self.of(batch):
                self.run(step.shared.step if step.shared else step)

    def made(self, kind: Kind, records: Records) -> Step:
        """Return a new step, and the one that serves it, if prompts share graphs."""
        step = super().made(kind, records)
        if self._is_shared:
            key = len(records), step.columns, int(records["slot_a"][self._first_weight, 0])
            if key not in self._private:
                site = replace(self.site, is_private=True)
                self._private[key] = Maker(site, kind, records, self._first_input).step
            step.shared = shared(self._private[key], step)
        return step

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
            if step.shared:
                self._replay_shared(part, step.shared, flush_ns)
                continue
            graph = self._kept.get(step)
            if graph is not None:
                self._kept.move_to_end(step)
            elif step.was_run and self._may_record:
                graph = self._record(step)
            else:
                self.launch(part, step, flush_ns)
                if self._captures_at_once and self._may_record:
                    self._record(step)
                continue
            start_ns = device.enter(SEVERAL, part.size)
            graph.replay()
            device.leave(part, slice(0, len(part.words)), STRATEGY, flush_ns, start_ns)
            self.counters.replayed()

    @property
    def _may_record(self) -> bool:
        return self._replaces or len(self._kept) < self._bound

    def _replay_shared(self, part: StepBatch, shared: Shared, flush_ns: int) -> None:
        """Replay the graph of a step in memory of its own, for a prompt."""
        device, graph = self._device, self._kept.get(shared.step)
        if graph is None:
            if not shared.step.was_run:
                self.run(shared.step)  # each operator must run before a capture
            graph = self._record(shared.step)
        start_ns = device.enter(SEVERAL, part.size)
        shared.fetch()
        graph.replay()
        shared.store()
        words = slice(0, len(part.words))
        device.leave(part, words, STRATEGY, flush_ns, start_ns, shared.copies, shared.copied_bytes)
        self.counters.replayed()

    def close(self) -> None:
        """Drop the graphs."""
        self._kept.clear()
