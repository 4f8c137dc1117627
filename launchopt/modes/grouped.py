"""grouped: one cuBLAS call for commands of several shapes, with one group per shape. All shapes share one bucket.

The call is cuBLAS's grouped batched GEMM. Its tables of pointers are filled and uploaded inside the launch. Batches
fill faster, because a command need not wait for other commands of its shape. On the CPU device a launch is a loop over
the commands.

Of a layer with experts, one call has the GEMMs of all experts, up to batching.max_batch. The other ops of the layer,
which are alone in their groups, are launched one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import Batch
from launchopt.command import Op, ShapeKey, as_records
from launchopt.devices.base import Device, GpuDevice, HostDevice, gpu_of, is_host
from launchopt.modes.base import Mode, Prepared
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chains.chain import Stream

if TYPE_CHECKING:
    from launchopt.devices.cublaslt.grouped import LtGrouped


class Grouped(Mode):
    """One launch per batch of any shapes."""

    name = "grouped"
    merges_shapes = True
    ops = frozenset(Op)

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. Other ops than GEMMs must be in groups of their own."""
        if not stream.has_groups and (strange := {shape.op for shape in stream.shapes} - {Op.GEMM}):
            return f"cannot launch {', '.join(sorted(op.name for op in strange))}"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> Prepared:
        """Allocate for the largest batch; cuBLAS needs no plans."""
        most = sum(limits.values())
        for shape in limits:
            if shape.op is not Op.GEMM:
                device.plan(self.name, shape, [1], scratch=False)
        if is_host(device):
            return _OnHost(self, device, list(limits), most)
        gpu = gpu_of(device)
        from launchopt.devices.cublaslt.grouped import LtGrouped

        return _OnGpu(self, gpu, list(limits), most, LtGrouped(gpu, limits, most))


class _Grouped(Prepared):
    """Makes one launch per batch of GEMMs, and one per command of any other op."""

    def __init__(self, mode: Mode, device: Device, shapes: list[ShapeKey], most: int) -> None:
        super().__init__(mode, device)
        from launchopt.batching.batcher import shape_finder  # late: the process that plans a run must not load Numba

        self._batcher, self._shape_of = shape_finder(shapes), np.zeros(most, np.int32)
        self._has_others = any(shape.op is not Op.GEMM for shape in shapes)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a batch. Its commands are of one group, and so all GEMMs, or none."""
        if self._has_others and as_records(batch.words[:1])["op"][0] != Op.GEMM:
            self.device.submit_each(batch.words, self._shapes_of(batch), flush_ns)
        else:
            self._submit_gemms(batch, flush_ns)

    def _shapes_of(self, batch: Batch) -> NDArray[np.int32]:
        """Return the index of each command's shape."""
        return self._batcher.classify(as_records(batch.words), self._shape_of)

    def _submit_gemms(self, batch: Batch, flush_ns: int) -> None:
        raise NotImplementedError


class _OnGpu(_Grouped):
    """Makes one call of cuBLAS per batch."""

    def __init__(self, mode: Mode, gpu: GpuDevice, shapes: list[ShapeKey], most: int, grouped: LtGrouped) -> None:
        super().__init__(mode, gpu, shapes, most)
        self._grouped = grouped

    def _submit_gemms(self, batch: Batch, flush_ns: int) -> None:
        self._grouped.submit(batch, flush_ns)

    def close(self) -> None:
        """Destroy cuBLAS's handle."""
        self._grouped.close()


class _OnHost(_Grouped):
    """Computes a batch in one loop."""

    def __init__(self, mode: Mode, host: HostDevice, shapes: list[ShapeKey], most: int) -> None:
        super().__init__(mode, host, shapes, most)
        self._host = host

    def _submit_gemms(self, batch: Batch, flush_ns: int) -> None:
        host, shape_of = self._host, self._shapes_of(batch)
        start_ns = host.enter(batch.shape_index, len(batch))
        host.execute(batch.words, shape_of)
        host.leave(batch, slice(0, len(batch)), Strategy.grouped, flush_ns, start_ns)
