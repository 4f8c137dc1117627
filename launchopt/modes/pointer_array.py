"""pointer_array: one call a bucket, which finds each command's matrices through arrays of pointers.

cuBLASLt's pointer-array batches. Nothing is packed and nothing cut: operands may lie anywhere. The price is the table
of pointers, 24 bytes a command, which is filled and uploaded within the launch. On the CPU device a launch is a loop
over the commands in one call. Commands other than GEMMs are launched as in mode=batched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from launchopt.batching.batcher import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device, gpu_of
from launchopt.modes.base import Mode
from launchopt.modes.batched import NEVER
from launchopt.recording.recorder import Strategy


class PointerArray(Mode):
    """One launch a batch, whatever its slots."""

    name = "pointer_array"
    summary = "one call a bucket through arrays of pointers"

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Plan every batch size of every shape."""
        self._device, self._shapes = device, list(limits)
        self._gpu: Any = None
        for shape, limit in limits.items():
            singles = range(1, 2 if shape.op is Op.GEMM else limit + 1)  # one command needs no table of pointers
            device.plan(self.name, shape, singles, scratch=False)
        if device.info.kind == "cuda":
            from launchopt.devices.cublaslt.pointer_arrays import LtPointers

            self._gpu = LtPointers(gpu_of(device), limits)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """One call."""
        device, index, count = self._device, batch.shape_index, len(batch)
        if self._shapes[index].op is not Op.GEMM or count == 1:
            device.submit_strided(batch, flush_ns, NEVER)
        elif self._gpu is not None:
            self._gpu.submit(batch, flush_ns)
        else:
            start_ns = device.enter(index, count)
            cpu: Any = device
            cpu.execute(batch.words, np.full(count, index, np.int32))
            device.leave(batch, slice(0, count), Strategy.pointers, flush_ns, start_ns)
