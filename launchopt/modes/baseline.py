"""baseline: one cuBLASLt call a command, in arrival order, on one stream.

It does what an engine without a strategy does. No command waits for others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device, LaunchPath
from launchopt.modes.base import Mode, Prepared, Takes


def shape_of_all(batch: Batch) -> NDArray[np.int32]:
    """Return the shape index of each command of a batch of one shape."""
    return np.full(len(batch), batch.shape_index, np.int32)


class EachCommand(Prepared):
    """Makes one launch a command, by the device's own plans or those of its path."""

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Launch each command."""
        self.device.submit_each(words, shape_of, flush_ns)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch each command of a batch."""
        self.device.submit_each(batch.words, shape_of_all(batch), flush_ns)


class Baseline(Mode):
    """One launch a command."""

    name = "baseline"
    summary = "one call a command, in arrival order"
    takes = Takes.commands
    compiled_loop = True
    keeps_order = True

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> EachCommand:
        """Plan each shape for one command a launch."""
        for shape in limits:
            device.plan(self.name, shape, [1], scratch=False)
        return EachCommand(self, device, LaunchPath(packable_bytes=[0] * len(limits)))
