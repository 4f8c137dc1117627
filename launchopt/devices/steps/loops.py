"""Loops of steps: one launch generates several tokens of each request of a batch.

The driver issues the steps of these tokens together (`Schedule.together`), so that a batch holds all their commands.
The graph of a loop holds the launches of one step, and the end of a step: sampling and feedback on the GPU
(`feedback.step_loop`). It is captured for one set of requests. The GPU repeats it for all steps of the batch
(`cuda.loop_graphs`). The host learns of each token as soon as the GPU has stored it.

The steps of a loop must use the same copy of the weights, and their operands must be evenly spaced in memory. Other
batches are launched step by step as in mode=coalesced. So are prompts, and single steps that find no space for a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from launchopt.batching.batch import SEVERAL, StepBatch
from launchopt.command import ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cuda.graph_cache import Executable
from launchopt.devices.cuda.loop_graphs import LoopGraphs
from launchopt.devices.feedback.step_loop import StepLoopEnd
from launchopt.devices.prepared import Counters
from launchopt.devices.steps.coalesced import CoalescedSteps
from launchopt.devices.steps.fusions.makers import NO_MAKERS, Makers
from launchopt.devices.steps.keys import are_repeated
from launchopt.errors import ConfigError
from launchopt.recording.launch_rows import Strategy
from launchopt.records import columns_of
from launchopt.stack import Stack, Submit

BEGIN_CALLS = 1  # calls besides the launch of the graph


class StepLoops:
    """Launches the loops of a device's workload, whose steps are launched as `stack` says. It keeps `bound` graphs."""

    def __init__(
        self,
        device: GpuDevice,
        limits: Mapping[ShapeKey, int],
        bound: int,
        stack: Stack,
        others: Makers = NO_MAKERS,
    ) -> None:
        self._device, self.counters = device, Counters(graph_replays=0)
        self._launched = CoalescedSteps(device, limits, stack, others, self.counters)
        self._steps, self.left_out = self._launched.steps, self._launched.left_out
        self._bound = bound
        feedback = device.launch_feedback
        if feedback is None:
            raise ConfigError("sampling.where", "cpu", "a loop of steps samples on the GPU: must be auto or gpu")
        is_while = stack.submit is Submit.graph_loop
        self._end = StepLoopEnd(device.stream, device.work.dtype, feedback, is_while)
        self._graphs = LoopGraphs(device.stream, bound, self.counters, is_while)

    def capture_likely(self) -> None:
        """Capture as many likely loops as are kept."""
        for batch in self._steps.likely(self._bound):
            self._make(batch)

    def _make(self, step: StepBatch) -> Executable:
        return self._graphs.make(self._steps.key_of(step), partial(self._record, step))

    def _record(self, step: StepBatch, handle: int) -> None:
        self._steps.record(step)
        self._end.end_step(step.size, handle)

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch all steps of a batch as one loop, or step by step if they cannot be one."""
        steps = self._steps.stream.steps_of(batch.rows)
        first = batch.step(0, batch.rows // steps)
        graph = self._graphs.get(self._steps.key_of(first))
        if steps > 1 and not self._repeats(batch, first, steps):
            graph = None
        elif graph is None and self._is_worth_a_graph(first, steps):
            graph = self._make(first)
        arguments = 0 if graph is None else self._device.stage_feedback(batch, steps)
        if graph is not None and arguments:
            self._loop(graph, batch, steps, arguments, flush_ns)
        else:
            self._one_by_one(batch, steps, flush_ns)

    def _is_worth_a_graph(self, first: StepBatch, steps: int) -> bool:
        """Return whether to capture a step. A single one, such as a first token, may not replace another graph."""
        is_even = int(columns_of(first.words, 0)) == 1 and self._steps.runs(first, 1) == 1
        return is_even and (steps > 1 or not self._graphs.is_full)

    def _repeats(self, batch: StepBatch, first: StepBatch, steps: int) -> bool:
        known = self._steps.keys.known(first)
        return bool(are_repeated(batch.words, batch.size, steps, known.probe, known.words))

    def _loop(self, graph: Executable, batch: StepBatch, steps: int, arguments: int, flush_ns: int) -> None:
        start_ns = self._device.enter(SEVERAL, batch.size)
        self._end.begin(arguments, steps)
        self._graphs.launch(graph)
        self._device.leave(batch, slice(0, len(batch.words)), Strategy.graph, flush_ns, start_ns, BEGIN_CALLS)
        self.counters.replayed()

    def _one_by_one(self, batch: StepBatch, steps: int, flush_ns: int) -> None:
        for number in range(steps):
            step = batch.step(number, batch.rows // steps)
            self._launched.submit(step, flush_ns)
            if number < steps - 1:
                self._device.end_step(step.words[-step.size :])

    def close(self) -> None:
        """Destroy the graphs."""
        self._graphs.close()
