"""fused_elementwise: one launch of our own kernel computes bias, ReLU and scale for all requests of a step.

CuPy compiles the kernel, launchopt/kernels/fused.cu. The mode takes whole steps. The outputs of bias and ReLU stay in
registers: they are not written to memory and not verified. The scaled output is verified against a float64 reference
computed from the kernel's inputs.
"""

from __future__ import annotations

from launchopt.modes.stacked import Stacked
from launchopt.stack import Fusion
from launchopt.streams.chains.chain import Stream
from launchopt.streams.chains.groups import BIAS_RELU_SCALE, has_rows


class FusedElementwise(Stacked):
    """One launch for bias, ReLU and scale."""

    name = "fused_elementwise"

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It must have bias, ReLU and scale, in this order."""
        if Fusion.epilogue in cls.stack.fuse and not has_rows(stream, BIAS_RELU_SCALE):
            return "fuses bias, ReLU and scale in a row: this workload has none"
        return super().refusal(kind, stream)
