"""Launch commands that share a weight as one GEMM, with one column per command, on the GPU.

Evenly spaced activations need no copy: the distance from one to the next is the GEMM's leading dimension. Otherwise,
copy kernels on the main CUDA stream gather the activations into scratch memory and scatter the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import Batch, StepBatch
from launchopt.command import ShapeKey, as_records
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import MOVES, ShapeColumn
from launchopt.devices.cublaslt.packing import COPY_BYTES, SlotCopier
from launchopt.devices.cublaslt.plans import Gemm
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cublaslt.tuning import by_strides, of_copies
from launchopt.devices.prepared import Counters
from launchopt.devices.runs import run_end
from launchopt.devices.steps.fusions.makers import NO_MAKERS, Makers, fuse_steps
from launchopt.devices.steps.stages import LtSteps
from launchopt.recording.launch_rows import Strategy
from launchopt.records import columns_of
from launchopt.stack import Stack
from launchopt.streams.operands import is_shared

COALESCED = Stack(coalesce=True)
COPY_CALLS = 3  # calls besides the launch: upload the slots, gather the inputs, scatter the outputs

Slots = NDArray[np.uint32]


class LtCoalesced:
    """Plans for batches of each shape, and their launches. limits: the largest batch of each shape.

    pdl: our own kernels are dependent launches, which wait for earlier launches by themselves.
    """

    def __init__(self, device: GpuDevice, limits: Mapping[ShapeKey, int], pdl: bool = False) -> None:
        self._device, self.tables = device, device.base.fork()
        self._shapes, self._limits = list(limits), limits
        strides = device.work.strides()
        wide = [not shape.packing and is_shared(shape, strides[shape]) for shape in limits]
        # The activations and outputs of the largest batch of any shape, side by side.
        scratch_bytes = [0, 0]
        for shape, limit in compress(limits.items(), wide):
            for i, features in enumerate((shape.k, shape.m)):
                scratch_bytes[i] = max(scratch_bytes[i], limit * features * shape.dtype.itemsize)
        self._scratch = [cupy.empty(size, np.uint8) for size in scratch_bytes]
        for index, ((shape, limit), is_wide) in enumerate(zip(limits.items(), wide, strict=True)):
            if is_wide:
                self._plan(index, shape, limit)
            else:
                device.planner.plan_strided(self.tables, index, range(1, limit + 1), pdl)
        self._copier = SlotCopier(device.stream, max(limits.values()))
        for index in range(len(self._shapes)):
            if self.tables.shapes[index, ShapeColumn.PACKED0] and self._can_copy(index):
                self._load(index)

    def _load(self, index: int) -> None:
        """Run the copies and the GEMM once, with outputs to scratch slots, so that a run loads no kernel."""
        limit = self._limits[self._shapes[index]]
        first = self._device.work.spared_bytes // int(self.tables.shapes[index, ShapeColumn.BYTES_C])
        zeros = np.zeros(limit, np.uint32)
        self._copied(index, limit, (zeros, zeros, np.full(limit, first, np.uint32)))

    def _plan(self, index: int, shape: ShapeKey, limit: int) -> None:
        device, itemsize = self._device, shape.dtype.itemsize
        _, b, c = self.tables.strides_bytes(index).tolist()
        lead_a, *_ = device.row_elements(shape)

        def gemm(size: int, lead_b: int, lead_c: int) -> Gemm:
            return Gemm(ShapeKey(shape.m, size, shape.k, shape.dtype), 1, (0, 0, 0), (lead_a, lead_b, lead_c))

        def in_place(size: int) -> Row:
            return by_strides(device, index, gemm(size, b // itemsize, c // itemsize), size, limit)

        def copied(size: int) -> Row:
            inputs, outputs = (int(scratch.data.ptr) for scratch in self._scratch)
            return of_copies(device, index, gemm(size, shape.k, shape.m), size, limit, inputs, outputs)

        sizes = range(1, limit + 1)
        usable = device.planner.usable(self.tables, index, sizes)
        device.planner.warm(self.tables, index, self.tables.add(index, usable, in_place))
        self.tables.add(index, sizes, copied, ShapeColumn.PACKED0)
        self.tables.shapes[index, ShapeColumn.MANY_ARE] = Strategy.coalesced

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch the commands of each weight; commands that share a weight must be adjacent in the batch.

        Each evenly spaced run of activations takes one launch. If gathering them all takes fewer calls, they are
        gathered and take one launch together.
        """
        words, row, first = batch.words, self.tables.shapes[batch.shape_index], 0
        slots_a = as_records(words)["slot_a"].tolist()
        moves = row[MOVES].tolist()
        while first < len(words):
            stop = first + 1
            while stop < len(words) and slots_a[stop] == slots_a[first]:
                stop += 1
            pieces, at = 0, first
            while at < stop:
                at = run_end(words[:stop], at, *moves)
                pieces += 1
            part = Batch(batch.shape_index, words[first:stop], batch.reason)
            if pieces > COPY_CALLS + 1 and self._can_copy(batch.shape_index):
                self._gathered(part, flush_ns)
            else:
                self._in_pieces(part, flush_ns)
            first = stop

    def _in_pieces(self, batch: Batch, flush_ns: int) -> None:
        """Make one launch for each run of evenly spaced activations."""
        device = self._device
        device.enter(batch.shape_index, len(batch))
        common = (self.tables.arrays, device.records, (device.recorder.next_batch(), int(batch.reason), flush_ns))
        device.check(lt.launch_strided(batch.words, batch.shape_index, len(batch), *common))
        device.left()

    def _can_copy(self, index: int) -> bool:
        shape = self._shapes[index]
        sizes = (shape.k * shape.dtype.itemsize, shape.m * shape.dtype.itemsize)
        return bool(self.tables.shapes[index, ShapeColumn.PACKED0]) and not any(size % COPY_BYTES for size in sizes)

    def _gathered(self, batch: Batch, flush_ns: int) -> None:
        device, index, count = self._device, batch.shape_index, len(batch)
        records = as_records(batch.words)
        start_ns = device.enter(index, count)
        copied = self._copied(index, count, (records["slot_a"], records["slot_b"], records["slot_c"]))
        device.leave(batch, slice(0, count), Strategy.coalesced, flush_ns, start_ns, COPY_CALLS, copied)

    def _copied(self, index: int, count: int, slots: tuple[Slots, Slots, Slots]) -> int:
        """Gather, multiply and scatter; return the number of bytes that were copied."""
        shape, row = self._shapes[index], self.tables.shapes[index].tolist()
        size_b, size_c = shape.k * shape.dtype.itemsize, shape.m * shape.dtype.itemsize
        b, c = (scratch.data.ptr for scratch in self._scratch)
        self._copier.upload(slots)
        self._copier.gather_part(1, row[ShapeColumn.BASE_B], b, (row[ShapeColumn.BYTES_B], size_b), count)
        plan = self.tables.plans[row[ShapeColumn.PACKED0] + count]
        a = row[ShapeColumn.BASE_A] + int(slots[0][0]) * row[ShapeColumn.BYTES_A]
        self._device.check(lt.launch(self.tables.contexts[0], plan, a, b, c, 0))
        self._copier.scatter_part(2, c, row[ShapeColumn.BASE_C], (row[ShapeColumn.BYTES_C], size_c), count)
        return int(count * (size_b + size_c))


