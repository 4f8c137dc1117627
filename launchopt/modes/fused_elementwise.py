"""fused_elementwise: one launch of our own kernel computes bias, ReLU and scale for all requests of a step.

CuPy compiles the kernel, launchopt/kernels/fused.cu. The mode takes whole steps. The outputs of bias and ReLU stay in
registers: they are not written to memory and not verified. The scaled output is verified against a float64 reference
computed from the kernel's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device, gpu_of, is_host
from launchopt.modes.base import Mode, PreparedSteps, Takes
from launchopt.modes.fused_epilogue import is_made_of, starts
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chain import Stream

if TYPE_CHECKING:
    from launchopt.devices.cpu.fused_steps import Compute, CpuSteps
    from launchopt.devices.steps.stage_table import Fused
    from launchopt.devices.steps.stages import LtSteps

BIAS_RELU_SCALE = (Op.BIAS, Op.RELU, Op.SCALE)
REFUSAL = "fuses bias, ReLU and scale in a row: this workload has none"


class FusedElementwise(Mode):
    """One launch for bias, ReLU and scale."""

    name = "fused_elementwise"
    takes = Takes.steps
    unwritten = frozenset({"bias", "relu"})

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. Each layer must be bias, ReLU and scale, in this order."""
        return super().refusal(kind, stream) if is_made_of(stream, BIAS_RELU_SCALE) else REFUSAL

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedSteps:
        """Compile the kernel."""
        if is_host(device):
            from launchopt.devices.cpu.fused_steps import CpuSteps

            return PreparedSteps(self, device, CpuSteps(device, limits, Strategy.fused, _groups_on_cpu).launch)
        gpu = gpu_of(device)
        from launchopt.devices.steps.fused import elementwise_kernel, prepared_steps

        def fusions(steps: LtSteps, of_kind: int, replica: int) -> Sequence[Fused]:
            rows = len(steps.indices(of_kind))
            return [elementwise_kernel(steps, of_kind, start) for start in starts(rows)]

        return PreparedSteps(self, gpu, prepared_steps(gpu, limits, fusions).launch)


def _groups_on_cpu(steps: CpuSteps, kind: int) -> dict[int, tuple[int, Compute]]:
    return {start: (start + 3, steps.elementwise(start)) for start in starts(len(steps.rows))}
