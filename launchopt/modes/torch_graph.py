"""torch_graph: one replay of a torch.cuda.CUDAGraph per step, or per batch.

Steps: a graph holds the operators of mode=torch_eager on the same operands. So it is bound to addresses: to a set of
requests and a copy of the weights. Graphs that are likely to be needed are recorded before the clock starts, and others
in the warm-up run. A step that comes only later is recorded when it comes for the second time. At most mode.cached=64
graphs are kept, or one per copy of the weights if there are more copies. The graph replayed longest ago is dropped
first. A launch after the graph samples and feeds results back, as in other modes. Of more prompts than graphs, without
attention, those of one length share a graph in memory of its own: an operator before it copies the prompt's input, and
one behind it all outputs.

Independent commands: each evenly spaced run of a batch is one torch.bmm in place. A batch of up to three runs is a
launch for each run, since its outputs, and thus its addresses, do not come again. A graph holds the runs of a batch of
more, which reads its weights in place; an operator before it copies its inputs, and one behind it its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launchopt.batching.batch import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device
from launchopt.devices.prepared import Counters
from launchopt.devices.pytorch.prompts import shared_bytes
from launchopt.modes.base import Mode
from launchopt.modes.options import KeepsGraphs
from launchopt.modes.torch_eager import UNWRITTEN, PreparedTorchSteps, TorchPrepared, torch_bytes
from launchopt.streams.chains.chain import Stream

if TYPE_CHECKING:
    from launchopt.devices.pytorch.batches import GraphBatches
    from launchopt.devices.pytorch.graphs import GraphSteps
    from launchopt.devices.pytorch.views import TorchArenas


@dataclass(slots=True)
class Options(KeepsGraphs):
    """Options of mode=torch_graph."""


class TorchGraph(Mode):
    """One replay of a CUDA graph of PyTorch's operators per step, or per batch."""

    name = "torch_graph"
    prefers_steps = True
    devices = ("cuda",)
    packages = ("torch",)
    extra = "torch"
    quantised = ()
    unwritten = UNWRITTEN
    options: Options = Options()

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Return the bytes that PyTorch allocates, and those of copied inputs and outputs."""
        if stream.has_steps:
            return torch_bytes(stream, limits) + shared_bytes(stream, cls.options.cached)
        copied = sum(limit * shape.n * (shape.m + shape.k) for shape, limit in limits.items())
        return torch_bytes(stream, limits) + copied * stream.dtype.itemsize

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> TorchPrepared:
        """Record the graphs that are likely to be needed."""
        from launchopt.devices.pytorch.batches import GraphBatches
        from launchopt.devices.pytorch.graphs import GraphSteps
        from launchopt.devices.pytorch.views import TorchArenas

        arenas, most, cached = TorchArenas(device), max(limits.values()), self.options.cached
        if not arenas.work.has_steps:
            return _PreparedBatches(self, device, arenas, GraphBatches(arenas, device, limits, cached))
        steps = GraphSteps(arenas, device, most, cached, self.unwritten_of(device.work))
        return PreparedGraphSteps(self, device, arenas, steps)


class _PreparedBatches(TorchPrepared):
    """Replays graphs of batches, or launches their runs."""

    settings: tuple[str, ...] = ("eager", "captured in a CUDA graph")

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, graphs: GraphBatches) -> None:
        super().__init__(mode, device, arenas)
        self._graphs = graphs

    def start(self, warm_up: bool = False) -> None:
        """Begin a run."""
        super().start(warm_up)
        self._graphs.start(warm_up)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Replay the graph of the batch, or launch its runs."""
        self._graphs.submit(batch, flush_ns)

    def counters(self) -> Counters:
        """Return the times and counts of the graphs."""
        return self._graphs.counters

    def close(self) -> None:
        """Drop graphs and views."""
        self._graphs.close()
        super().close()


class PreparedGraphSteps(PreparedTorchSteps):
    """Replays graphs of whole steps."""

    settings: tuple[str, ...] = ("eager", "SDPA", "static cache", "captured in a CUDA graph")

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, graphs: GraphSteps) -> None:
        super().__init__(mode, device, arenas, graphs)
        self._graphs = graphs

    def start(self, warm_up: bool = False) -> None:
        """Begin a run with empty KV caches."""
        super().start(warm_up)
        self._graphs.counters.start()

    def counters(self) -> Counters:
        """Return the times and counts of the graphs."""
        return self._graphs.counters

    def close(self) -> None:
        """Drop graphs and views."""
        self._graphs.close()
        super().close()
