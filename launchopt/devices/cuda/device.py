"""One NVIDIA GPU: launches on one stream (or on several, for a mode that asks), operands in CuPy arrays.

The one door to CUDA. What a mode does not launch by itself goes through the compiled loops of `lt_launch`. Only when a
profiler is attached does Python step in between two launches, to put an NVTX range around each.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray
from nvmath.bindings import cublasLt

from launchopt.batching.batcher import Batch
from launchopt.batching.buckets import FlushReason
from launchopt.batching.step_batcher import StepBatch
from launchopt.command import COMMAND_DTYPE, Dtype, Op, Records, ShapeKey
from launchopt.devices.arenas import Arenas, SeqState
from launchopt.devices.base import DeviceInfo, LaunchPath, PreparedMode
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.packing import CALLS_PER_BATCH, Packing
from launchopt.devices.cublaslt.plans import WORKSPACE_LIMIT_BYTES, Plans, matmul_address
from launchopt.devices.cublaslt.tables import Tables, operand_slots, shape_table
from launchopt.devices.cuda import ceilings as cuda_ceilings
from launchopt.devices.cuda.errors import StatusError, no_memory
from launchopt.devices.cuda.info import cuda_info, driver_version, gpu_state
from launchopt.devices.cuda.kernel_plans import KernelPlans, launch_address
from launchopt.devices.cuda.marks import LaunchMarks
from launchopt.devices.cuda.op_plans import OpPlans, three
from launchopt.devices.cuda.streams import Streams
from launchopt.devices.feedback.cuda import CudaSteps
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.feedback.in_launch import LaunchFeedback
from launchopt.devices.loops.runner import Launcher
from launchopt.devices.resident.ring import GAVE_UP_LINE, GONE
from launchopt.devices.runs import run_end
from launchopt.errors import RunError
from launchopt.queue.ring import Ring
from launchopt.recording.recorder import Recorder, Strategy
from launchopt.sampling import Sampling
from launchopt.timing.activity import Ceilings, Span
from launchopt.workloads.chain import ChainStream, Stream, chain_of
from launchopt.workloads.stream import ArenaKey

NOT_READY = 600  # of cudaError_t: work is under way, which is no error


class CudaDevice:
    """The GPU that CUDA numbers `index`."""

    def __init__(self, index: int = 0) -> None:
        self.info: DeviceInfo = cuda_info(index)
        self._device = cupy.cuda.Device(index)
        self._device.use()
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def open(self, stream: Stream, recorder: Recorder, seed: int) -> None:
        """Allocate and fill the arenas; ArenaMemoryError when the GPU has no room after all."""
        self.recorder, self.work = recorder, stream
        self.pack_bytes_per_launch = self.info.pack_bytes_per_launch if stream.packable else 0
        self._steps: CudaSteps | None = None
        self.state_of_sequences: SeqState | None = None
        try:
            self.arenas = Arenas(cupy, stream.arenas, stream.fills)
            self._workspace = cupy.empty(WORKSPACE_LIMIT_BYTES, np.uint8)
            self.arenas.fill(seed)
            if stream.attention is not None:
                self.state_of_sequences = SeqState(cupy, stream.attention, stream.requests, chain_of(stream).seed)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise no_memory(error, f"while operands were put into {self.info.memory_name}") from None
        self.lt, self.kernels = Plans(stream.dtype), KernelPlans(stream.dtype)
        self.op_plans = OpPlans(stream, self.kernels, self.state_of_sequences)
        self._scalars = np.array([1.0, 0.0], np.float32)  # alpha, beta
        context = np.zeros((1, len(lt.ContextWord)), np.int64)
        context[0, lt.ContextWord.FUNCTION], context[0, lt.ContextWord.LAUNCH_FUNCTION] = (
            matmul_address(),
            launch_address(),
        )
        context[0, lt.ContextWord.HANDLE], context[0, lt.ContextWord.STREAM] = self.lt.handle, self.stream.ptr
        context[0, lt.ContextWord.ALPHA] = self._scalars.ctypes.data
        context[0, lt.ContextWord.BETA], context[0, lt.ContextWord.WORKSPACE] = (
            self._scalars.ctypes.data + 4,
            self._workspace.data.ptr,
        )
        self.base = Tables(shape_table(stream, self.arenas), context)
        self._warm: list[tuple[Tables, int, int, bool]] = []
        self._packing = Packing(self.base, self.stream, self.check)
        self.marks = LaunchMarks(self.stream, stream, recorder)
        self._load_library()

    def _load_library(self) -> None:
        """One GEMM of no shape of ours, so that no mode pays for loading cuBLASLt."""
        side = 64
        matrices = cupy.zeros((3, side, side), np.float32)
        a, b, c = (int(matrix.data.ptr) for matrix in matrices)
        row, _ = self.lt.make(ShapeKey(side, side, side, self.work.dtype), 1, (0, 0, 0))
        self.check(lt.launch(self.base.contexts[0], np.array([*row, lt.PlanKind.MATMUL], np.int64), a, b, c, 0))
        self.synchronize()

    def plan(self, mode: str, shape: ShapeKey, sizes: Sequence[int], scratch: bool) -> None:
        """Plans of every size that can occur: a run is no longer than its arenas."""
        index = self.work.shapes.index(shape)
        self.marks.name_ranges(mode, index, sizes)
        self.plan_strided(self.base, index, sizes)
        if scratch:
            slot_bytes = self.base.shapes[index, lt.BYTES]
            self._packing.grow(max(sizes), slot_bytes.tolist())
            strides, leading = three(slot_bytes), self.row_elements(shape)
            distinct = self.base.add(
                index, sizes, lambda size: self.lt.make(shape, size, strides, leading), lt.ShapeColumn.PACKED0
            )
            self._warm += [(self.base, index, size, True) for size in distinct]

    def plan_strided(self, tables: Tables, index: int, sizes: Sequence[int]) -> None:
        """Plans of a shape in `tables`, for batches of `sizes` commands that lie evenly spaced."""
        shape = self.work.shapes[index]
        usable = tables.sizes(index, sizes, operand_slots(self.work, self.arenas, shape))
        if shape.op is not Op.GEMM:
            strides = three(tables.strides_bytes(index))
            tables.add(index, usable, lambda size: self.op_plans.row(shape, size, strides))
            return  # the rehearsal loads them: what they read is not there yet
        strides, leading = three(tables.strides_bytes(index)), self.row_elements(shape)
        self.warm(tables, index, tables.add(index, usable, lambda size: self.lt.make(shape, size, strides, leading)))

    def plan_gemv(self, tables: Tables, index: int, sizes: Sequence[int], early: bool) -> None:
        """The same by our own kernel; `early`: with programmatic dependent launch."""
        shape, strides = self.work.shapes[index], three(tables.strides_bytes(index))
        usable = tables.sizes(index, sizes, operand_slots(self.work, self.arenas, shape))
        made = tables.add(index, usable, lambda size: self.op_plans.gemv_row(shape, size, strides, early))
        self.warm(tables, index, made)

    def more_streams(self, count: int) -> Streams:
        """`count` streams, the device's own among them."""
        return Streams(self.stream, count, self.base.contexts[0], WORKSPACE_LIMIT_BYTES)

    def warm(self, tables: Tables, index: int, sizes: Sequence[int]) -> None:
        """Have plans of these sizes launched once before the clock starts: a kernel is loaded when first used."""
        self._warm += [(tables, index, size, False) for size in sizes]

    def row_elements(self, shape: ShapeKey) -> tuple[int, int, int]:
        """From one row of A, B and C to the next."""
        a, b, c = (operand.row_elements for operand in self.work.operands(shape))
        return a, b, c

    def name_ranges(self, mode: str, index: int, sizes: Sequence[int]) -> None:
        """NVTX ranges of launches of a shape."""
        self.marks.name_ranges(mode, index, sizes)

    def warm_up(self) -> None:
        """Launch one batch of each distinct kernel of each shape; load the copy kernels."""
        self._packing.load()
        for tables, index, size, packed in self._warm:
            row = tables.shapes[index]
            if packed:
                self._packing.launch(index, size, tuple(np.zeros(size, np.uint32) for _ in "abc"))
                continue
            a, b, c = row[lt.BASES].tolist()
            c += self.work.spared_bytes
            self.check(lt.launch(tables.contexts[0], tables.plans[row[lt.ShapeColumn.PLAN0] + size], a, b, c, 0))
        self._warm.clear()
        self.synchronize()

    def start(self, sample_every: int, path: LaunchPath | None = None) -> None:
        """Anchor the clocks; nothing is on the stream yet."""
        path = path or LaunchPath()
        self.tables = (path.tables or self.base).arrays
        self.records = self.recorder.arrays
        if self._steps is not None:
            self._steps.start()
        if self.state_of_sequences is not None:
            self.state_of_sequences.reset()
            self.synchronize()
        self.marks.start(sample_every, path)

    def begin(self) -> None:
        """Mark the start of the span, just before the first launch."""
        self.marks.begin()

    def use_mode(self, mode: str) -> None:
        """The mode whose name the ranges carry from now on."""
        self.marks.name = mode

    @staticmethod
    def check(status: int) -> None:
        """Raise RunError for a status of a compiled launch that is not OK."""
        if status == lt.OK:
            return
        if status == GONE:
            raise RunError(GAVE_UP_LINE)
        if status % lt.KERNEL_STATUS == 0:
            code = status // lt.KERNEL_STATUS
            raise StatusError(f"cuLaunchKernelEx failed with CUresult {code}", code)
        raise StatusError.of_cublas(status, cublasLt.get_status_name(status))

    def launcher(self, mode: PreparedMode) -> Launcher:
        """What a loop launches with in this run. With a profiler attached Python launches, with a range each."""
        by_python = (mode.submit, mode.submit_each, self.check)
        is_compiled = mode.compiled_loop and not self.marks.attached
        common = (self.tables, self.recorder, self.marks.sampler)
        return Launcher(*common, *by_python, mode.path.packable_bytes, is_compiled)

    def open_steps(self, stream: ChainStream, sampling: Sampling, on_host: bool, back: Ring) -> Flights:
        """Make ready to feed results back."""
        self._steps = CudaSteps(stream, self.arenas, self.stream, sampling, on_host, back, self.synchronize)
        return self._steps.flights

    @property
    def launch_feedback(self) -> LaunchFeedback | None:
        """How a launch of whole steps feeds back its results itself; None: it does not."""
        return None if self._steps is None else self._steps.launch_feedback

    def stage_feedback(self, batch: StepBatch) -> int:
        """A launch of `batch` comes next that can feed back its results: where it finds how; 0 if it is not to.

        `feed_back` does nothing for what was staged.
        """
        assert self._steps is not None
        if self.marks.streams or self.marks.resident:
            return 0
        return self._steps.stage(batch)

    def feed_back(self, flights: Flights, count: int) -> None:
        """What the first `count` ended steps computed last becomes their requests' next input."""
        assert self._steps is not None
        if self._steps.was_staged():
            return
        streams, resident = self.marks.streams, self.marks.resident
        records = flights.ended[:count].reshape(-1).view(COMMAND_DTYPE)
        if resident:
            resident.settle_requests(records["request"])
        if streams is None:
            self._steps.feed_back(flights, count)
            return
        others = streams.numbers(records["request"].astype(np.uint64))
        streams.join(others)
        self._steps.feed_back(flights, count)
        streams.fork(others)

    @property
    def unmarked_launches(self) -> int:
        """How many launches come before the next one that has a range, or events, around it."""
        return self.marks.unmarked_launches

    def sampling_ns(self) -> int:
        """Time spent sampling since `start`."""
        return 0 if self._steps is None else self._steps.sampling_ns()

    def enter(self, index: int, size: int, request: int = 0) -> int:
        """A launch of `size` commands of a shape (-1: of several) comes next: range and events; when it began."""
        return self.marks.enter(index, size, request)

    def leave(
        self,
        batch: Batch,
        part: slice,
        strategy: Strategy,
        flush_ns: int,
        start_ns: int,
        more_calls: int = 0,
        copied_bytes: int = 0,
    ) -> None:
        """The launch of batch.words[part] was made, with `more_calls` beside the one, copying so many bytes."""
        self.marks.leave(batch, part, strategy, flush_ns, start_ns, more_calls, copied_bytes)

    def left(self, request: int = 0) -> None:
        """The end of what began at `enter`, where compiled code has noted its launches already."""
        self.marks.left(request)

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """One launch a command; the compiled loop runs from one sampled launch to the next."""
        first_batch, first, marks = self.recorder.next_batch(len(words)), 0, self.marks
        common = (self.tables, self.records, (first_batch, int(FlushReason.full), flush_ns))
        while first < len(words):
            stop = min(len(words), first + (1 if marks.attached else max(1, marks.sampler.left)))
            with marks.around(int(shape_of[first]), 1, words[first]):
                self.check(lt.launch_each(words, shape_of, first, stop, *common))
            first = stop

    def submit_strided(self, batch: Batch, flush_ns: int, most_launches: int) -> bool:
        """One launch a run of evenly spaced slots."""
        words, index = batch.words, batch.shape_index
        if self.marks.attached:
            return self._submit_in_ranges(batch, flush_ns, most_launches)
        if most_launches < len(words) and lt.count_runs(words, index, self.tables[0], most_launches) > most_launches:
            return False
        args = (self.tables, self.records, (self.recorder.next_batch(), int(batch.reason), flush_ns))
        with self.marks.around(index, len(words)):
            self.check(lt.launch_strided(words, index, len(words), *args))
        return True

    def _submit_in_ranges(self, batch: Batch, flush_ns: int, most_launches: int) -> bool:
        """The same with an NVTX range around each launch, which needs Python between them."""
        words, index, shapes = batch.words, batch.shape_index, self.tables[0]
        if lt.count_runs(words, index, shapes, most_launches) > most_launches:
            return False
        moves = shapes[index, lt.MOVES].tolist()
        args = (self.tables, self.records, (self.recorder.next_batch(), int(batch.reason), flush_ns))
        first = 0
        while first < len(words):
            stop = run_end(words, first, *moves)
            with self.marks.around(index, stop - first):
                self.check(lt.launch_run(words, index, first, stop, *args))
            first = stop
        return True

    def submit_packed(self, batch: Batch, flush_ns: int) -> None:
        """Upload the slots, gather A and B, launch, scatter C."""
        records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
        slots = tuple(records[f"slot_{role}"] for role in "abc")
        start_ns = self.enter(batch.shape_index, len(batch))
        copied = self._packing.launch(batch.shape_index, len(batch), slots)
        self.leave(batch, slice(0, len(batch)), Strategy.packed, flush_ns, start_ns, CALLS_PER_BATCH, copied)

    def finish(self) -> Span:
        """Wait for the last result; read the events."""
        return self.marks.finish(self.synchronize)

    def check_alive(self) -> None:
        """Raise the error that CUDA answers everything with once its context is lost; waits for nothing."""
        try:
            # It also clears what CUDA calls its last error: "not ready" would be taken for a failure by PyTorch.
            cupy.cuda.runtime.check_status(cupy.cuda.runtime.streamQuery(self.stream.ptr))
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != NOT_READY:
                raise
        for waiting in (self.marks.resident, self.marks.ahead):
            if waiting:
                waiting.check_alive()

    def synchronize(self) -> None:
        """Wait for everything submitted."""
        self.marks.call_off()
        self._device.synchronize()

    def ceilings(self, dtype: Dtype) -> Ceilings:
        """Copy, read and matrix rates of this GPU."""
        side = cuda_ceilings.SIDE
        shape = ShapeKey(side, side, side, dtype)
        key = ArenaKey("a", side, side, dtype)
        room = Arenas(cupy, {key: 3})
        room.fill(seed=1)
        plans = Plans(dtype)
        row, _ = plans.make(shape, 1, (0, 0, 0))
        plan, context = np.array([*row, lt.PlanKind.MATMUL], np.int64), self.base.contexts[0].copy()
        context[lt.ContextWord.HANDLE] = plans.handle
        a, b, c = (room.arrays[key].data.ptr + slot * key.slot_bytes for slot in range(3))

        def gemm() -> None:
            self.check(lt.launch(context, plan, a, b, c, 0))

        self.synchronize()
        found = cuda_ceilings.measure(gemm, shape.flops, self.stream)
        plans.close()
        return found

    def versions(self) -> dict[str, str]:
        """Driver, runtime and libraries."""
        runtime = cupy.cuda.runtime
        return {
            "gpu": self.info.name,
            "cuda_driver": str(runtime.driverGetVersion()),
            "cuda_runtime": str(runtime.runtimeGetVersion()),
            "cublaslt": str(cublasLt.get_version()),
            "cupy": cupy.__version__,
            "nvmath-python": version("nvmath-python"),
            **driver_version(),
        }

    def state(self) -> dict[str, Any]:
        """Clocks, power, temperature and throttle reasons now."""
        return gpu_state(self.info.index)

    def close(self) -> None:
        """Destroy the plans, give the memory back to the GPU."""
        self.synchronize()
        self.lt.close()
        self.arenas.arrays.clear()
        self._packing.close()
        self.state_of_sequences = None
        cupy.get_default_memory_pool().free_all_blocks()
