"""Batches of independent GEMMs: one torch.bmm for each evenly spaced run of commands, in place.

Weights and inputs are read from their slots, and outputs written to theirs, through views whose strides are the
distances between the commands of a run. Without a graph, each run is a launch. A graph holds all runs of a batch. It
has the addresses of their weights, which come again, since a workload cycles over its weights. Inputs and outputs are
in scratch memory; operators around the replay copy them from and to their slots.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import torch

from launchopt.batching.batch import Batch
from launchopt.command import Records, ShapeKey, as_records
from launchopt.devices.base import Device
from launchopt.devices.prepared import Counters
from launchopt.devices.pytorch.commands import stacks
from launchopt.devices.pytorch.graphs import Graphs
from launchopt.devices.pytorch.steps import STRATEGY
from launchopt.devices.pytorch.views import Tensor, TorchArenas
from launchopt.devices.runs import run_end

FEWEST_RUNS = 4  # fewest runs of a batch for which a replay and two copies cost less than a launch for each run
MOST_SEEN = 4096  # most batches that are remembered as seen
Multiply = Callable[[Tensor, Tensor, Tensor], object]  # (weights [count, m, k], inputs, outputs)


def multiply(weights: Tensor, inputs: Tensor, outputs: Tensor) -> None:
    """Write inputs @ weights.T of each command to its output."""
    torch.bmm(inputs, weights.transpose(1, 2), out=outputs)


def runs(batch: Batch, moves: tuple[int, int, int]) -> list[slice]:
    """Return the evenly spaced runs of a batch.

    moves: slots of A, B and C from one command of a run to the next.
    """
    found, first = list[slice](), 0
    while first < len(batch):
        stop = int(run_end(batch.words, first, *moves))
        found.append(slice(first, stop))
        first = stop
    return found


def spaced(stack: Tensor, slot: int, move: int, count: int) -> Tensor:
    """Return a view of `count` slots of a stack, [slots, rows, cols], from `slot` on, `move` slots apart."""
    return stack[slot : slot + move * (count - 1) + 1 : move] if move else stack[slot].expand(count, -1, -1)


class Batches:
    """Launches batches of the workload stream that a device has open. limits: most commands of a batch, by shape."""

    def __init__(self, arenas: TorchArenas, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        self._device, strides = device, arenas.work.strides()
        self._limits = list(limits.values())
        self._moves = [strides[shape] for shape in limits]
        self._stacks = [stacks(arenas, shape) for shape in limits]
        self._functions = [self.function(shape) for shape in limits]
        for index in range(len(self._limits)):
            for count in sorted({1, self._most_even(index)}, reverse=True):
                self.first_call(self._functions[index], self._operands(index, (0, 0, 0), count))

    def function(self, shape: ShapeKey) -> Multiply:
        """Return the function that multiplies runs of a shape."""
        return multiply

    def first_call(self, function: Multiply, operands: list[Tensor]) -> None:
        """Call a function for the first time with a run of this length."""
        function(*operands)

    def _most_even(self, index: int) -> int:
        """Return the number of commands of the longest run: a batch, or as many as fit into the arenas."""
        moving = zip(self._stacks[index], self._moves[index], strict=True)
        return min(self._limits[index], *(1 + (len(each) - 1) // move for each, move in moving if move))

    def _operands(self, index: int, slots: tuple[int, ...], count: int) -> list[Tensor]:
        """Return views of weights, inputs and outputs of a run whose first command has these slots."""
        each = zip(self._stacks[index], slots, self._moves[index], strict=True)
        return [spaced(stack, slot, move, count) for stack, slot, move in each]

    def start(self, is_warm_up: bool = False) -> None:
        """Begin a run."""

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Make one launch for each run of the batch."""
        self.launch_runs(batch, runs(batch, self._moves[batch.shape_index]), flush_ns)

    def launch_runs(self, batch: Batch, found: list[slice], flush_ns: int) -> None:
        """Make one launch for each of the runs `found`."""
        device, index = self._device, batch.shape_index
        records, function = as_records(batch.words), self._functions[index]
        for run in found:
            count = run.stop - run.start
            start_ns = device.enter(index, count)
            slots = tuple(int(records[f"slot_{role}"][run.start]) for role in "abc")
            function(*self._operands(index, slots, count))
            device.leave(batch, run, STRATEGY, flush_ns, start_ns)

    def close(self) -> None:
        """Drop the views."""
        self._stacks.clear()


