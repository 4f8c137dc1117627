"""torch_compile: one replay of a CUDA graph of a function that torch.compile made from a whole step.

Settings: fullgraph, coordinate descent tuning (which turns a GEMM of one row into a reduction that is fused with
neighbouring ops), in all directions for the most requests of a batch, KV caches with static addresses. The compiled
step is then captured by hand, as in mode=torch_graph. The graphs that torch.compile itself makes would copy every
operand, weights too, to the recorded addresses. Of a layer of a transformer only the KV cache and the two sums with the
residual are stored; of other programs, only the last output of a layer.

Functions are compiled before the clock starts: for one request, for the most requests of a batch, and one for any
number between, which is not tuned. A launch is a replay, or one call of a compiled function, for steps that come for
the first time. A launch after it samples and feeds results back, as in other modes.

Independent commands: one call of a compiled torch.bmm per evenly spaced run, which reads weights and inputs in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launchopt.batching.batch import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device
from launchopt.devices.pytorch.prompts import shared_bytes
from launchopt.modes.base import Mode
from launchopt.modes.options import KeepsGraphs
from launchopt.modes.torch_eager import TorchPrepared, torch_bytes
from launchopt.modes.torch_graph import PreparedGraphSteps
from launchopt.streams.chains.chain import ChainStream, Stream
from launchopt.streams.chains.program import INPUT

if TYPE_CHECKING:
    from launchopt.devices.pytorch.compiled import CompiledBatches
    from launchopt.devices.pytorch.views import TorchArenas

BACKEND = "inductor"


ELEMENTWISE = {Op.BIAS, Op.RELU, Op.SCALE}
TUNED_COPIES = 2  # copies of the operands of a GEMM that tuning may need at a time
STORED = (Op.ADD, Op.KV_WRITE, Op.SLOT_MAP)  # ops whose outputs are stored, also within a layer


@dataclass(slots=True)
class Options(KeepsGraphs):
    """Options of mode=torch_compile."""


class TorchCompile(Mode):
    """One replay of a compiled step, or one call of a compiled function per run of a batch."""

    name = "torch_compile"
    prefers_steps = True
    devices = ("cuda",)
    packages = ("torch", "triton")
    extra = "torch"
    quantised = ()
    options: Options = Options()

    @classmethod
    def unwritten_of(cls, stream: Stream) -> frozenset[str]:
        """Return the nodes whose outputs stay inside a compiled step.

        All of such an output is read within the layer. Otherwise the compiler would not compute the rest.
        """
        if not isinstance(stream, ChainStream):
            return frozenset()
        program, found = stream.program, set[str]()
        merged = {name: names for names in program.merged for name in names}
        for node in program.layer:
            names = program.sources(node)
            read = [program.node(name) for name in merged.get(names[0], names) if name != INPUT]
            if sum(each.m for each in read) == node.k:
                found |= {each.name for each in read if each.op not in STORED}
        return frozenset(found)

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
        """Return the bytes that PyTorch allocates, also to tune GEMMs on operands of its own and for copied prompts."""
        largest = max(shape.m * shape.k + shape.n * limit * (shape.m + shape.k) for shape, limit in limits.items())
        tuned = TUNED_COPIES * largest * stream.dtype.itemsize
        return torch_bytes(stream, limits) + tuned + shared_bytes(stream, cls.options.cached)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> TorchPrepared:
        """Compile the functions that are likely to be needed."""
        from launchopt.devices.pytorch.compiled import CompiledBatches, CompiledSteps
        from launchopt.devices.pytorch.views import TorchArenas

        arenas = TorchArenas(device)
        if not arenas.work.has_steps:
            return _PreparedBatches(self, device, arenas, CompiledBatches(arenas, device, limits, BACKEND))
        most, cached, unwritten = max(limits.values()), self.options.cached, self.unwritten_of(device.work)
        steps = CompiledSteps(arenas, device, most, cached, unwritten, BACKEND)
        return _PreparedCompiledSteps(self, device, arenas, steps)


class _PreparedCompiledSteps(PreparedGraphSteps):
    """Replays graphs of compiled steps."""

    settings: tuple[str, ...] = (
        *("inductor", "fullgraph", "coordinate descent in all directions"),
        *("SDPA", "static cache addresses", "captured in a CUDA graph"),
    )


class _PreparedBatches(TorchPrepared):
    """Makes one call of a compiled function per evenly spaced run."""

    settings: tuple[str, ...] = ("inductor", "fullgraph", "coordinate descent")

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, compiled: CompiledBatches) -> None:
        super().__init__(mode, device, arenas)
        self._compiled = compiled

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Call the function of the batch's shape for each run."""
        self._compiled.submit(batch, flush_ns)

    def close(self) -> None:
        """Drop views."""
        self._compiled.close()
        super().close()
