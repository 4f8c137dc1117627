"""pointer_array: one cuBLASLt call per batch, which finds each command's matrices through arrays of pointers.

Operands may be stored anywhere: a batch is neither packed nor cut. The cost is a table of pointers, 24 bytes per
command, which is filled and uploaded inside the launch. On the CPU device a launch is a loop over the commands.
Commands other than GEMMs are launched as in mode=batched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from launchopt.batching.batch import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device, HostDevice, gpu_of, is_host
from launchopt.devices.prepared import LaunchPath
from launchopt.modes.base import Mode, Prepared
from launchopt.modes.batched import NEVER
from launchopt.recording.launch_rows import Strategy

Launch = Callable[[Batch, int], None]  # launches a batch of GEMMs; the second argument is the time of its flush, ns


class PointerArray(Mode):
    """One launch per batch, with operands anywhere."""

    name = "pointer_array"
    ops = frozenset(Op)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedPointers:
        """Plan every batch size of every shape."""
        for shape, limit in limits.items():
            singles = range(1, 2 if shape.op is Op.GEMM else limit + 1)  # one command needs no table of pointers
            device.plan(self.name, shape, singles, scratch=False)
        if is_host(device):
            return PreparedPointers(self, device, list(limits), partial(_launch_on_host, device))
        gpu = gpu_of(device)
        from launchopt.devices.cublaslt.pointer_arrays import LtPointers

        return PreparedPointers(self, gpu, list(limits), LtPointers(gpu, limits).submit)


class PreparedPointers(Prepared):
    """Launches GEMMs with `launch`, through arrays of pointers. The device launches single commands and other ops."""

    def __init__(
        self, mode: Mode, device: Device, shapes: list[ShapeKey], launch: Launch, path: LaunchPath | None = None
    ) -> None:
        super().__init__(mode, device, path)
        self._shapes, self._launch = shapes, launch

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Make one launch."""
        if len(batch) == 1 or self._shapes[batch.shape_index].op is not Op.GEMM:
            self.device.submit_strided(batch, flush_ns, NEVER)
        else:
            self._launch(batch, flush_ns)


def _launch_on_host(host: HostDevice, batch: Batch, flush_ns: int) -> None:
    count = len(batch)
    start_ns = host.enter(batch.shape_index, count)
    host.execute(batch.words, np.full(count, batch.shape_index, np.int32))
    host.leave(batch, slice(0, count), Strategy.pointers, flush_ns, start_ns)
