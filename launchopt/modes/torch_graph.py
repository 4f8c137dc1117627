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
from typing import Any

from launchopt.batching.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.base import Mode, Takes
from launchopt.modes.options import KeepsGraphs
from launchopt.modes.torch_compile import gathered_bytes
from launchopt.modes.torch_eager import torch_bytes
from launchopt.workloads.chain import ChainStream, Stream


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
        """Whole steps, where there are any."""
        return Takes.steps if isinstance(stream, ChainStream) else cls.takes

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """What PyTorch allocates, and room for the largest batch."""
        return torch_bytes(stream, limits) + gathered_bytes(stream, limits)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Record what is likely to come."""
        from launchopt.devices.pytorch.graphs import GraphBatches, GraphSteps
        from launchopt.devices.pytorch.views import TorchArenas

        self.graph_replays = 0
        self._arenas: Any = TorchArenas(device)
        if isinstance(self._arenas.work, ChainStream):
            most, cached = max(limits.values()), self.options.cached
            self._runner: Any = GraphSteps(self._arenas, device, most, self, cached)
        else:
            self._runner = GraphBatches(self._arenas, device, limits, self)

    def start(self) -> None:
        """This thread's operators go to the device's stream."""
        super().start()
        self._arenas.use()
        self._runner.start()

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Replay."""
        self._runner.submit(batch, flush_ns)

    def close(self) -> None:
        """Drop graphs and views."""
        self._runner.close()
        self._runner = None
        self._arenas.close()
