"""A stand-in for cuBLASLt on the host: compiled launch loops run, and their outputs are checked, without a GPU.

`FakeMatmul` is a C function with cublasLtMatmul's 16 arguments that multiplies with NumPy. `FakeLt` has the tables of
the launch loops over NumPy arenas. Elementwise ops are kernels (`fake_kernels`). fp32 only.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from launchopt.batching.batch import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.arenas import Arenas
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.kernel_plans import KernelPlans, Launch
from launchopt.devices.cublaslt.launch_tables import BYTES, MOVES, ContextWord, PlanKind, ShapeColumn
from launchopt.devices.cublaslt.tables import Tables
from launchopt.devices.cuda.op_kernels import ARGS, OpLaunch, geometry
from launchopt.devices.loops.runner import Launcher
from launchopt.recording.launch_rows import RecordingArrays, Strategy
from launchopt.recording.recorder import Recorder
from launchopt.streams.chains.chain import Stream
from launchopt.timing.sampling import Sampler
from support.cuda import fake_fp8
from support.cuda.fake_fp8 import scaling_of
from support.cuda.fake_kernels import Captured, FakeKernels, elementwise, rows_at
from support.cuda.fake_memory import require_inside

MATMUL = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 16)
FAILURE = 13  # CUBLAS_STATUS_EXECUTION_FAILED
# A layout is the address of 5 int64: rows, columns, batch, and in elements stride and leading dimension.
BATCH, STRIDE, LEADING = 2, 3, 4
POINTERS = -1  # a stride: the operand is an array of addresses
# A description is 0, or the address of 6 int64: the number of an epilogue (0: none), the address of its bias, and modes
# and addresses of the scales of fp8 operands.
RELU_BIAS = 6  # CUBLASLT_EPILOGUE_RELU_BIAS


def _matrices(address: int, layout: int) -> list[np.ndarray]:
    """Return views of the matrices of a batch, each [cols, rows]."""
    values = np.ctypeslib.as_array(ctypes.cast(layout, ctypes.POINTER(ctypes.c_int64)), (5,))
    rows, cols, batch, stride, leading = values.tolist()
    if stride == POINTERS:
        table = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int64)), (batch,))
        return [_operand(each, (rows, cols, 1, 0, leading))[0] for each in table.tolist()]
    return list(_operand(address, (rows, cols, batch, stride, leading)))


def _operand(address: int, layout: Sequence[int]) -> np.ndarray:
    rows, cols, batch, stride, leading = layout
    extent = stride * (batch - 1) + leading * (cols - 1) + rows
    require_inside(address, 4 * extent)
    flat = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (extent,))
    return np.lib.stride_tricks.as_strided(flat, (batch, cols, rows), (4 * stride, 4 * leading, 4))


class FakeMatmul:
    """A fake of cublasLtMatmul, for memory of the host. fail_at: number of the call that returns FAILURE."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls, self._fail_at = 0, fail_at
        self.captured = Captured()
        self.spy: Callable[[Sequence[int]], None] = lambda arguments: None  # called with each call's arguments
        self.function = MATMUL(self._matmul)

    def _matmul(self, *arguments: int) -> int:
        if self.captured.calls is not None:
            self.captured.calls.append(lambda: self._matmul(*arguments))
            return lt.OK
        self.calls += 1
        self.spy(arguments)
        if self.calls == self._fail_at:
            return FAILURE
        a, layout_a, b, layout_b, c, layout_c = (arguments[i] for i in (3, 4, 5, 6, 10, 11))
        if scaling := scaling_of(arguments[1]):
            fake_fp8.multiply(scaling, (a, b, c), (layout_a, layout_b, layout_c))
            return lt.OK
        matrices = (_matrices(address, layout) for address, layout in ((a, layout_a), (b, layout_b), (c, layout_c)))
        bias = self._bias(arguments[1])
        for of_a, of_b, of_c in zip(*matrices, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):  # a launch that only loads the kernel reads any values
                product = of_b @ of_a.T
            of_c[:] = product if bias is None else np.maximum(product + rows_at(bias, 1, of_c.shape[1], 0), 0)
        return lt.OK

    @staticmethod
    def _bias(description: int) -> int | None:
        """Return the address of the bias; None without an epilogue."""
        if not description:
            return None
        number, bias = np.ctypeslib.as_array(ctypes.cast(description, ctypes.POINTER(ctypes.c_int64)), (2,)).tolist()
        assert number in (0, RELU_BIAS)
        return int(bias) if number else None


