"""baseline: one cuBLASLt call a command, in arrival order, on one stream.

What an engine without a remedy does. Commands are never held back for company.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from launchopt.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device


class Baseline:
    """One launch a command."""

    name: ClassVar[str] = "baseline"
    summary: ClassVar[str] = "one GEMM call a command, in arrival order"
    bucket_limit: ClassVar[int | None] = 1
    compiled_loop: ClassVar[str | None] = "commands"
    keeps_order: ClassVar[bool] = True

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Plan each shape for one command a launch."""
        self._device = device
        self.packable_bytes = [0] * len(limits)
        for shape in limits:
            device.plan(self.name, shape, [1], scratch=False)

    @staticmethod
    def scratch_bytes(limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """None is needed."""
        return 0

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Launch each command."""
        self._device.submit_each(words, shape_of, flush_ns)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch each command of a batch."""
        self._device.submit_each(batch.words, np.full(len(batch), batch.shape_index, np.int32), flush_ns)

    def close(self) -> None:
        """Nothing was taken."""
