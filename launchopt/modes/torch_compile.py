"""torch_compile: one call of a function that torch.compile made from a step, or from a batch.

Settings: fullgraph; no CUDA graphs, because these would copy every operand, weights too, to the recorded addresses;
coordinate descent tuning, which turns a GEMM of one row into a reduction that is fused with neighbouring ops.

A launch is one call of the compiled function, which may start several kernels. Independent commands whose operands are
evenly spaced in memory are one torch.bmm. Otherwise index_select gathers the inputs and index_copy_ scatters the
outputs. Every output is written to its slot; a compiled GEMM needs a copy for that. Functions are compiled before the
clock starts: one for a single row, and one for any number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from launchopt.batching.batch import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.base import Mode
from launchopt.modes.torch_eager import PreparedTorchSteps, TorchPrepared, torch_bytes
from launchopt.streams.chain import Stream
from launchopt.streams.operands import arenas_of

if TYPE_CHECKING:
    from launchopt.devices.pytorch.compiled import CompiledBatches
    from launchopt.devices.pytorch.views import TorchArenas

BACKEND = "inductor"


def gathered_bytes(stream: Stream, limits: Mapping[ShapeKey, int]) -> int:
    """Return the bytes of the operands of the largest batch of independent commands; 0 for steps."""
    if stream.has_steps:
        return 0
    return max(limit * sum(arena.slot_bytes for arena in arenas_of(shape)) for shape, limit in limits.items())


ELEMENTWISE = {Op.BIAS, Op.RELU, Op.SCALE}


class TorchCompile(Mode):
    """One call of a compiled function per step, or per batch."""

    name = "torch_compile"
    prefers_steps = True
    devices = ("cuda",)
    packages = ("torch", "triton")
    extra = "torch"

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It needs a GPU, and ops that PyTorch can compile."""
        if kind == "cpu":
            return "needs a GPU: compiled for a CPU it would depend on a C++ compiler that may not be there"
        if stream.has_steps and {shape.op for shape in stream.shapes} <= ELEMENTWISE:
            return "its compiler fails on a long chain of elementwise ops (PyTorch 2.11 with Triton 3.6)"
        return super().refusal(kind, stream)

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Return the bytes that PyTorch allocates, and those of the largest gathered batch."""
        return torch_bytes(stream, limits) + gathered_bytes(stream, limits)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> TorchPrepared:
        """Compile the functions that are likely to be needed."""
        from launchopt.devices.pytorch.compiled import CompiledBatches, CompiledSteps
        from launchopt.devices.pytorch.views import TorchArenas

        arenas = TorchArenas(device)
        if arenas.work.has_steps:
            steps = CompiledSteps(arenas, device, max(limits.values()), BACKEND)
            return PreparedTorchSteps(self, device, arenas, steps)
        return _PreparedBatches(self, device, arenas, CompiledBatches(arenas, device, limits, BACKEND))


class _PreparedBatches(TorchPrepared):
    """Makes one call of a compiled function per batch."""

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, compiled: CompiledBatches) -> None:
        super().__init__(mode, device, arenas)
        self._compiled = compiled

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Call the function of the batch's size."""
        self._compiled.submit(batch, flush_ns)

    def close(self) -> None:
        """Drop index tensors and views."""
        self._compiled.close()
        super().close()