class GraphBatches(Batches):
    """Replays a graph for a batch of many runs whose weights were seen before.

    At most `bound` graphs are kept; later batches are launched run by run.
    """

    def __init__(self, arenas: TorchArenas, device: Device, limits: Mapping[ShapeKey, int], bound: int) -> None:
        super().__init__(arenas, device, limits)
        self.counters = Counters(graph_replays=0)
        self._bound, self._graphs = bound, Graphs(self.counters)
        self._kept: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._seen: set[Hashable] = set()
        self._captures_at_once = False
        self._inputs, self._products = (
            [torch.empty(most, *of[i].shape[1:], dtype=arenas.dtype, device=arenas.device) for most, of in self._each()]
            for i in (1, 2)
        )

    def _each(self) -> Iterator[tuple[int, tuple[Tensor, Tensor, Tensor]]]:
        return zip(self._limits, self._stacks, strict=True)

    def start(self, is_warm_up: bool = False) -> None:
        """Begin a run. A warm-up run captures each batch after its first launch."""
        self.counters.start()
        self._captures_at_once = is_warm_up

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Replay the graph of the batch, or make one launch for each run."""
        index = batch.shape_index
        found = runs(batch, self._moves[index])
        if len(found) < FEWEST_RUNS:
            self.launch_runs(batch, found, flush_ns)
            return
        records = as_records(batch.words)
        key = index, records["slot_a"].tobytes()
        graph = self._kept.get(key)
        if graph is None and key in self._seen and len(self._kept) < self._bound:
            graph = self._capture(key, index, records)
        if graph is not None:
            self._replay(graph, batch, records, flush_ns)
            return
        self.launch_runs(batch, found, flush_ns)
        if self._captures_at_once and len(self._kept) < self._bound:
            self._capture(key, index, records)
        elif len(self._seen) < MOST_SEEN:
            self._seen.add(key)

    def _parts(self, index: int, role: int, records: Records) -> list[tuple[slice, Tensor]]:
        """Return the evenly spaced parts of a batch's operands of one role, 0 to 2 for A to C, with a view of each."""
        slots, move = records[f"slot_{'abc'[role]}"].astype(np.int64), self._moves[index][role]
        bounds = [0, *(np.flatnonzero(np.diff(slots) != move) + 1).tolist(), len(slots)]
        stack = self._stacks[index][role]
        return [(slice(i, stop), spaced(stack, int(slots[i]), move, stop - i)) for i, stop in pairwise(bounds)]

    def _capture(self, key: Hashable, index: int, records: Records) -> torch.cuda.CUDAGraph:
        weights = self._parts(index, 0, records)

        def record() -> None:
            for own, each in weights:
                multiply(each, self._inputs[index][own], self._products[index][own])

        record()  # each operator must run once before a capture
        graph = self._kept[key] = self._graphs.make(record)
        return graph

    def _replay(self, graph: torch.cuda.CUDAGraph, batch: Batch, records: Records, flush_ns: int) -> None:
        device, index, count = self._device, batch.shape_index, len(batch)
        start_ns = device.enter(index, count)
        inputs, products = self._inputs[index], self._products[index]
        given, taken = (self._parts(index, role, records) for role in (1, 2))
        for own, each in given:
            inputs[own].copy_(each)
        graph.replay()
        for own, each in taken:
            each.copy_(products[own])
        copied = inputs[:count].nbytes + products[:count].nbytes
        device.leave(batch, slice(0, count), STRATEGY, flush_ns, start_ns, len(given) + len(taken), copied)
        self.counters.replayed()

    def close(self) -> None:
        """Drop the graphs and their memory."""
        self._kept.clear()
        self._inputs.clear()
        self._products.clear()
        super().close()
