"""torch_graph: one replay of what torch.cuda.CUDAGraph recorded of a step, or of a batch.

A step's graph holds torch_eager's operators on the same operands, so it is bound to addresses: a set of requests and a
copy of the weights. Likely ones are recorded before the clock, others when they come for the second time; at most
mode.cached=64 are kept, or one a copy of the weights, those replayed last. Independent commands never write to one
place twice: a graph of fixed size (powers of two, and the limit) gathers what index tensors name, multiplies, and
scatters; the indices are uploaded between replays. Padding is counted in padded_commands and written to scratch alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launchopt.batching.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Counters, Device
from launchopt.modes.base import Mode, Takes
from launchopt.modes.options import KeepsGraphs
from launchopt.modes.torch_compile import gathered_bytes
from launchopt.modes.torch_eager import PreparedTorchSteps, TorchPrepared, torch_bytes
from launchopt.workloads.chain import Stream

if TYPE_CHECKING:
    from launchopt.devices.pytorch.graphs import GraphBatches, GraphSteps
    from launchopt.devices.pytorch.views import TorchArenas


@dataclass(slots=True)
class Options(KeepsGraphs):
    """Options of mode=torch_graph."""


class TorchGraph(Mode):
    """One replay a step, or a batch."""

    name = "torch_graph"
    summary = "one replay of PyTorch operators recorded as a CUDA graph a batch, or a step"
    devices = ("cuda",)
    packages = ("torch",)
    extra = "torch"
    options: Options = Options()

    @classmethod
    def takes_of(cls, stream: Stream) -> Takes:
        """Return steps where the stream has steps."""
        return Takes.steps if stream.has_steps else cls.takes

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """What PyTorch allocates, and room for the largest batch."""
        return torch_bytes(stream, limits) + gathered_bytes(stream, limits)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> TorchPrepared:
        """Record what is likely to be asked for."""
        from launchopt.devices.pytorch.graphs import GraphBatches, GraphSteps
        from launchopt.devices.pytorch.views import TorchArenas

        arenas = TorchArenas(device)
        if not arenas.work.has_steps:
            return _PreparedBatches(self, device, arenas, GraphBatches(arenas, device, limits))
        most, cached = max(limits.values()), self.options.cached
        return _PreparedSteps(self, device, arenas, GraphSteps(arenas, device, most, cached))


class _PreparedBatches(TorchPrepared):
    """Graphs of batches."""

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, graphs: GraphBatches) -> None:
        super().__init__(mode, device, arenas)
        self._graphs = graphs

    def start(self, warm_up: bool = False) -> None:
        """Begin a run."""
        super().start(warm_up)
        self._graphs.counters.start()

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Replay the graph of the batch's size."""
        self._graphs.submit(batch, flush_ns)

    def counters(self) -> Counters:
        """Return what the graphs counted."""
        return self._graphs.counters

    def close(self) -> None:
        """Drop graphs and views."""
        self._graphs.close()
        super().close()


class _PreparedSteps(PreparedTorchSteps):
    """Graphs of whole steps."""

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, graphs: GraphSteps) -> None:
        super().__init__(mode, device, arenas, graphs)
        self._graphs = graphs

    def start(self, warm_up: bool = False) -> None:
        """Begin a run with empty caches."""
        super().start(warm_up)
        self._graphs.counters.start()

    def counters(self) -> Counters:
        """Return what the graphs counted."""
        return self._graphs.counters

    def close(self) -> None:
        """Drop graphs and views."""
        self._graphs.close()
        super().close()
