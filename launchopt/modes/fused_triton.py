"""fused_triton: one launch of a Triton kernel computes bias, ReLU and scale for all requests of a step.

The mode is mode=fused_elementwise with a kernel in Triton. It takes whole steps, and the outputs of bias and ReLU stay
inside the launch.
"""

from __future__ import annotations

from launchopt.modes.stacked import Stacked
from launchopt.streams.chains.chain import Stream
from launchopt.streams.chains.groups import BIAS_RELU_SCALE, has_rows


class FusedTriton(Stacked):
    """One launch for bias, ReLU and scale."""

    name = "fused_triton"
    devices = ("cuda",)
    packages = ("triton",)
    extra = "torch"

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It must have bias, ReLU and scale, in this order."""
        if not has_rows(stream, BIAS_RELU_SCALE):
            return "fuses bias, ReLU and scale in a row: this workload has none"
        return super().refusal(kind, stream)
