"""gemv: independent commands of one shape, each with the next weight matrix. What a GEMV server sees.

gemv_micro is 64 x 8192, gemv_256 is 256 x 256; n may be more than 1.
"""

from __future__ import annotations

from launchopt.command import Dtype
from launchopt.workloads.stream import GemmStream, Segment


def gemv(m: int, n: int, k: int, commands: int, dtype: Dtype, replicas: int, shuffle: bool, seed: int) -> GemmStream:
    """`commands` commands over `replicas` weights in turn, or in a fixed random order with `shuffle`."""
    return GemmStream([(m, k)], 1, [Segment(n, commands)], dtype, replicas, shuffle, seed)
