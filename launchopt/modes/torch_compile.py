"""torch_compile: one call of what torch.compile made of a step, or of a batch.

fullgraph, no CUDA graphs (they would copy every operand to where they were recorded, weights too), and coordinate
descent tuning, which makes a GEMM of one row a reduction that is fused with its neighbours. A launch is one call of the
compiled function, however many kernels it starts. Independent commands: torch.bmm over what lies evenly spaced, or with
index_select and index_copy_ over what does not. Every output is written to its place, which a compiled GEMM does with a
copy. Compiled before the clock for one row, and for any number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from launchopt.batching.batcher import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.base import Mode, Takes
from launchopt.modes.torch_eager import PreparedTorchSteps, TorchPrepared, torch_bytes
from launchopt.workloads.chain import Stream
from launchopt.workloads.stream import arenas_of

if TYPE_CHECKING:
    from launchopt.devices.pytorch.compiled import CompiledBatches
    from launchopt.devices.pytorch.views import TorchArenas

BACKEND = "inductor"


def gathered_bytes(stream: Stream, limits: Mapping[ShapeKey, int]) -> int:
    """The largest batch of independent commands, side by side."""
    if stream.has_steps:
        return 0
    return max(limit * sum(arena.slot_bytes for arena in arenas_of(shape)) for shape, limit in limits.items())


ELEMENTWISE = {Op.BIAS, Op.RELU, Op.SCALE}


class TorchCompile(Mode):
    """One launch a step, or a batch."""

    name = "torch_compile"
    summary = "one call of a function compiled by PyTorch a batch, or a step"
    devices = ("cuda",)
    packages = ("torch", "triton")
    extra = "torch"

    @classmethod
    def takes_of(cls, stream: Stream) -> Takes:
        """Return steps where the stream has steps."""
        return Takes.steps if stream.has_steps else cls.takes

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """As any; on a CPU it would measure the C++ compiler that happens to be there."""
        if kind == "cpu":
            return "needs a GPU: compiled for a CPU it would depend on a C++ compiler that may not be there"
        if stream.has_steps and {shape.op for shape in stream.shapes} <= ELEMENTWISE:
            return "its compiler fails on a long chain of elementwise ops (PyTorch 2.11 with Triton 3.6)"
        return super().refusal(kind, stream)

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """What PyTorch allocates; commands that are gathered may all be side by side."""
        return torch_bytes(stream, limits) + gathered_bytes(stream, limits)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> TorchPrepared:
        """Compile everything that is likely to be asked for."""
        from launchopt.devices.pytorch.compiled import CompiledBatches, CompiledSteps
        from launchopt.devices.pytorch.views import TorchArenas

        arenas = TorchArenas(device)
        if arenas.work.has_steps:
            steps = CompiledSteps(arenas, device, max(limits.values()), BACKEND)
            return PreparedTorchSteps(self, device, arenas, steps)
        return _PreparedBatches(self, device, arenas, CompiledBatches(arenas, device, limits, BACKEND))


class _PreparedBatches(TorchPrepared):
    """One compiled call a batch."""

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, compiled: CompiledBatches) -> None:
        super().__init__(mode, device, arenas)
        self._compiled = compiled

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Call the function of the batch's size."""
        self._compiled.submit(batch, flush_ns)
