"""fused_triton: one launch of a Triton kernel computes bias, ReLU and scale for all requests of a step.

The mode is mode=fused_elementwise with a kernel in Triton. It takes whole steps, and the outputs of bias and ReLU stay
inside the launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launchopt.command import ShapeKey
from launchopt.devices.base import Device, gpu_of
from launchopt.modes.base import Mode, PreparedSteps, Takes
from launchopt.modes.fused_elementwise import BIAS_RELU_SCALE, REFUSAL
from launchopt.modes.fused_epilogue import is_made_of, starts
from launchopt.streams.chain import Stream

if TYPE_CHECKING:
    from launchopt.devices.steps.stage_table import Fused
    from launchopt.devices.steps.stages import LtSteps


class FusedTriton(Mode):
    """One launch for bias, ReLU and scale."""

    name = "fused_triton"
    takes = Takes.steps
    unwritten = frozenset({"bias", "relu"})
    devices = ("cuda",)
    packages = ("triton",)
    extra = "torch"

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. Each layer must be bias, ReLU and scale, in this order."""
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
