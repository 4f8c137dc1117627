"""grouped: one cuBLAS call for commands of several shapes, with one group per shape. All shapes share one bucket.

The call is cuBLAS's grouped batched GEMM. Its tables of pointers are filled and uploaded inside the launch. Batches
fill faster, because a command need not wait for other commands of its shape. On the CPU device a launch is a loop over
the commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from launchopt.batching.batch import Batch
from launchopt.command import COMMAND_DTYPE, Op, Records, ShapeKey
from launchopt.devices.base import Device, GpuDevice, HostDevice, gpu_of, is_host
from launchopt.modes.base import Mode, Prepared
from launchopt.recording.launch_rows import Strategy

if TYPE_CHECKING:
    from launchopt.devices.cublaslt.grouped import LtGrouped


class Grouped(Mode):
    """One launch per batch of any shapes."""

    name = "grouped"
    merges_shapes = True
    ops = frozenset({Op.GEMM})

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> Prepared:
        """Allocate for the largest batch; cuBLAS needs no plans."""
        most = sum(limits.values())
        if is_host(device):
            return _OnHost(self, device, list(limits), most)
        gpu = gpu_of(device)
        from launchopt.devices.cublaslt.grouped import LtGrouped

        return _OnGpu(self, gpu, LtGrouped(gpu, limits, most))


class _OnGpu(Prepared):
    """Makes one call of cuBLAS per batch."""

    def __init__(self, mode: Mode, gpu: GpuDevice, grouped: LtGrouped) -> None:
        super().__init__(mode, gpu)
        self._grouped = grouped

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch all groups in one call."""
        self._grouped.submit(batch, flush_ns)

    def close(self) -> None:
        """Destroy cuBLAS's handle."""
        self._grouped.close()


class _OnHost(Prepared):
    """Computes a batch in one loop."""

    def __init__(self, mode: Mode, host: HostDevice, shapes: list[ShapeKey], most: int) -> None:
        super().__init__(mode, host)
        from launchopt.batching.batcher import shape_finder  # late: the process that plans a run must not load Numba

        self._host, self._batcher, self._shape_of = host, shape_finder(shapes), np.zeros(most, np.int32)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Compute all commands as one launch."""
        host = self._host
        records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
        shape_of = self._batcher.classify(records, self._shape_of)
        start_ns = host.enter(batch.shape_index, len(batch))
        host.execute(batch.words, shape_of)
        host.leave(batch, slice(0, len(batch)), Strategy.grouped, flush_ns, start_ns)
