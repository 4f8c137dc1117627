"""gemv: independent commands of one shape, each with the next weight matrix.

Its presets are in conf/workload: gemv_micro is 64 x 8192, gemv_256 is 256 x 256. n may be more than 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from launchopt.command import Dtype
from launchopt.options import REQUIRED, option
from launchopt.streams.chains.chain import Stream
from launchopt.streams.gemm_stream import IN_TURN, CommandOrder, GemmStream, Segment
from launchopt.streams.operands import aligned_bytes
from launchopt.weights.packing import Packing, Scales, WeightFormat, packing_of
from launchopt.workloads.base import SCALES_HELP, WEIGHTS_HELP, Minimum, Setting, Workload

FEWEST, MOST = 512, 8192  # commands by default
CPU_BYTES = 1 << 30


def gemv(
    m: int, n: int, k: int, commands: int, dtype: Dtype, replicas: int, order: CommandOrder = IN_TURN
) -> GemmStream:
    """Return `commands` independent commands of one shape over `replicas` weights."""
    return GemmStream([(m, k)], 1, [Segment(n, commands)], dtype, replicas, replace(order, independent=True))


@dataclass(slots=True)
class Gemv(Workload):
    """Independent commands of one shape."""

    dtype: Dtype = option(Dtype.fp32, "of weights, inputs and outputs")
    m: int = option(REQUIRED, "rows of the weight matrix", low=1)
    n: int = option(1, "columns of the input", low=1)
    k: int = option(REQUIRED, "columns of the weight matrix", low=1)
    weights: WeightFormat = option(WeightFormat.none, WEIGHTS_HELP)
    scales: Scales | None = option(None, SCALES_HELP)
    commands: int | None = option(None, "null: 8192; on a CPU as many as read 1 GB, at least 512", low=1)
    shuffle: bool = option(False, "take the weights in a fixed random order instead of in turn")

    instead_of_model: ClassVar[str] = "decode or prefill"
    smallest: ClassVar[tuple[str, ...]] = ("workload.commands=64",)

    @property
    def packing(self) -> Packing:
        """How the weights are stored."""
        return packing_of(self.weights, self.scales)

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight with its scales."""
        return self.packing.bytes(self.m, self.k, self.dtype.itemsize)

    def count(self, device_kind: str) -> int:
        """Return the number of commands. By default a run on a CPU reads about 1 GB, so that it takes no minutes."""
        if self.commands is not None:
            return self.commands
        if device_kind != "cpu":
            return MOST
        return min(MOST, max(FEWEST, CPU_BYTES // aligned_bytes(self.weight_bytes)))

    def lower(self, is_ordered: bool) -> str:
        """Return the settings whose lower values need less memory, for an error text."""
        return "workload.commands or batching.max_batch"

    def minimum(self) -> Minimum:
        """Return the commands, and the bytes of all outputs and of `replicas` weights (of one if it is not set)."""
        weights = aligned_bytes(self.weight_bytes) * (self.replicas or 1)
        commands = self.count("cpu")
        return Minimum(commands, weights + aligned_bytes(self.m * self.n * self.dtype.itemsize) * commands)

    def stream(self, layers: int, setting: Setting) -> Stream:
        """Return the stream, in which each command takes the next weight."""
        commands = self.count(setting.device_kind)
        copies = self.copies(self.weight_bytes, setting, min(setting.max_batch, commands))
        order = CommandOrder(self.shuffle, setting.seed, setting.due_ns, packing=self.packing)
        return gemv(self.m, self.n, self.k, commands, self.dtype, copies, order)