class FakeLt(FakeMatmul):
    """The tables of the launch loops over NumPy arenas."""

    def __init__(
        self,
        stream: Stream,
        limits: Mapping[ShapeKey, int],
        fail_at: int | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(fail_at)
        self.stream = self.work = stream
        self.arenas = Arenas(np, stream.arenas, stream.fills)
        self.recorder = recorder or Recorder(stream.commands)
        self.arenas.fill(0)
        self.arenas.poison()
        self._keep: list[np.ndarray] = []
        self.kernels = FakeKernels(len(ARGS))
        self._kernel_plans = KernelPlans(stream.shapes[0].dtype)
        self._functions = {op: self.kernels.kernel(elementwise(op)) for op in Op}
        shapes = np.zeros((len(stream.shapes), len(ShapeColumn)), np.int64)
        plans: list[list[int]] = []
        strides = stream.strides()
        for row, shape in zip(shapes, stream.shapes, strict=True):
            row[ShapeColumn.PLAN0], row[ShapeColumn.MANY_ARE] = len(plans), Strategy.strided
            for place, operand in enumerate(stream.operands(shape)):
                if operand.arena in self.arenas.arrays:
                    row[ShapeColumn.BASE_A + place] = self.arenas.arrays[operand.arena].ctypes.data
                row[ShapeColumn.BYTES_A + place] = operand.slot_bytes
            row[MOVES] = strides[shape]
            steps = row[BYTES] * row[MOVES]
            plans += [self._row(shape, size, steps.tolist()) for size in range(limits[shape] + 1)]
        context = np.zeros((1, len(ContextWord)), np.int64)
        context[0, ContextWord.FUNCTION] = ctypes.cast(self.function, ctypes.c_void_p).value
        context[0, ContextWord.LAUNCH_FUNCTION] = self.kernels.address
        self.base = Tables(shapes, context)
        self.base.plans = np.array(plans, np.int64)
        self.tables = self.base.arrays

    def row_elements(self, shape: ShapeKey) -> tuple[int, int, int]:
        """Return the elements from one row of A, B and C to the next."""
        a, b, c = (operand.row_elements for operand in self.stream.operands(shape))
        return a, b, c

    def _row(self, shape: ShapeKey, size: int, strides_bytes: Sequence[int]) -> list[int]:
        """Return the plan of `size` evenly spaced commands."""
        if shape.op is Op.GEMM:
            return self.plan(shape, size, [step // 4 for step in strides_bytes], self.row_elements(shape))
        a, b, c = strides_bytes
        launch = geometry(shape, size, self.row_elements(shape), (a, b, c))
        return self.kernel_row(self._functions[shape.op], launch)

    def kernel_row(self, function: object, launch: OpLaunch) -> list[int]:
        """Return the plan of a kernel."""
        return self._kernel_plans.row(function, Launch(launch.grid, launch.block, launch.shared_bytes, launch.args))

    def plan(self, shape: ShapeKey, size: int, steps: Sequence[int], leading: Sequence[int]) -> list[int]:
        """Return the plan of a batch of GEMMs, with operands `steps` elements apart (POINTERS: anywhere)."""
        rows_cols = ((shape.k, shape.m), (shape.k, shape.n), (shape.m, shape.n))
        layouts = [
            np.array([*each, size, step, lead], np.int64)
            for each, step, lead in zip(rows_cols, steps, leading, strict=True)
        ]
        self._keep += layouts
        return [0, *(layout.ctypes.data for layout in layouts), 0, 0, PlanKind.MATMUL]

    @property
    def records(self) -> RecordingArrays:
        """Return the recorder's arrays, for compiled loops."""
        return self.recorder.arrays

    def enter(self, index: int, size: int, request: int = 0) -> int:
        """Enter a launch as the device does, without ranges and events."""
        return time.monotonic_ns()

    def left(self, request: int = 0) -> None:
        """Do nothing."""

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a batch and mark a sample, as Python does for sampled or scattered batches."""
        before = self.recorder.launch_count
        flush = (self.recorder.next_batch(), int(batch.reason), flush_ns)
        self.check(lt.launch_strided(batch.words, batch.shape_index, 1 << 40, self.tables, self.records, flush))
        self.recorder.mark_sample(before, 0)
        self.sampler.taken(last=False)

    def submit_each(self, words: np.ndarray, shape_of: np.ndarray, flush_ns: int) -> None:
        """Launch a command and mark a sample, as Python does for sampled commands."""
        assert len(words) == 1
        flush = (self.recorder.next_batch(), 0, flush_ns)
        self.check(lt.launch_each(words, shape_of, 0, 1, self.tables, self.records, flush))
        self.recorder.mark_sample(self.recorder.launch_count - 1, 0)
        self.sampler.taken(last=False)

    @staticmethod
    def check(status: int) -> None:
        """Raise an error for a status that is not 0, as the device does."""
        if status:
            raise RuntimeError(f"status {status}")

    def launcher(self, every: int = 0, slot_bytes: Sequence[int] | None = None) -> Launcher:
        """Return the launcher of a loop that uses this fake. About one launch in `every` goes through Python."""
        self.sampler = Sampler(every)
        by_python = (self.submit, self.submit_each, self.check, slot_bytes or [0] * len(self.stream.shapes))
        return Launcher(self.tables, self.recorder, self.sampler, *by_python)
