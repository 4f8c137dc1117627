"""baseline: one cuBLASLt call per command, in arrival order, on one CUDA stream.

A command whose weight is quantised is one launch of our own GEMV, since cuBLASLt does not read such a weight.
This is what an engine without a strategy does. No command waits for other commands.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device
from launchopt.devices.prepared import LaunchPath
from launchopt.modes.base import Mode, Prepared, Takes


def shape_of_all(batch: Batch) -> NDArray[np.int32]:
    """Return the shape index of each command of a batch of one shape."""
    return np.full(len(batch), batch.shape_index, np.int32)


class EachCommand(Prepared):
    """Makes one launch per command, with the plans of the device or of `path`."""

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Make one launch per command."""
        self.device.submit_each(words, shape_of, flush_ns)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Make one launch per command of a batch."""
        self.device.submit_each(batch.words, shape_of_all(batch), flush_ns)


class Baseline(Mode):
    """One launch per command."""

    name = "baseline"
    takes = Takes.commands
    compiled_loop = True
    keeps_order = True
    ops = frozenset(Op)
    quantised = ("cpu", "cuda")

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> EachCommand:
        """Plan each shape for launches of one command."""
        for shape in limits:
            device.plan(self.name, shape, [1], scratch=False)
        return EachCommand(self, device, LaunchPath(packable_bytes=[0] * len(limits)))
