"""fused_triton: bias, ReLU and scale of all requests in step in one launch of a Triton kernel.

The same as mode=fused_elementwise, in Triton: takes whole steps; what the bias and the ReLU give stays inside the
launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launchopt.command import ShapeKey
from launchopt.devices.base import Device, gpu_of
from launchopt.modes.base import Mode, PreparedSteps, Takes
from launchopt.modes.fused_elementwise import BIAS_RELU_SCALE, REFUSAL
from launchopt.modes.fused_epilogue import is_made_of, starts
from launchopt.workloads.chain import Stream

if TYPE_CHECKING:
    from launchopt.devices.steps.stages import Fused, LtSteps


class FusedTriton(Mode):
    """One launch for the three."""

    name = "fused_triton"
    summary = "one Triton kernel for bias, ReLU and scale"
    takes = Takes.steps
    unwritten = frozenset({"bias", "relu"})
    devices = ("cuda",)
    packages = ("triton",)
    extra = "torch"

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """As any; the three must be there."""
        return super().refusal(kind, stream) if is_made_of(stream, BIAS_RELU_SCALE) else REFUSAL

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedSteps:
        """Compile the kernel."""
        gpu = gpu_of(device)
        from launchopt.devices.steps.fused import prepared_steps
        from launchopt.devices.triton.elementwise import TritonStages

        stages: dict[int, TritonStages] = {}

        def fusions(steps: LtSteps, of_kind: int, replica: int) -> Sequence[Fused]:
            made = stages.setdefault(id(steps), TritonStages(steps))
            return [made.fused(of_kind, start) for start in starts(len(steps.indices(of_kind)))]

        return PreparedSteps(self, gpu, prepared_steps(gpu, limits, fusions).launch)
