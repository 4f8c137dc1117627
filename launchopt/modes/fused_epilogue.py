"""fused_epilogue: one GEMM with cuBLASLt's epilogue computes GEMM, bias and ReLU for all requests of a step.

The mode takes whole steps. The outputs of GEMM and bias stay inside the launch: they are not written to memory and not
verified. The output of ReLU is verified against a float64 reference computed from the launch's inputs.
"""

from __future__ import annotations

from launchopt.modes.stacked import Stacked
from launchopt.stack import Fusion
from launchopt.streams.chains.chain import Stream
from launchopt.streams.chains.groups import GEMM_BIAS_RELU, has_rows


class FusedEpilogue(Stacked):
    """One launch per linear layer."""

    name = "fused_epilogue"

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It must have GEMM, bias and ReLU, in this order."""
        if Fusion.epilogue in cls.stack.fuse and not has_rows(stream, GEMM_BIAS_RELU):
            return "fuses GEMM, bias and ReLU in a row: this workload has none"
        return super().refusal(kind, stream)
