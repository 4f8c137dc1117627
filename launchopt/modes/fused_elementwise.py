"""fused_elementwise: bias, ReLU and scale of all requests in step in one launch of our own kernel.

launchopt/kernels/fused.cu, compiled by CuPy. Takes whole steps. What the bias and the ReLU give stays inside the
launch: it is not written, and not checked by itself; the scaled output is, against float64 from what went in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launchopt.batching.batcher import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.base import Mode, Takes
from launchopt.modes.fused_epilogue import is_made_of, starts
from launchopt.recording.recorder import Strategy
from launchopt.workloads.chain import Stream

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

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Compile the kernel."""
        any_device: Any = device
        if device.info.kind == "cpu":
            from launchopt.devices.cpu.fused_steps import CpuSteps

            self._steps: Any = CpuSteps(any_device, limits, Strategy.fused, _groups_on_cpu)
            return
        from launchopt.devices.steps.fused import elementwise_kernel, prepared_steps

        def fusions(steps: Any, of_kind: int, replica: int) -> Sequence[Any]:
            rows = len(steps.indices(of_kind))
            return [elementwise_kernel(steps, of_kind, start) for start in starts(rows)]

        self._steps = prepared_steps(any_device, limits, fusions)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """One launch a layer."""
        self._steps.launch(batch, flush_ns)


def _groups_on_cpu(steps: Any, kind: int) -> dict[int, tuple[int, Any]]:
    return {start: (start + 3, steps.elementwise(start)) for start in starts(len(steps.rows))}
