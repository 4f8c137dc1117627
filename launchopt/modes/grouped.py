"""grouped: one call for commands of different shapes, a group a shape; all shapes share one bucket.

cuBLAS's grouped batched GEMM with tables of pointers, which are filled and uploaded within the launch. What it gains is
company: commands of other shapes need not wait for their own. On the CPU device a launch is a loop in one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from launchopt.batching.batcher import Batch, Batcher
from launchopt.command import COMMAND_DTYPE, Op, Records, ShapeKey
from launchopt.devices.base import Device, gpu_of
from launchopt.modes.base import Mode
from launchopt.recording.recorder import Strategy


class Grouped(Mode):
    """One launch a batch, whatever its shapes."""

    name = "grouped"
    summary = "one call for commands of different shapes"
    merges_shapes = True
    ops = frozenset({Op.GEMM})

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Nothing is planned ahead: cuBLAS takes the shapes as they come."""
        self._device, self._gpu = device, None
        most = sum(limits.values())
        if device.info.kind == "cuda":
            from launchopt.devices.cublaslt.grouped import LtGrouped

            gpu: Any = LtGrouped(gpu_of(device), limits, most)
            self._gpu = gpu
        else:
            self._batcher = Batcher(list(limits), [1] * len(limits), 0)
            self._shape_of = np.zeros(most, np.int32)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """One call."""
        if self._gpu is not None:
            self._gpu.submit(batch, flush_ns)
            return
        cpu: Any = self._device
        records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
        shape_of = self._batcher.classify(records, self._shape_of)
        start_ns = cpu.enter(batch.shape_index, len(batch))
        cpu.execute(batch.words, shape_of)
        cpu.leave(batch, slice(0, len(batch)), Strategy.grouped, flush_ns, start_ns)

    def close(self) -> None:
        """Give cuBLAS's handle back."""
        if self._gpu is not None:
            self._gpu.close()
