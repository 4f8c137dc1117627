"""fused_elementwise: bias, ReLU and scale of all requests in step in one launch of our own kernel.

launchopt/kernels/fused.cu, compiled by CuPy. Takes whole steps. What the bias and the ReLU give stays inside the
launch: it is not written, and not checked by itself; the scaled output is, against float64 from what went in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device, gpu_of, is_host
from launchopt.modes.base import Mode, PreparedSteps, Takes
from launchopt.modes.fused_epilogue import is_made_of, starts
from launchopt.recording.launch_rows import Strategy
from launchopt.workloads.chain import Stream

if TYPE_CHECKING:
    from launchopt.devices.cpu.fused_steps import Compute, CpuSteps
    from launchopt.devices.steps.stages import Fused, LtSteps

BIAS_RELU_SCALE = (Op.BIAS, Op.RELU, Op.SCALE)
REFUSAL = "fuses bias, ReLU and scale in a row: this workload has none"


class FusedElementwise(Mode):
    """One launch for the three."""

    name = "fused_elementwise"
    summary = "one kernel for bias, ReLU and scale"
    takes = Takes.steps
    unwritten = frozenset({"bias", "relu"})

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """As any; the three must be there."""
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
