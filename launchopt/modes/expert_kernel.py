"""expert_kernel: one launch of our own kernel per group of a step with experts. All experts share one launch.

The kernel for GEMMs reads on the GPU how many tokens each expert has, so the launches of all steps are alike. The
batcher holds a whole step, and the mode then makes its eight launches. mode.fuse=[route,activate,combine] makes three
of them, each of which can be left out. mode=graph captures the same launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from launchopt.batching.batch import Batch
from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.base import Device, GpuDevice, gpu_of
from launchopt.modes.base import Mode, Prepared, Takes
from launchopt.modes.graph import NO_FP32, quantised_experts
from launchopt.modes.stacked import Stacked
from launchopt.streams.chains.chain import Stream
from launchopt.streams.experts.stream import ExpertStream

if TYPE_CHECKING:
    from launchopt.devices.steps.expert_steps import ExpertSteps


class ExpertKernel(Stacked):
    """One launch per group."""

    name = "expert_kernel"
    takes = Takes.batches
    devices = ("cuda",)
    ops = frozenset(Op)

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It needs a layer with experts, in half precision."""
        if not isinstance(stream, ExpertStream):
            return "launches a layer with experts: use workload=moe"
        if kind in cls.devices and stream.dtype is Dtype.fp32:
            return NO_FP32
        return super().refusal(kind, stream)

    @classmethod
    def can_change(cls, stream: Stream) -> bool:
        """Return whether the changes to the preset have a meaning for `stream`; `modes.stack.RULES` refuses others."""
        return isinstance(stream, ExpertStream)

    @classmethod
    def quantised_refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return None: our own kernels multiply quantised weights of experts."""
        return None

    @classmethod
    def capability_refusal(cls, stream: Stream, capability: int) -> str | None:
        """Return why a GPU of this compute capability, times 10, cannot multiply quantised weights; or None."""
        return quantised_experts(stream, capability)

    @classmethod
    def whole_pass(cls, stream: Stream) -> int:
        """Return the commands of the longest step."""
        return stream.pass_commands if isinstance(stream, ExpertStream) else 0

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Return the bytes of the outputs of a launch that only loads the kernels."""
        return stream.layout.region_bytes if isinstance(stream, ExpertStream) else 0

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> Prepared:
        """Compile the kernels."""
        gpu = gpu_of(device)
        from launchopt.devices.steps.expert_steps import ExpertSteps

        return _Steps(self, gpu, ExpertSteps(gpu, self.stack, captured=False))


class _Steps(Prepared):
    """Launches whole steps."""

    def __init__(self, mode: Mode, gpu: GpuDevice, steps: ExpertSteps) -> None:
        super().__init__(mode, gpu)
        self._steps, self.left_out = steps, steps.left_out

    def start(self, warm_up: bool = False) -> None:
        """Begin a run; launch each kernel once, so that the driver has loaded it."""
        self._steps.load()

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a step."""
        self._steps.submit(batch, flush_ns)
