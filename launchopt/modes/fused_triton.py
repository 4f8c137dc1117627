"""fused_triton: bias, ReLU and scale of all requests in step in one launch of a Triton kernel.

The same as mode=fused_elementwise, in Triton: takes whole steps; what the bias and the ReLU give stays inside the
launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launchopt.batching.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device, gpu_of
from launchopt.modes.base import Mode, Takes
from launchopt.modes.fused_elementwise import BIAS_RELU_SCALE, REFUSAL
from launchopt.modes.fused_epilogue import is_made_of, starts
from launchopt.workloads.chain import Stream


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

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Compile the kernel."""
        from launchopt.devices.steps.fused import prepared_steps
        from launchopt.devices.triton.elementwise import TritonStages

        stages: dict[int, TritonStages] = {}

        def fusions(steps: Any, of_kind: int, replica: int) -> Sequence[Any]:
            made = stages.setdefault(id(steps), TritonStages(steps))
            return [made.fused(of_kind, start) for start in starts(len(steps.indices(of_kind)))]

        self._steps = prepared_steps(gpu_of(device), limits, fusions)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """One launch a layer."""
        steps: Any = batch
        self._steps.launch(steps, flush_ns)