class CoalescedSteps:
    """Launches of whole steps, each row or fused group for all requests. Rows with scattered operands may be copied.

    stack: its fusions, `coalesce` and `pdl` are those of the launches. others: as in `fuse_steps`. left_out: what of
    the stack no maker could make. counters: of the commands that scattered operands keep from their fused launches.
    """

    def __init__(
        self,
        device: GpuDevice,
        limits: Mapping[ShapeKey, int],
        stack: Stack = COALESCED,
        others: Makers = NO_MAKERS,
        counters: Counters | None = None,
    ) -> None:
        self._coalesce, self.counters = stack.coalesce, counters or Counters()
        sizes = limits if stack.coalesce else dict.fromkeys(limits, 1)
        self._rows = LtCoalesced(device, sizes, stack.pdl)
        self.steps = LtSteps(device, limits, self._rows.tables, stack.coalesce)
        self.left_out = fuse_steps(self.steps, stack, others)

    def submit(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch a step of all requests of the batch.

        If the requests form at most COPY_CALLS + 1 evenly spaced runs, each run takes one launch per stage. Otherwise,
        evenly spaced rows take one launch per stage. Any other row takes a launch per evenly spaced run of each weight,
        or is gathered and scattered if that takes fewer calls; the rows of its stage are then launched one by one, and
        counted. Prompts, and all requests without `coalesce`, take one launch per stage and request.
        """
        if self.steps.launch_known(batch, flush_ns):
            return
        apart = not self._coalesce or int(columns_of(batch.words, 0)) > 1
        if apart or self.steps.runs(batch, COPY_CALLS + 1) <= COPY_CALLS + 1:
            self.steps.launch(batch, flush_ns)
            return
        marked = self.steps.even_rows(batch)
        self.counters.unfused_commands += self.steps.cut_rows(batch, marked) * batch.size
        even, row = marked.tolist(), 0
        while row < batch.rows:
            stop = row + 1
            while even[row] and stop < batch.rows and even[stop]:
                stop += 1
            if even[row]:
                self.steps.launch_rows(batch, row, stop, flush_ns)
            else:
                self._scattered(batch, row, flush_ns)
            row = stop

    def _scattered(self, batch: StepBatch, row: int, flush_ns: int) -> None:
        """Launch a row of a step whose operands are not evenly spaced, sorted so that equal weights are adjacent."""
        words = batch.words[row * batch.size : (row + 1) * batch.size]
        slots = as_records(words)["slot_a"]
        if len(np.unique(slots)) > 1:
            words = words[np.argsort(slots, kind="stable")]
        index = int(self.steps.indices(self.steps.kind_of(batch))[row])
        self._rows.submit(Batch(index, words, batch.reason), flush_ns)
