"""Plans of one CUDA device: rows of its tables for every batch size that can occur, and one launch of each kernel.

CUDA loads a kernel at its first launch. `Planner.warm_up` makes that launch before a run is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op, ShapeKey
from launchopt.cupy_types import CudaStream
from launchopt.devices.arenas import SeqState
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.kernel_plans import KernelPlans, launch_address
from launchopt.devices.cublaslt.launch_tables import BASES, BYTES, ContextWord, PlanKind, ShapeColumn
from launchopt.devices.cublaslt.packing import Packing
from launchopt.devices.cublaslt.plans import Gemm, matmul_address
from launchopt.devices.cublaslt.tables import Row, Tables, operand_slots
from launchopt.devices.cublaslt.tuning import by_strides
from launchopt.devices.cuda.op_plans import OpPlans, three
from launchopt.devices.peers.cuda import CudaSplit
from launchopt.devices.peers.nccl import NcclPlans
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chains.chain import Stream
from launchopt.types import Table

if TYPE_CHECKING:
    from launchopt.devices.base import GpuDevice

LIBRARY_SIDE = 64  # rows and columns of the GEMM that loads cuBLASLt


def contexts_table(handle: int, stream: CudaStream, scalars: NDArray[np.float32], workspace: int) -> Table:
    """Return the contexts table for launches on one CUDA stream: [1, ContextWord].

    handle: a cublasLtHandle_t. scalars: alpha and beta. workspace: address of device memory for cuBLASLt.
    """
    context, word = np.zeros((1, len(ContextWord)), np.int64), ContextWord
    context[0, word.FUNCTION], context[0, word.LAUNCH_FUNCTION] = matmul_address(), launch_address()
    context[0, word.HANDLE], context[0, word.STREAM], context[0, word.WORKSPACE] = handle, stream.ptr, workspace
    context[0, word.ALPHA], context[0, word.BETA] = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    return context


def op_plans_of(
    stream: Stream, kernels: KernelPlans, state: SeqState | None, split: CudaSplit | None, context: Table
) -> OpPlans:
    """Return what plans the ops of a stream. With NCCL, `context` becomes able to launch its all-reduces."""
    if split is None or split.nccl is None:
        capability = int(cupy.cuda.Device().compute_capability)
        return OpPlans(stream, kernels, state, 0 if split is None else split.address, capability=capability)
    nccl, word = NcclPlans(split.nccl), ContextWord.LAUNCH_FUNCTION
    context[0, word] = nccl.launch_function(int(context[0, word]))
    return OpPlans(stream, kernels, state, split.address, nccl)


class Planner:
    """Adds plans to tables and keeps the list of plans to launch once.

    device: its `open` has made everything except the planner.
    """

    def __init__(self, device: GpuDevice, op_plans: OpPlans, packing: Packing) -> None:
        self._device, self._op_plans, self._packing = device, op_plans, packing
        self._warm: list[tuple[Tables, int, int, bool]] = []  # tables, shape index, batch size, whether packed

    def load_library(self) -> None:
        """Launch one GEMM, so that cuBLASLt is loaded before the first mode is prepared."""
        side, device = LIBRARY_SIDE, self._device
        matrices = cupy.zeros((3, side, side), np.float32)
        a, b, c = (int(matrix.data.ptr) for matrix in matrices)
        row, _ = device.lt.make(Gemm(ShapeKey(side, side, side, device.work.dtype), 1, (0, 0, 0)))
        device.check(lt.launch(device.base.contexts[0], np.array([*row, PlanKind.MATMUL], np.int64), a, b, c, 0))
        device.synchronize()

    def plan(self, shape: ShapeKey, sizes: Sequence[int], scratch: bool) -> None:
        """Add plans of `shape` to the device's own tables. scratch: also plans of packed batches."""
        device, tables = self._device, self._device.base
        index = device.work.shapes.index(shape)
        self.plan_strided(tables, index, sizes)
        if scratch:
            slot_bytes = tables.shapes[index, BYTES]
            self._packing.grow(max(sizes), slot_bytes.tolist())
            strides, leading, at = three(slot_bytes), device.row_elements(shape), self._packing.addresses

            def make(size: int) -> Row:
                if shape.packing:
                    return self._op_plans.gemv_row(shape, size, strides, early=False)
                return by_strides(device, index, Gemm(shape, size, strides, leading), size, max(sizes), at)

            distinct = tables.add(index, sizes, make, ShapeColumn.PACKED0)
            self._warm += [(tables, index, size, True) for size in distinct]

    def plan_strided(self, tables: Tables, index: int, sizes: Sequence[int], early: bool = False) -> None:
        """Add plans of shape `index` to `tables`, for batches of `sizes` evenly spaced commands.

        A GEMM with a quantised weight gets our GEMV, since cuBLASLt cannot read the weight. early: our own kernels get
        programmatic dependent launch.
        """
        device, shape = self._device, self._device.work.shapes[index]
        usable, strides = self.usable(tables, index, sizes), three(tables.strides_bytes(index))
        if shape.op is not Op.GEMM:
            # The warm-up run loads these kernels. `warm_up` does not: their operands are not written yet.
            tables.add(index, usable, lambda size: self._op_plans.row(shape, size, strides, early))
            return
        if shape.packing:
            self.plan_gemv(tables, index, sizes, early)
            tables.shapes[index, [ShapeColumn.ONE_IS, ShapeColumn.MANY_ARE]] = Strategy.kernel
            return
        leading, most = device.row_elements(shape), max(usable)

        def make(size: int) -> Row:
            return by_strides(device, index, Gemm(shape, size, strides, leading), size, most)

        self.warm(tables, index, tables.add(index, usable, make))

    def plan_gemv(self, tables: Tables, index: int, sizes: Sequence[int], early: bool) -> None:
        """Add plans of shape `index` that launch our own GEMV kernel. early: with programmatic dependent launch."""
        shape, strides = self._device.work.shapes[index], three(tables.strides_bytes(index))
        usable = self.usable(tables, index, sizes)
        made = tables.add(index, usable, lambda size: self._op_plans.gemv_row(shape, size, strides, early))
        self.warm(tables, index, made)

    def usable(self, tables: Tables, index: int, sizes: Sequence[int]) -> list[int]:
        """Return the batch sizes, of `sizes` and of earlier calls, whose evenly spaced run fits into the arenas."""
        work = self._device.work
        return tables.sizes(index, sizes, operand_slots(work, self._device.arenas, work.shapes[index]))

    def warm(self, tables: Tables, index: int, sizes: Sequence[int]) -> None:
        """Let `warm_up` launch the plans of these batch sizes once."""
        self._warm += [(tables, index, size, False) for size in sizes]

    def warm_up(self) -> None:
        """Launch one batch of each distinct kernel of each shape; load the copy kernels."""
        device = self._device
        self._packing.load()
        for tables, index, size, packed in self._warm:
            row = tables.shapes[index]
            if packed:
                self._packing.launch(index, size, tuple(np.zeros(size, np.uint32) for _ in "abc"))
                continue
            a, b, c = row[BASES].tolist()
            c += device.work.spared_bytes
            device.check(lt.launch(tables.contexts[0], tables.plans[row[ShapeColumn.PLAN0] + size], a, b, c, 0))
        self._warm.clear()
        device.synchronize()
