"""triton_experts: a step of a layer with experts as serving engines launch it, with grouped GEMMs in Triton.

A step takes seven launches, whatever its routing. One of them cuts the rows of each expert into blocks. The first GEMM
gathers its inputs through the blocks, so no launch copies them before. Sizes of blocks, warps and stages are
tuned once for each GEMM, on the workload's own weights and routing. Compilation and tuning count as setup.
mode.submit=graph captures them, and one more launch that finds the operands of the step. With mode.pdl=true a kernel
begins while the one before ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from launchopt.batching.batch import Batch
from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.base import Device, GpuDevice, gpu_of
from launchopt.devices.prepared import Counters
from launchopt.errors import ConfigError
from launchopt.modes.base import Mode, Prepared, Takes
from launchopt.modes.stack import preset_stack
from launchopt.modes.stacked import Stacked
from launchopt.stack import Submit
from launchopt.streams.chains.chain import Stream
from launchopt.streams.experts.stream import ExpertStream

if TYPE_CHECKING:
    from launchopt.devices.triton.experts import TritonExpertSteps

OLD_TRITON = "needs a Triton with dependent launches, such as 3.6: pip install --upgrade triton"


class TritonExperts(Stacked):
    """One launch per group, with GEMMs in Triton."""

    name = "triton_experts"
    takes = Takes.batches
    devices = ("cuda",)
    packages = ("triton",)
    extra = "torch"
    ops = frozenset(Op)
    unwritten = frozenset({"permute"})

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It needs a layer with experts, in half precision."""
        if not isinstance(stream, ExpertStream):
            return "launches a layer with experts: use workload=moe"
        if kind in cls.devices and stream.dtype is Dtype.fp32:
            return "multiplies fp16 and bf16: use workload.dtype=bf16"
        return super().refusal(kind, stream)

    @classmethod
    def quantised_refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot compute with the quantised weights of `stream`."""
        why = f"reads weights as {stream.dtype.name} in Triton, and unpacks no {stream.packing.format}"
        return f"{why}: use mode=graph or expert_kernel, or workload.weights=none"

    @classmethod
    def can_change(cls, stream: Stream) -> bool:
        """Return whether the changes to the preset have a meaning for a stream without steps of requests."""
        return replace(cls.stack, pdl=False, submit=Submit.stream) == preset_stack(cls.name)

    @classmethod
    def unwritten_of(cls, stream: Stream) -> frozenset[str]:
        """Return the node whose output no launch writes: the copies of columns."""
        return cls.unwritten

    @classmethod
    def whole_pass(cls, stream: Stream) -> int:
        """Return the commands of the longest step."""
        return stream.pass_commands if isinstance(stream, ExpertStream) else 0

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Return the bytes of the outputs of launches that load kernels or time them."""
        return stream.layout.region_bytes if isinstance(stream, ExpertStream) else 0

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> Prepared:
        """Compile the kernels, and tune those of Triton."""
        gpu, is_captured = gpu_of(device), self.stack.submit is Submit.graph
        try:
            from launchopt.devices.triton.experts import TritonExpertSteps
        except ImportError as error:
            raise ConfigError("mode", self.name, OLD_TRITON) from error
        return _Steps(self, gpu, TritonExpertSteps(gpu, is_captured, self.stack.pdl))


class _Steps(Prepared):
    """Launches whole steps, or replays their graph."""

    def __init__(self, mode: Mode, gpu: GpuDevice, steps: TritonExpertSteps) -> None:
        super().__init__(mode, gpu)
        self._steps = steps

    def start(self, warm_up: bool = False) -> None:
        """Begin a run; launch each kernel once, so that the driver has loaded it."""
        self._steps.counters.start()
        self._steps.load()

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a step."""
        self._steps.submit(batch, flush_ns)

    def counters(self) -> Counters:
        """Return the times and counts of the graph."""
        return self._steps.counters

    def close(self) -> None:
        """Destroy the graph."""
        self._steps.close()
