"""Launch batches whose operands are found through tables of pointers, by cuBLASLt or by kernels that read tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from launchopt.batching.batch import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt.pointer_loops import launch_pointers
from launchopt.devices.cublaslt.pointers import Pointers
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cublaslt.tuning import by_pointers
from launchopt.recording.launch_rows import Strategy

WORDS_A_COMMAND = 3  # pointers to A, B and C
UPLOAD_CALLS = 1  # calls besides the launch


class LtPointers:
    """Plans for batches of each GEMM shape, and their launches.

    limits: the largest batch of each shape. make: returns the plan for a shape and number of commands; None: plans are
    made by cuBLASLt. strategy: recorded for each launch.
    """

    def __init__(
        self,
        device: GpuDevice,
        limits: Mapping[ShapeKey, int],
        make: Callable[[ShapeKey, int], Row] | None = None,
        strategy: Strategy = Strategy.pointers,
    ) -> None:
        self._limits = limits
        self._device, self.tables, self._strategy = device, device.base.fork(), int(strategy)
        for index, (shape, limit) in enumerate(limits.items()):
            if shape.op is Op.GEMM:
                self.tables.add(index, range(1, limit + 1), partial(make or self._by_cublaslt, shape))
        self._pointers = Pointers(device.stream, WORDS_A_COMMAND * max(limits.values()))
        self._arrays = self.tables.arrays

    def _by_cublaslt(self, shape: ShapeKey, size: int) -> Row:
        return by_pointers(self._device, self._device.work.shapes.index(shape), size, self._limits[shape])

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Fill and upload the table of pointers, then launch once."""
        device, recorder = self._device, self._device.recorder
        staged = self._pointers.stage()
        device.enter(batch.shape_index, len(batch))
        what = (recorder.next_batch(), batch.shape_index, self._strategy, int(batch.reason), flush_ns)
        status = launch_pointers(
            batch.words, batch.shape_index, self._arrays, device.records, what, staged, self._pointers.words
        )
        device.check(status)
        self._pointers.uploaded()
        recorder.mark_packed(8 * WORDS_A_COMMAND * len(batch), UPLOAD_CALLS)
        device.left()
