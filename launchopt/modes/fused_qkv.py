"""fused_qkv: one GEMM with a merged weight computes q, k and v for all requests of a step.

The mode takes whole steps, so that the three projections come together. Their weights are adjacent in memory, and so
are their outputs: the merged GEMM reads and writes the same bytes as three GEMMs. Other rows are launched as in
mode=coalesced.
"""

from __future__ import annotations

from launchopt.modes.stacked import Stacked
from launchopt.stack import Fusion
from launchopt.streams.chains.chain import Stream


class FusedQkv(Stacked):
    """One launch for q, k and v."""

    name = "fused_qkv"

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It must have q, k and v as separate GEMMs."""
        has_qkv = stream.program is not None and any(names[0] == "q" for names in stream.program.merged)
        if Fusion.qkv in cls.stack.fuse and not has_qkv:
            return "merges q, k and v, and this workload does not have them as separate GEMMs"
        return super().refusal(kind, stream)
