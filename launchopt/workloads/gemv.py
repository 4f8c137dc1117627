"""gemv: independent commands of one shape, each with the next weight matrix. What a GEMV server sees.

gemv_micro is 64 x 8192, gemv_256 is 256 x 256; n may be more than 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.workloads.stream import GemmStream, Segment


def gemv(
    m: int,
    n: int,
    k: int,
    commands: int,
    dtype: Dtype,
    replicas: int,
    shuffle: bool,
    seed: int,
    due_ns: NDArray[np.int64] | None = None,
) -> GemmStream:
    """`commands` commands over `replicas` weights in turn, or in a fixed random order with `shuffle`.

    `due_ns` [commands]: when each is due, since the start; None in a closed loop.
    """
    segments = [Segment(n, commands)]
    return GemmStream([(m, k)], 1, segments, dtype, replicas, shuffle, seed, due_ns, independent=True)
