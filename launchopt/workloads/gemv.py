"""gemv: independent commands of one shape, each with the next weight matrix.

Its presets are in conf/workload: gemv_micro is 64 x 8192, gemv_256 is 256 x 256. n may be more than 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.options import REQUIRED, option
from launchopt.workloads.base import Minimum, Setting, Workload
from launchopt.workloads.chain import Stream
from launchopt.workloads.stream import GemmStream, Segment, aligned_bytes


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
    """Return `commands` commands that take `replicas` weights in turn; with `shuffle` in a fixed random order.

    `due_ns` [commands]: the time at which each command is due, ns since the start; None: a closed loop.
    """
    segments = [Segment(n, commands)]
    return GemmStream([(m, k)], 1, segments, dtype, replicas, shuffle, seed, due_ns, independent=True)


@dataclass(slots=True)
class Gemv(Workload):
    """Independent commands of one shape."""

    dtype: Dtype = option(Dtype.fp32, "of weights, inputs and outputs")
    m: int = option(REQUIRED, "rows of the weight matrix", low=1)
    n: int = option(1, "columns of the input", low=1)
    k: int = option(REQUIRED, "columns of the weight matrix", low=1)
    commands: int = option(8192, "number of commands", low=1)
    shuffle: bool = option(False, "take the weights in a fixed random order instead of in turn")

    instead_of_model: ClassVar[str] = "decode or prefill"
    smallest: ClassVar[tuple[str, ...]] = ("workload.commands=64",)

    def lower(self, is_ordered: bool) -> str:
        """Return the settings whose lower values need less memory, for an error text."""
        return "workload.commands or batching.max_batch"

    def minimum(self) -> Minimum:
        """Return the commands, and the bytes of all outputs and of `replicas` weights (of one weight, if not set)."""
        weights = aligned_bytes(self.m * self.k * self.dtype.itemsize) * (self.replicas or 1)
        return Minimum(self.commands, weights + aligned_bytes(self.m * self.n * self.dtype.itemsize) * self.commands)

    def stream(self, layers: int, setting: Setting) -> Stream:
        """Return the stream, in which each command takes the next weight."""
        weight_bytes = self.m * self.k * self.dtype.itemsize
        copies = self.copies(weight_bytes, setting, min(setting.max_batch, self.commands))
        gemm = (self.m, self.n, self.k, self.commands)
        return gemv(*gemm, self.dtype, copies, self.shuffle, setting.seed, setting.due_ns)
