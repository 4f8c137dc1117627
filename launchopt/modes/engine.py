"""engine: a launch per fused row of a step, as an inference engine launches a step without a CUDA graph.

Requests that share a weight are columns of one GEMM. The GEMMs of q, k and v are merged, and those of gate and up.
As in vLLM, one kernel each computes a residual add with the norm behind it, rotary embedding with KV write, and
attention. GEMMs are cuBLASLt's. It is the base of the factors of workloads of steps: every further strategy makes
these launches cheaper or fewer. A workload without one of these rows lacks that fusion.
"""

from __future__ import annotations

from launchopt.modes.stacked import Stacked


class Engine(Stacked):
    """The launches of an inference engine."""

    name = "engine"
